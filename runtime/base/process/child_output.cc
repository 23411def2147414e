#include "runtime/base/process/child_output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"

namespace resident {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kChunkBytes = 16384;
// While lines are dropped, the pipe is not read for this time, so that a child that prints without
// end costs this process little.
constexpr int kPauseMs = 20;

void WriteToStandardError(const std::string& line) {
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildOutput>> ChildOutput::Create(std::string prefix, Sink sink) {
  ASSIGN_OR_RETURN(std::unique_ptr<WakeEvent> stop, WakeEvent::Create());
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot create a pipe for the output of a process: ", strerror(errno),
                     ". Fix: raise the limit on open files of the service"));
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  if (!sink) sink = WriteToStandardError;
  try {
    return std::unique_ptr<ChildOutput>(
        new ChildOutput(std::move(prefix), std::move(sink), std::move(stop), ends[0], ends[1]));
  } catch (const std::system_error& error) {
    for (const int end : ends) close(end);
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a thread for the output of a process: ", error.what(),
                     ". Fix: raise the limit on tasks of the service"));
  }
}

ChildOutput::ChildOutput(std::string prefix, Sink sink, std::unique_ptr<WakeEvent> stop,
                         int read_end, int child_end)
    : prefix_(std::move(prefix)),
      sink_(std::move(sink)),
      stop_(std::move(stop)),
      read_end_(read_end),
      child_end_(child_end),
      thread_([this] { Loop(); }) {}

ChildOutput::~ChildOutput() {
  CloseChildEnd();
  // Do not wait for the end of the pipe: a process that the child started may still have it open.
  stop_->Signal();
  thread_.join();
  close(read_end_);
}

void ChildOutput::CloseChildEnd() {
  if (child_end_ >= 0) close(std::exchange(child_end_, -1));
}

void ChildOutput::Loop() {
  prctl(PR_SET_NAME, "child-output");
  pollfd ready[2] = {{read_end_, POLLIN, 0}, {stop_->fd(), POLLIN, 0}};
  bool open = true;
  while (open) {
    if (poll(ready, 2, -1) < 0) continue;
    const bool stop = ready[1].revents != 0;
    const uint64_t dropped = dropped_;
    // At the end, a few reads are enough for the whole contents of the pipe.
    for (int reads = stop ? 8 : 1; open && reads > 0; --reads) open = ReadSome();
    if (stop) break;
    if (dropped_ != dropped || line_.size() == kMaxLineBytes) poll(&ready[1], 1, kPauseMs);
  }
  if (!line_.empty()) EndLine();
  if (dropped_ > 0) sink_(absl::StrCat(prefix_, "(", dropped_, " lines were dropped)"));
}

bool ChildOutput::ReadSome() {
  char chunk[kChunkBytes];
  const ssize_t got = read(read_end_, chunk, sizeof(chunk));
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  Append(absl::string_view(chunk, static_cast<size_t>(got)));
  return got > 0;
}

void ChildOutput::Append(absl::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    line_.append(bytes.data(), std::min(end, kMaxLineBytes - line_.size()));
    if (end == bytes.size()) return;
    bytes.remove_prefix(end + 1);
    EndLine();
  }
}

void ChildOutput::EndLine() {
  const std::string line = std::exchange(line_, std::string());
  if (!MayReport()) {
    ++dropped_;
    return;
  }
  if (dropped_ > 0) {
    sink_(absl::StrCat(prefix_, "(", std::exchange(dropped_, 0), " lines were dropped)"));
  }
  sink_(absl::StrCat(prefix_, ToPrintableLine(line)));
}

bool ChildOutput::MayReport() {
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - allowance_since_).count();
  allowance_since_ = now;
  allowance_ = std::min<double>(kBurstLines, allowance_ + seconds * kLinesPerSecond);
  if (allowance_ < 1) return false;
  allowance_ -= 1;
  return true;
}

}  // namespace resident
