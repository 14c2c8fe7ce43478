// Runs code in a forked child, to give it another user, another environment or a violent end.
#ifndef TILEWRIGHT_TESTS_SUPPORT_CHILD_PROCESS_H_
#define TILEWRIGHT_TESTS_SUPPORT_CHILD_PROCESS_H_

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>

namespace tilewright::testing {

// Forks; the child runs `body` and ends with its result as exit status, without the destructors and
// buffers of the parent.
inline pid_t StartChild(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  return pid;
}

// Exit status of a child, or minus the signal that ended it.
inline int WaitForChild(pid_t pid) {
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid) return -1000;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// What `body` returned in a child, or "<died>".
inline std::string RunInChild(const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return "<no pipe>";
  const pid_t pid = StartChild([&] {
    close(ends[0]);
    const std::string text = body();
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t count = write(ends[1], text.data() + done, text.size() - done);
      if (count <= 0) return 1;
      done += static_cast<size_t>(count);
    }
    return 0;
  });
  close(ends[1]);
  std::string text;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = read(ends[0], buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(count));
  }
  close(ends[0]);
  return WaitForChild(pid) == 0 ? text : "<died>";
}

}  // namespace tilewright::testing

#endif  // TILEWRIGHT_TESTS_SUPPORT_CHILD_PROCESS_H_
