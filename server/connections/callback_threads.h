// CallbackThreads: keeps one of gRPC's threads awake.
//
// gRPC 1.51 calls the callbacks of services on half as many threads as there are processors, but at
// least 2 and at most 16. One that finds no event for 1 s sleeps for 100 ms without looking for any
// (CallbackAlternativeCQ in src/cpp/common/completion_queue_cc.cc). If all of them sleep, a request
// waits up to 100 ms: `residentctl bench --pauses=120` shows it in the echo beside the daemon.
//
// A thread makes an event every kInterval: a call to a channel that fails at once. The thread of
// gRPC that handles it does not sleep in the next second, so that at least one is always awake. In
// Channelz, this is the channel "unknown", all of whose calls fail.
//
// Thread safety: the counter may be read by any thread.
#ifndef RESIDENT_SERVER_CONNECTIONS_CALLBACK_THREADS_H_
#define RESIDENT_SERVER_CONNECTIONS_CALLBACK_THREADS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/generic/generic_stub.h"

namespace resident {

class CallbackThreads {
 public:
  static constexpr auto kInterval = std::chrono::milliseconds(400);

  CallbackThreads();
  // Waits for the event that is under way, at most 100 ms, and, if nothing else uses them, for the
  // end of gRPC's threads.
  ~CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;

  // Events that were handled.
  uint64_t events() const { return events_.load(std::memory_order_relaxed); }

 private:
  void Run();
  // One call, from its start until gRPC has called back.
  void MakeEvent(grpc::GenericStub& stub);

  std::atomic<uint64_t> events_{0};
  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CONNECTIONS_CALLBACK_THREADS_H_
