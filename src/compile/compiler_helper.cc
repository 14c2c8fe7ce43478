#include "compile/compiler_helper.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text.h"

extern "C" char** environ;

namespace tilewright::compile {
namespace {

constexpr std::string_view kRequestMagic = "tilewright compile request 1";
constexpr std::string_view kAnswerMagic = "tilewright compile answer 1";
constexpr absl::string_view kLogPayload = "tilewright/compile_log";

// More than any unit or cubin of ours takes; a length above it is not of this protocol.
constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 30;

// ---- blocks of strings ----------------------------------------------------------------------

void Append(std::string_view text, std::string* block) {
  const uint64_t bytes = text.size();
  block->append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  block->append(text);
}

// Takes strings off the front of a block; empty from the first that is not there.
class Reader {
 public:
  explicit Reader(std::string_view block) : rest_(block) {}

  std::string Text() {
    uint64_t bytes = 0;
    if (rest_.size() < sizeof(bytes)) return Fail();
    std::memcpy(&bytes, rest_.data(), sizeof(bytes));
    rest_.remove_prefix(sizeof(bytes));
    if (bytes > rest_.size()) return Fail();
    std::string text(rest_.substr(0, bytes));
    rest_.remove_prefix(bytes);
    return text;
  }
  int64_t Number() {
    const std::string text = Text();
    int64_t number = 0;
    if (text.size() != sizeof(number)) {
      Fail();
      return 0;
    }
    std::memcpy(&number, text.data(), sizeof(number));
    return number;
  }
  // Of elements that each take at least a length.
  size_t Count() {
    const int64_t count = Number();
    if (count >= 0 && static_cast<uint64_t>(count) <= rest_.size() / sizeof(uint64_t)) {
      return static_cast<size_t>(count);
    }
    Fail();
    return 0;
  }
  bool Whole() const { return ok_ && rest_.empty(); }

 private:
  std::string Fail() {
    ok_ = false;
    rest_ = {};
    return "";
  }
  std::string_view rest_;
  bool ok_ = true;
};

template <typename Number>
void AppendNumber(Number number, std::string* block) {
  static_assert(sizeof(number) == sizeof(int64_t));
  Append({reinterpret_cast<const char*>(&number), sizeof(number)}, block);
}

void AppendFiles(absl::Span<const artifact::SourceFile> files, std::string* block) {
  AppendNumber<int64_t>(static_cast<int64_t>(files.size()), block);
  for (const artifact::SourceFile& file : files) {
    Append(file.name, block);
    Append(file.text, block);
  }
}

std::vector<artifact::SourceFile> ReadFiles(Reader& reader) {
  std::vector<artifact::SourceFile> files(reader.Count());
  for (artifact::SourceFile& file : files) {
    file.name = reader.Text();
    file.text = reader.Text();
  }
  return files;
}

// ---- the socket -----------------------------------------------------------------------------

// Writes without a signal where the other end is gone.
bool SendAll(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

std::string ReceiveAll(int socket) {
  std::string bytes;
  char buffer[1 << 16];
  while (bytes.size() <= kMaxBlockBytes) {
    const ssize_t count = recv(socket, buffer, sizeof(buffer), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    bytes.append(buffer, static_cast<size_t>(count));
  }
  return bytes;
}

// ---- the caller's side ----------------------------------------------------------------------

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }
  int number() const { return number_; }
  void Close() {
    if (number_ >= 0) close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

// A started helper. Its process is ended and waited for at the end of the scope.
class Helper {
 public:
  explicit Helper(pid_t pid) : pid_(pid) {}
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;
  ~Helper() { End(); }

  // Kills it if it still runs. The wait status; absent where the program around us has taken it
  // (it ignores SIGCHLD, or waits for any child).
  std::optional<int> End() {
    if (pid_ <= 0) return std::nullopt;
    int status = 0;
    // Its number is ours for as long as it has not been waited for.
    pid_t waited = waitpid(pid_, &status, WNOHANG);
    if (waited == 0) {
      kill(pid_, SIGKILL);
      waited = Wait(&status);
    }
    const bool known = waited == pid_;
    pid_ = 0;
    return known ? std::optional<int>(status) : std::nullopt;
  }
  // Waits for one that has closed its socket, which it does by ending.
  std::optional<int> Join() {
    int status = 0;
    const bool known = Wait(&status) == pid_;
    pid_ = 0;
    return known ? std::optional<int>(status) : std::nullopt;
  }

 private:
  pid_t Wait(int* status) {
    pid_t waited = 0;
    do {
      waited = waitpid(pid_, status, 0);
    } while (waited < 0 && errno == EINTR);
    return waited;
  }
  pid_t pid_;
};

// Starts `program` with `socket` as its standard input and the program's signals as they are by
// default. Nothing but that socket and standard error is inherited.
int Spawn(const std::string& program, int socket, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  int error = posix_spawn_file_actions_init(&actions);
  if (error != 0) return error;
  error = posix_spawnattr_init(&attributes);
  if (error != 0) {
    posix_spawn_file_actions_destroy(&actions);
    return error;
  }
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  std::string verb = kHelperVerb;
  std::string name = program;
  char* const arguments[] = {name.data(), verb.data(), nullptr};
  for (const int step : {
         posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF),
             posix_spawnattr_setsigmask(&attributes, &none),
             posix_spawnattr_setsigdefault(&attributes, &all),
             posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO),
             posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0),
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
             posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1),
#endif
       }) {
    if (error == 0) error = step;
  }
  if (error == 0) {
    error = posix_spawn(pid, program.c_str(), &actions, &attributes, arguments, environ);
  }
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

absl::Status SystemError(std::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(AbslView(what), ": ", std::strerror(error),
                                             "; unset RuntimeOptions::isolate_compiler "
                                             "(TILEWRIGHT_ISOLATE_COMPILER) to compile without a "
                                             "helper process"));
}

