#include "tune/gpu_lock.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tilewright::tune {
namespace {

constexpr std::chrono::milliseconds kPoll(5);
constexpr std::chrono::milliseconds kLongestPoll(50);

// 0, or the errno of bind.
int Bind(int socket, const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // sun_path[0] stays 0: an abstract address.
  const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  const socklen_t bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return bind(socket, reinterpret_cast<const sockaddr*>(&address), bytes) == 0 ? 0 : errno;
}

}  // namespace

std::optional<GpuLock> GpuLock::Acquire(const std::string& gpu_uuid,
                                        std::chrono::steady_clock::time_point deadline,
                                        const std::function<bool()>& stop) {
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return GpuLock(-1);
  GpuLock lock(socket);
  const std::string name = absl::StrCat("tilewright-tune-", gpu_uuid);
  for (std::chrono::milliseconds poll = kPoll;; poll = std::min(2 * poll, kLongestPoll)) {
    const int error = Bind(socket, name);
    if (error == 0 || error != EADDRINUSE) return lock;
    if (std::chrono::steady_clock::now() >= deadline || (stop && stop())) return std::nullopt;
    std::this_thread::sleep_for(poll);
  }
}

GpuLock::GpuLock(GpuLock&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}

GpuLock& GpuLock::operator=(GpuLock&& other) noexcept {
  std::swap(socket_, other.socket_);
  return *this;
}

GpuLock::~GpuLock() {
  if (socket_ >= 0) close(socket_);
}

}  // namespace tilewright::tune
