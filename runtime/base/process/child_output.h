// ChildOutput: copies what a child prints to this process's standard error. It is for children that
// are not trusted with the descriptor itself: each line is marked as the child's, has a limited
// length and no control characters, and the number of lines is limited.
//
//   limit    kMaxLineBytes of a line; the rest of it is dropped
//            kBurstLines at once, and then kLinesPerSecond; the number of dropped lines is reported
//
// A child that prints faster is blocked when the pipe is full.
//
// Thread safety: may be used by one thread at a time. It runs a thread of its own.
//
//   ASSIGN_OR_RETURN(auto output, ChildOutput::Create("residentd: engine of device 0: "));
//   options.fds = {{output->child_end(), STDERR_FILENO}};
//   auto child = ChildProcess::Spawn(options);
//   output->CloseChildEnd();
//   child->reset(); output.reset();      // In this order, so that the last output is read.
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_CHILD_OUTPUT_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_CHILD_OUTPUT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/base/process/wake_event.h"

namespace resident {

class ChildOutput {
 public:
  static constexpr size_t kMaxLineBytes = 1024;
  static constexpr uint32_t kBurstLines = 100;
  static constexpr uint32_t kLinesPerSecond = 10;

  // Receives each line with its prefix and without its end.
  using Sink = std::function<void(const std::string& line)>;

  // `sink` empty: standard error. RESOURCE_EXHAUSTED: there are no descriptors, or no
  // thread could be started.
  static absl::StatusOr<std::unique_ptr<ChildOutput>> Create(std::string prefix, Sink sink = {});
  // Reports the remaining contents of the pipe.
  ~ChildOutput();
  ChildOutput(const ChildOutput&) = delete;
  ChildOutput& operator=(const ChildOutput&) = delete;

  int child_end() const { return child_end_; }
  // Call it once the child has inherited the descriptor.
  void CloseChildEnd();

 private:
  ChildOutput(std::string prefix, Sink sink, std::unique_ptr<WakeEvent> stop, int read_end,
              int child_end);

  // Runs until the pipe has ended or stop_ is signalled.
  void Loop();
  // Reads available bytes; returns false if the pipe has ended.
  bool ReadSome();
  void Append(absl::string_view bytes);
  void EndLine();
  // Whether a line may be reported now.
  bool MayReport();

  const std::string prefix_;
  const Sink sink_;
  const std::unique_ptr<WakeEvent> stop_;
  const int read_end_;
  int child_end_;

  // Used by the thread only.
  std::string line_;
  double allowance_ = kBurstLines;
  std::chrono::steady_clock::time_point allowance_since_ = std::chrono::steady_clock::now();
  uint64_t dropped_ = 0;

  std::thread thread_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_CHILD_OUTPUT_H_
