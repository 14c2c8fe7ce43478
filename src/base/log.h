// Events, one line each: `name key=value key=value`. Values with spaces are quoted. Nothing is
// logged on the path of Run. Thread-safe. A Logger is owned by a Runtime (or the program); there is
// no global one.
#ifndef TILEWRIGHT_BASE_LOG_H_
#define TILEWRIGHT_BASE_LOG_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tilewright/options.h"

namespace tilewright {

class Logger {
 public:
  // Writes lines at `level` and above to `sink`, or to stderr when it is empty.
  explicit Logger(LogLevel level = LogLevel::kWarning, LogSink sink = nullptr);

  bool enabled(LogLevel level) const { return level >= level_; }

  struct Field {
    Field(std::string_view key, const absl::AlphaNum& value) : key(key), value(value.Piece()) {}
    // The distribution's AlphaNum takes no std::string_view.
    template <std::same_as<std::string_view> View>
    Field(std::string_view key, View value) : key(key), value(value) {}
    std::string_view key;
    std::string value;
  };
  void Event(LogLevel level, std::string_view name, std::initializer_list<Field> fields = {}) const;

  // As Event, at most once for each `once_key` in the life of this logger, and at most
  // kMaxOnceKeys times in all.
  static constexpr size_t kMaxOnceKeys = 1024;
  void EventOnce(LogLevel level, std::string_view once_key, std::string_view name,
                 std::initializer_list<Field> fields = {}) const;

  // Events that EventOnce swallowed because their key had been seen.
  int64_t suppressed() const;

  // From the return on the sink is not called any more, by this logger and all its copies: for
  // threads that outlive the sink's owner. Waits for calls under way; not to be called by a sink.
  void Mute() const;

 private:
  struct Shared;
  LogLevel level_;
  LogSink sink_;
  std::shared_ptr<Shared> shared_;  // among copies
};

}  // namespace tilewright

#endif  // TILEWRIGHT_BASE_LOG_H_