// Sends `request` and receives the answer, at the pace of the other end. The answer is whole when
// the other end has closed; what came may be empty.
absl::StatusOr<std::string> Exchange(int socket, std::string_view request,
                                     const CompileControl& control, const std::string& what) {
  std::string answer;
  char buffer[1 << 16];
  bool sending = true;
  while (true) {
    TILEWRIGHT_RETURN_IF_ERROR(CheckControl(control, what));
    pollfd ready = {socket, static_cast<short>(sending ? POLLIN | POLLOUT : POLLIN), 0};
    const int polled = poll(&ready, 1, static_cast<int>(kCancelPoll.count()));
    if (polled < 0 && errno != EINTR) return SystemError("poll", errno);
    if (polled <= 0) continue;
    if (sending && (ready.revents & POLLOUT) != 0) {
      const ssize_t sent =
          send(socket, request.data(), request.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) request.remove_prefix(static_cast<size_t>(sent));
      const bool failed = sent < 0 && errno != EINTR && errno != EAGAIN;
      if (request.empty() || failed) {
        sending = false;
        shutdown(socket, SHUT_WR);
      }
    }
    if ((ready.revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
      const ssize_t count = recv(socket, buffer, sizeof(buffer), MSG_DONTWAIT);
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count <= 0 || answer.size() > kMaxBlockBytes) return answer;
      answer.append(buffer, static_cast<size_t>(count));
    }
  }
}

std::string EndText(const std::optional<int>& status) {
  if (!status) return "ended";
  if (WIFSIGNALED(*status)) {
    const int signal = WTERMSIG(*status);
    return absl::StrCat("was killed by signal ", signal, " (", strsignal(signal), ")");
  }
  return absl::StrCat("ended with status ", WEXITSTATUS(*status));
}

