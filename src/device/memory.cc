#include "device/memory.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "device/driver_api.h"

// Destructors do not look at results: at process exit the driver or the context may be gone, which
// is also when there is nothing left to free.

namespace tilewright::device {
namespace {

CUdeviceptr Address(void* data, size_t offset) {
  return reinterpret_cast<CUdeviceptr>(data) + offset;
}

absl::Status CheckRange(size_t offset, size_t bytes, size_t size) {
  if (offset <= size && bytes <= size - offset) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a copy of ", bytes, " bytes at offset ", offset,
                                                 " leaves the device buffer of ", size, " bytes"));
}

}  // namespace

absl::StatusOr<DeviceBuffer> DeviceBuffer::Allocate(const DriverApi& api, size_t bytes) {
  DeviceBuffer buffer;
  buffer.api_ = &api;
  if (bytes == 0) return buffer;
  CUdeviceptr address = 0;
  const CUresult result = api.cuMemAlloc(&address, bytes);
  TILEWRIGHT_RETURN_IF_ERROR(Annotate(api.Check(result, "cuMemAlloc", __FILE__, __LINE__),
                                      absl::StrCat("allocating ", bytes, " bytes on the device")));
  buffer.data_ = reinterpret_cast<void*>(address);
  buffer.size_ = bytes;
  return buffer;
}

absl::StatusOr<DeviceBuffer> DeviceBuffer::Allocate(const DriverApi& api, size_t bytes,
                                                    const DeviceAllocator& allocator) {
  if (!allocator.allocate || bytes == 0) return Allocate(api, bytes);
  DeviceBuffer buffer;
  buffer.api_ = &api;
  buffer.allocator_ = &allocator;
  buffer.data_ = allocator.allocate(bytes);
  if (buffer.data_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the caller's allocator has no ", bytes, " bytes of device memory"));
  }
  buffer.size_ = bytes;
  return buffer;
}

absl::StatusOr<size_t> FreeDeviceMemory(const DriverApi& api) {
  size_t free = 0;
  size_t total = 0;
  TILEWRIGHT_CU_RETURN_IF_ERROR(api, cuMemGetInfo, &free, &total);
  return free;
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(allocator_, other.allocator_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  if (allocator_ != nullptr) {
    allocator_->release(data_);
  } else {
    api_->cuMemFree(Address(data_, 0));
  }
}

absl::Status DeviceBuffer::CopyFromHost(const void* source, size_t bytes, StreamHandle stream,
                                        size_t offset) {
  TILEWRIGHT_RETURN_IF_ERROR(CheckRange(offset, bytes, size_));
  if (bytes == 0) return absl::OkStatus();
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuMemcpyHtoDAsync, Address(data_, offset), source, bytes,
                                stream);
  return absl::OkStatus();
}

absl::Status DeviceBuffer::CopyToHost(void* destination, size_t bytes, StreamHandle stream,
                                      size_t offset) const {
  TILEWRIGHT_RETURN_IF_ERROR(CheckRange(offset, bytes, size_));
  if (bytes == 0) return absl::OkStatus();
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuMemcpyDtoHAsync, destination, Address(data_, offset),
                                bytes, stream);
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuStreamSynchronize, stream);
  return absl::OkStatus();
}

absl::Status DeviceBuffer::Fill(uint8_t byte, StreamHandle stream) {
  if (size_ == 0) return absl::OkStatus();
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuMemsetD8Async, Address(data_, 0), byte, size_, stream);
  return absl::OkStatus();
}

absl::Status DeviceBuffer::FillRange(uint8_t byte, size_t offset, size_t bytes,
                                     StreamHandle stream) {
  TILEWRIGHT_RETURN_IF_ERROR(CheckRange(offset, bytes, size_));
  if (bytes == 0) return absl::OkStatus();
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuMemsetD8Async, Address(data_, offset), byte, bytes,
                                stream);
  return absl::OkStatus();
}

absl::Status DeviceBuffer::Repeat(size_t offset, size_t period, size_t bytes, StreamHandle stream) {
  TILEWRIGHT_RETURN_IF_ERROR(CheckRange(offset, bytes, size_));
  // What is done doubles with each copy: its length stays a multiple of the period until the last.
  for (size_t done = period; done < bytes && done > 0;) {
    const size_t more = done < bytes - done ? done : bytes - done;
    TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuMemcpyDtoDAsync, Address(data_, offset + done),
                                  Address(data_, offset), more, stream);
    done += more;
  }
  return absl::OkStatus();
}

absl::StatusOr<OwnedStream> OwnedStream::Create(const DriverApi& api) {
  OwnedStream stream;
  stream.api_ = &api;
  TILEWRIGHT_CU_RETURN_IF_ERROR(api, cuStreamCreate, &stream.stream_, CU_STREAM_NON_BLOCKING);
  return stream;
}

OwnedStream& OwnedStream::operator=(OwnedStream&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(stream_, other.stream_);
  return *this;
}

OwnedStream::~OwnedStream() {
  if (stream_ != nullptr) api_->cuStreamDestroy(stream_);
}

absl::Status OwnedStream::Synchronize() const {
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuStreamSynchronize, stream_);
  return absl::OkStatus();
}

absl::StatusOr<OwnedEvent> OwnedEvent::Create(const DriverApi& api) {
  OwnedEvent event;
  event.api_ = &api;
  TILEWRIGHT_CU_RETURN_IF_ERROR(api, cuEventCreate, &event.event_, CU_EVENT_DEFAULT);
  return event;
}

OwnedEvent& OwnedEvent::operator=(OwnedEvent&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(event_, other.event_);
  return *this;
}

OwnedEvent::~OwnedEvent() {
  if (event_ != nullptr) api_->cuEventDestroy(event_);
}

absl::Status OwnedEvent::Record(StreamHandle stream) const {
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuEventRecord, event_, stream);
  return absl::OkStatus();
}

absl::Status OwnedEvent::Synchronize() const {
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuEventSynchronize, event_);
  return absl::OkStatus();
}

absl::StatusOr<float> OwnedEvent::ElapsedMsSince(const OwnedEvent& start) const {
  float milliseconds = 0;
  TILEWRIGHT_CU_RETURN_IF_ERROR(*api_, cuEventElapsedTime, &milliseconds, start.event_, event_);
  return milliseconds;
}

}  // namespace tilewright::device
