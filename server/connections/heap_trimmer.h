// HeapTrimmer: returns freed memory to the system.
//
// glibc keeps memory that is freed in the middle of its heaps. After peers that made gRPC
// store large data have disconnected, the front end would otherwise stay at its largest
// size.
//
// A thread checks every kCheckInterval. It trims if connections have ended since the last
// trim and the process is larger by kWorthwhileBytes than at the start. A trim holds the
// lock of one heap after the other, for about 0.5 us for each piece that was freed since
// the last one: seconds after gigabytes of small pieces, milliseconds otherwise. So the
// wait after a trim is kWaitFactor times its duration, and long if it released little
// memory.
//
// Thread safety: all functions may be called from any thread.
#ifndef RESIDENT_SERVER_CONNECTIONS_HEAP_TRIMMER_H_
#define RESIDENT_SERVER_CONNECTIONS_HEAP_TRIMMER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace resident {

class HeapTrimmer {
 public:
  static constexpr auto kCheckInterval = std::chrono::seconds(2);
  static constexpr int kWaitFactor = 20;
  static constexpr auto kWaitAfterLittle = std::chrono::minutes(1);
  static constexpr uint64_t kWorthwhileBytes = 64 << 20;
  static constexpr uint64_t kLittleBytes = 8 << 20;

  // `ended`: returns the number of connections that have ended.
  explicit HeapTrimmer(std::function<uint64_t()> ended);
  ~HeapTrimmer();
  HeapTrimmer(const HeapTrimmer&) = delete;
  HeapTrimmer& operator=(const HeapTrimmer&) = delete;

 private:
  void Run();

  const std::function<uint64_t()> ended_;
  const uint64_t ended_at_start_;
  const uint64_t bytes_at_start_;
  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CONNECTIONS_HEAP_TRIMMER_H_