// The folder of this library or program, and of the program around it.
std::vector<std::string> OwnFolders() {
  std::vector<std::string> folders;
  const auto add = [&](std::string path) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return;
    path.resize(slash);
    if (folders.empty() || folders.back() != path) folders.push_back(std::move(path));
  };
  Dl_info here = {};
  if (dladdr(reinterpret_cast<void*>(&FindCompilerHelper), &here) != 0 &&
      here.dli_fname != nullptr) {
    add(here.dli_fname);
  }
  char program[4096];
  const ssize_t bytes = readlink("/proc/self/exe", program, sizeof(program));
  if (bytes > 0 && bytes < static_cast<ssize_t>(sizeof(program))) {
    add(std::string(program, static_cast<size_t>(bytes)));
  }
  return folders;
}

}  // namespace

// ---- messages -------------------------------------------------------------------------------

std::string EncodeRequest(const HelperRequest& request) {
  std::string block;
  for (const std::string_view text :
       {kRequestMagic, std::string_view(request.nvrtc_path), std::string_view(request.compiler_id),
        std::string_view(request.target), std::string_view(request.source.entry_name),
        std::string_view(request.source.unit_name), std::string_view(request.source.text)}) {
    Append(text, &block);
  }
  AppendNumber<int64_t>(static_cast<int64_t>(request.options.size()), &block);
  for (const std::string& option : request.options) Append(option, &block);
  AppendFiles(request.source.generated_headers, &block);
  AppendFiles(request.bundle, &block);
  return block;
}

absl::StatusOr<HelperRequest> DecodeRequest(std::string_view bytes) {
  Reader reader(bytes);
  HelperRequest request;
  const bool is_request = reader.Text() == kRequestMagic;
  request.nvrtc_path = reader.Text();
  request.compiler_id = reader.Text();
  request.target = reader.Text();
  request.source.entry_name = reader.Text();
  request.source.unit_name = reader.Text();
  request.source.text = reader.Text();
  request.options.resize(reader.Count());
  for (std::string& option : request.options) option = reader.Text();
  request.source.generated_headers = ReadFiles(reader);
  request.bundle = ReadFiles(reader);
  if (is_request && reader.Whole()) return request;
  return absl::InternalError("what the compiler's helper process was sent is no request");
}

std::string EncodeAnswer(const absl::StatusOr<artifact::KernelBinary>& answer) {
  std::string block;
  Append(kAnswerMagic, &block);
  AppendNumber<int64_t>(static_cast<int64_t>(answer.status().code()), &block);
  if (!answer.ok()) {
    const absl::string_view message = answer.status().message();
    const auto log = answer.status().GetPayload(kLogPayload);
    Append({message.data(), message.size()}, &block);
    Append(log.has_value() ? std::string(*log) : "", &block);
    return block;
  }
  for (const std::string* text :
       {&answer->entry_name, &answer->target, &answer->cubin, &answer->log, &answer->compiler}) {
    Append(*text, &block);
  }
  const artifact::ResourceUsage& usage = answer->usage;
  for (const int number : {usage.registers, usage.static_smem_bytes, usage.stack_bytes,
                           usage.spill_store_bytes, usage.spill_load_bytes}) {
    AppendNumber<int64_t>(number, &block);
  }
  AppendNumber<double>(answer->compile_ms, &block);
  return block;
}

absl::StatusOr<artifact::KernelBinary> DecodeAnswer(std::string_view bytes) {
  const absl::Status bad = absl::InternalError(
      "the compiler's helper process gave an answer that cannot be read; is it "
      "another program, or of another version?");
  Reader reader(bytes);
  if (reader.Text() != kAnswerMagic) return bad;
  const int64_t code = reader.Number();
  if (code != static_cast<int64_t>(absl::StatusCode::kOk)) {
    const std::string message = reader.Text();
    const std::string log = reader.Text();
    if (!reader.Whole() || code < 0 ||
        code > static_cast<int64_t>(absl::StatusCode::kUnauthenticated)) {
      return bad;
    }
    absl::Status status(static_cast<absl::StatusCode>(code), message);
    if (!log.empty()) status.SetPayload(kLogPayload, absl::Cord(log));
    return status;
  }
  artifact::KernelBinary binary;
  for (std::string* text :
       {&binary.entry_name, &binary.target, &binary.cubin, &binary.log, &binary.compiler}) {
    *text = reader.Text();
  }
  for (int* number :
       {&binary.usage.registers, &binary.usage.static_smem_bytes, &binary.usage.stack_bytes,
        &binary.usage.spill_store_bytes, &binary.usage.spill_load_bytes}) {
    *number = static_cast<int>(reader.Number());
  }
  const int64_t milliseconds = reader.Number();
  std::memcpy(&binary.compile_ms, &milliseconds, sizeof(milliseconds));
  if (!reader.Whole()) return bad;
  return binary;
}

