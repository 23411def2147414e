// ChildOutput: what a child prints, as lines of this process's own standard error. Of use where
// the child cannot be trusted with the descriptor itself: each line is marked as the child's, has a
// limited length and no control characters, and there are only so many of them.
//
//   limit    kMaxLineBytes of a line; the rest of it is dropped
//            kBurstLines at once, and then kLinesPerSecond; the number of others is reported
//
// A child that prints faster than that waits for a full pipe.
//
// Thread safety: belongs to one thread at a time. It has a thread of its own.
//
//   ASSIGN_OR_RETURN(auto output, ChildOutput::Create("residentd: engine of device 0: "));
//   options.fds = {{output->child_end(), STDERR_FILENO}};
//   auto child = ChildProcess::Spawn(options);
//   output->CloseChildEnd();
//   child->reset(); output.reset();      // In this order: what was printed last is seen.
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

  // Gets each line with its prefix and without its end.
  using Sink = std::function<void(const std::string& line)>;

  // `sink`: empty: standard error. RESOURCE_EXHAUSTED: no descriptors, or no
  // thread.
  static absl::StatusOr<std::unique_ptr<ChildOutput>> Create(std::string prefix, Sink sink = {});
  // Reports what is in the pipe.
  ~ChildOutput();
  ChildOutput(const ChildOutput&) = delete;
  ChildOutput& operator=(const ChildOutput&) = delete;

  int child_end() const { return child_end_; }
  // To be called once the child has it.
  void CloseChildEnd();

 private:
  ChildOutput(std::string prefix, Sink sink, int read_end, int child_end);

  // Until the pipe has ended or stop_ is signalled.
  void Loop();
  // Reads what there is; false: the pipe has ended.
  bool ReadSome();
  void Take(absl::string_view bytes);
  void EndLine();
  // Whether a line may be reported now.
  bool MayReport();

  const std::string prefix_;
  const Sink sink_;
  const int read_end_;
  int child_end_;
  WakeEvent stop_;

  // Of the thread.
  std::string line_;
  double allowance_ = kBurstLines;
  std::chrono::steady_clock::time_point allowance_since_ = std::chrono::steady_clock::now();
  uint64_t dropped_ = 0;

  std::thread thread_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_CHILD_OUTPUT_H_
