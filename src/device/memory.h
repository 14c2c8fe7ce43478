// Move-only device buffers, streams and events for the program, the tuner and the tests. Free of
// <cuda.h>. Every object belongs to the context that was current when it was made, and is used and
// destroyed with that context current. Destroying one tolerates a driver that is shutting down.
// Errors: Internal with the driver's error, unless said otherwise.
#ifndef TILEWRIGHT_DEVICE_MEMORY_H_
#define TILEWRIGHT_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/device.h"

struct CUevent_st;

namespace tilewright::device {

// Memory from somebody else than the driver: an application's pool.
struct DeviceAllocator {
  std::function<void*(size_t bytes)> allocate;  // null when there is none
  std::function<void(void*)> release;
};

// Bytes of device memory that the current context could still allocate.
absl::StatusOr<size_t> FreeDeviceMemory(const DriverApi& api);

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // 0 bytes give a null buffer. ResourceExhausted names the bytes asked for.
  static absl::StatusOr<DeviceBuffer> Allocate(const DriverApi& api, size_t bytes);
  // From `allocator`, which outlives the buffer, where it is set; else from the driver.
  static absl::StatusOr<DeviceBuffer> Allocate(const DriverApi& api, size_t bytes,
                                               const DeviceAllocator& allocator);
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  void* data() const { return data_; }
  size_t size() const { return size_; }

  // InvalidArgument when the range leaves the buffer. Ordered in the stream. A pageable `source`
  // may be reused on return, a pinned one when the stream has come that far.
  absl::Status CopyFromHost(const void* source, size_t bytes, StreamHandle stream,
                            size_t offset = 0);
  // As CopyFromHost; synchronises the stream.
  absl::Status CopyToHost(void* destination, size_t bytes, StreamHandle stream,
                          size_t offset = 0) const;
  absl::Status Fill(uint8_t byte, StreamHandle stream);
  // As Fill, of a part. InvalidArgument when the range leaves the buffer.
  absl::Status FillRange(uint8_t byte, size_t offset, size_t bytes, StreamHandle stream);
  // Repeats the first `period` bytes from `offset` on over the `bytes` from there.
  absl::Status Repeat(size_t offset, size_t period, size_t bytes, StreamHandle stream);

 private:
  const DriverApi* api_ = nullptr;
  const DeviceAllocator* allocator_ = nullptr;  // null: the driver's
  void* data_ = nullptr;
  size_t size_ = 0;
};

class OwnedStream {
 public:
  static absl::StatusOr<OwnedStream> Create(const DriverApi& api);  // non-blocking
  OwnedStream() = default;
  OwnedStream(OwnedStream&& other) noexcept { *this = std::move(other); }
  OwnedStream& operator=(OwnedStream&& other) noexcept;
  ~OwnedStream();
  StreamHandle get() const { return stream_; }
  absl::Status Synchronize() const;

 private:
  const DriverApi* api_ = nullptr;
  StreamHandle stream_ = nullptr;
};

class OwnedEvent {
 public:
  static absl::StatusOr<OwnedEvent> Create(const DriverApi& api);
  OwnedEvent() = default;
  OwnedEvent(OwnedEvent&& other) noexcept { *this = std::move(other); }
  OwnedEvent& operator=(OwnedEvent&& other) noexcept;
  ~OwnedEvent();
  absl::Status Record(StreamHandle stream) const;
  absl::Status Synchronize() const;
  // Milliseconds from `start` to this event; both must have completed.
  absl::StatusOr<float> ElapsedMsSince(const OwnedEvent& start) const;

 private:
  const DriverApi* api_ = nullptr;
  CUevent_st* event_ = nullptr;
};

}  // namespace tilewright::device

#endif  // TILEWRIGHT_DEVICE_MEMORY_H_