// ---- both ends ------------------------------------------------------------------------------

absl::StatusOr<std::string> FindCompilerHelper(const std::string& given) {
  std::vector<std::string> candidates;
  if (!given.empty()) {
    candidates.push_back(given);
  } else {
    for (const std::string& folder : OwnFolders()) {
      candidates.push_back(folder + "/tilewright");
      candidates.push_back(folder + "/../bin/tilewright");
    }
  }
  for (const std::string& candidate : candidates) {
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return absl::UnavailableError(absl::StrCat(
      "RuntimeOptions::isolate_compiler is set, and the program that compiles in a process of its "
      "own is missing; looked for ",
      absl::StrJoin(candidates, ", "),
      "; name the program `tilewright` by RuntimeOptions::compiler_helper "
      "(TILEWRIGHT_COMPILER_HELPER)"));
}

absl::StatusOr<artifact::KernelBinary> CompileInHelper(const std::string& helper,
                                                       const CompilerIdentity& identity,
                                                       const CompileRequest& request,
                                                       const CompileControl& control,
                                                       bool* crashed) {
  *crashed = false;
  const std::string what = absl::StrCat(request.source.entry_name, " for ", request.target);
  TILEWRIGHT_RETURN_IF_ERROR(CheckControl(control, what));
  const std::string bytes =
      EncodeRequest({identity.path, identity.id, request.target, request.options, request.source,
                     std::vector(request.bundle.begin(), request.bundle.end())});
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return SystemError("no socket for the compiler's helper process", errno);
  }
  const Descriptor ours(ends[0]);
  Descriptor theirs(ends[1]);
  pid_t pid = 0;
  if (const int error = Spawn(helper, theirs.number(), &pid); error != 0) {
    return SystemError(absl::StrCat("cannot start the compiler's helper process ", helper), error);
  }
  theirs.Close();
  Helper process(pid);
  TILEWRIGHT_ASSIGN_OR_RETURN(const std::string answer,
                              Exchange(ours.number(), bytes, control, what));
  const std::optional<int> status = process.Join();
  if (answer.empty() || (status && *status != 0)) {
    *crashed = true;
    return absl::InternalError(absl::StrCat("the compiler's helper process (", helper, ") ",
                                            EndText(status), " while it compiled ", what, " with ",
                                            identity.path));
  }
  return DecodeAnswer(answer);
}

int ServeCompile(int socket) {
  // Not to outlive the caller: nobody would read the answer.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto compile = [&]() -> absl::StatusOr<artifact::KernelBinary> {
    TILEWRIGHT_ASSIGN_OR_RETURN(const HelperRequest request, DecodeRequest(ReceiveAll(socket)));
    const NvrtcCompiler compiler({request.nvrtc_path});
    TILEWRIGHT_ASSIGN_OR_RETURN(const CompilerIdentity identity, compiler.Identity());
    if (identity.id != request.compiler_id) {
      return absl::UnavailableError(absl::StrCat(request.nvrtc_path, " is now \"", identity.id,
                                                 "\", and was \"", request.compiler_id,
                                                 "\" when the compile was asked for"));
    }
    return compiler.Compile({request.source, request.bundle, request.target, request.options});
  };
  return SendAll(socket, EncodeAnswer(compile())) ? 0 : 1;
}

}  // namespace tilewright::compile
