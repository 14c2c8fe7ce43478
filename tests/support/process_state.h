// Everything of the process that a library, as its guest, might change and must not.
#ifndef TILEWRIGHT_TESTS_SUPPORT_PROCESS_STATE_H_
#define TILEWRIGHT_TESTS_SUPPORT_PROCESS_STATE_H_

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <clocale>
#include <filesystem>
#include <string>
#include <vector>

extern "C" char** environ;

namespace tilewright::testing {

struct ProcessState {
  std::string cwd;
  mode_t mask = 0;
  std::string locale;
  std::vector<std::string> environment;
  std::vector<rlim_t> limits;
  std::vector<void*> handlers;
  std::vector<int> blocked;  // signals of the calling thread

  static ProcessState Now() {
    ProcessState state;
    state.cwd = std::filesystem::current_path().string();
    state.mask = umask(0);
    umask(state.mask);
    state.locale = std::setlocale(LC_ALL, nullptr);
    for (char** entry = environ; *entry != nullptr; ++entry) state.environment.push_back(*entry);
    for (int resource = 0; resource < RLIMIT_NLIMITS; ++resource) {
      rlimit limit = {};
      getrlimit(static_cast<__rlimit_resource>(resource), &limit);
      state.limits.push_back(limit.rlim_cur);
      state.limits.push_back(limit.rlim_max);
    }
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    for (int number = 1; number < NSIG; ++number) {
      struct sigaction action = {};
      sigaction(number, nullptr, &action);
      state.handlers.push_back(reinterpret_cast<void*>(action.sa_handler));
      if (sigismember(&mask, number) == 1) state.blocked.push_back(number);
    }
    return state;
  }
  bool operator==(const ProcessState&) const = default;
};

}  // namespace tilewright::testing

#endif  // TILEWRIGHT_TESTS_SUPPORT_PROCESS_STATE_H_
