#include "base/log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "absl/container/flat_hash_set.h"
#include "base/mutex.h"

namespace tilewright {
namespace {

bool NeedsQuotes(std::string_view value) {
  if (value.empty()) return true;
  for (char c : value) {
    if (static_cast<unsigned char>(c) <= ' ' || c == '"' || c == '\\' || c == '=' || c == 0x7f) {
      return true;
    }
  }
  return false;
}

// One line stays one line, whatever the value is.
void AppendValue(std::string_view value, std::string* line) {
  if (!NeedsQuotes(value)) {
    line->append(value);
    return;
  }
  constexpr char kHexDigits[] = "0123456789abcdef";
  line->push_back('"');
  for (char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      line->push_back('\\');
      line->push_back(c);
    } else if (c == '\n') {
      line->append("\\n");
    } else if (byte < ' ' || byte == 0x7f) {
      line->append("\\x");
      line->push_back(kHexDigits[byte >> 4]);
      line->push_back(kHexDigits[byte & 15]);
    } else {
      line->push_back(c);
    }
  }
  line->push_back('"');
}

void WriteToStderr(LogLevel level, std::string_view text) {
  constexpr std::string_view kNames[] = {"debug", "info", "warning", "error", "off"};
  std::string line = "tilewright ";
  line.append(kNames[static_cast<int>(level)]).append(": ").append(text).push_back('\n');
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call: lines of threads do not mix
}

}  // namespace

struct Logger::Shared {
  std::atomic<int> calls = 0;  // of the sink, under way
  std::atomic<bool> muted = false;
  Mutex mutex;
  absl::flat_hash_set<std::string> seen ABSL_GUARDED_BY(mutex);
  int64_t suppressed ABSL_GUARDED_BY(mutex) = 0;
};

Logger::Logger(LogLevel level, LogSink sink)
    : level_(level), sink_(std::move(sink)), shared_(std::make_shared<Shared>()) {
  if (!sink_) sink_ = WriteToStderr;
}

void Logger::Event(LogLevel level, std::string_view name,
                   std::initializer_list<Field> fields) const {
  if (!enabled(level)) return;
  std::string line(name);
  for (const Field& field : fields) {
    line.push_back(' ');
    line.append(field.key).push_back('=');
    AppendValue(field.value, &line);
  }
  // In this order, and the other one in Mute: either this sees `muted` or Mute sees this call.
  ++shared_->calls;
  if (!shared_->muted) sink_(level, line);
  --shared_->calls;
}

void Logger::Mute() const {
  shared_->muted = true;
  while (shared_->calls > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Logger::EventOnce(LogLevel level, std::string_view once_key, std::string_view name,
                       std::initializer_list<Field> fields) const {
  if (!enabled(level)) return;
  {
    MutexLock lock(&shared_->mutex);
    // Full: what is not among the keys counts as seen, so that keys without end cost no memory.
    const bool is_first =
        shared_->seen.size() < kMaxOnceKeys && shared_->seen.emplace(once_key).second;
    if (!is_first) {
      ++shared_->suppressed;
      return;
    }
  }
  Event(level, name, fields);
}

int64_t Logger::suppressed() const {
  MutexLock lock(&shared_->mutex);
  return shared_->suppressed;
}

}  // namespace tilewright
