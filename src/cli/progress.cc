#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tilewright::cli {
namespace {

constexpr size_t kBarWidth = 24;
constexpr size_t kWhatWidth = 48;  // bar, counts and name fit a line of 100 columns

constexpr char kClearLine[] = "\r\x1b[K";

}  // namespace

Progress::Mode Progress::ModeFor(const std::ostream& stream) {
  return &stream == &std::cerr && isatty(STDERR_FILENO) != 0 ? Mode::kBar : Mode::kLines;
}

Progress::Progress(std::ostream& stream, Mode mode, std::string verb, size_t total,
                   Clock::time_point start)
    : stream_(stream), mode_(mode), verb_(std::move(verb)), total_(total), last_line_(start) {}

Progress::~Progress() { Clear(); }

void Progress::Clear() {
  MutexLock lock(&mutex_);
  if (!drawn_) return;
  stream_ << kClearLine << std::flush;
  drawn_ = false;
}

void Progress::Advance(std::string_view what, Clock::time_point now) {
  MutexLock lock(&mutex_);
  ++done_;
  const std::string counts = absl::StrCat(verb_, " ", done_, " of ", total_);
  if (mode_ == Mode::kBar) {
    const size_t filled = total_ == 0 ? kBarWidth : std::min(done_, total_) * kBarWidth / total_;
    stream_ << kClearLine << "[" << std::string(filled, '#') << std::string(kBarWidth - filled, ' ')
            << "] " << counts << "  " << what.substr(0, kWhatWidth) << std::flush;
    drawn_ = true;
  } else if (mode_ == Mode::kLines && now - last_line_ >= kLineInterval) {
    stream_ << counts << "\n" << std::flush;
    last_line_ = now;
  }
}

}  // namespace tilewright::cli
