// RpcCounters: counters of the traffic over gRPC since the start.
//
// Thread safety: all members may be called from any thread. The atomics are relaxed and order
// nothing.
#ifndef RESIDENT_SERVER_CORE_RPC_COUNTERS_H_
#define RESIDENT_SERVER_CORE_RPC_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "absl/status/status.h"

namespace resident {

class RpcCounters {
 public:
  static constexpr int kCodes = 17;  // Values of absl::StatusCode.

  void Received(uint64_t bytes) { received_.fetch_add(bytes, std::memory_order_relaxed); }
  void Sent(uint64_t bytes) { sent_.fetch_add(bytes, std::memory_order_relaxed); }
  // Counts a batch that arrived, including batches that are refused later.
  void CountBatch() { batches_.fetch_add(1, std::memory_order_relaxed); }
  void CountRefused(absl::StatusCode code) {
    const int index = static_cast<int>(code);
    if (index >= 0 && index < kCodes) refused_[index].fetch_add(1, std::memory_order_relaxed);
  }

  // Counts a run of a graph that has ended, with its complete steps.
  void CountGraphRun(bool ok, uint64_t steps) {
    (ok ? graph_runs_ : failed_graph_runs_).fetch_add(1, std::memory_order_relaxed);
    graph_steps_.fetch_add(steps, std::memory_order_relaxed);
  }

  uint64_t received_bytes() const { return received_.load(std::memory_order_relaxed); }
  uint64_t sent_bytes() const { return sent_.load(std::memory_order_relaxed); }
  uint64_t batches() const { return batches_.load(std::memory_order_relaxed); }
  uint64_t refused(int code) const { return refused_[code].load(std::memory_order_relaxed); }
  uint64_t graph_runs() const { return graph_runs_.load(std::memory_order_relaxed); }
  uint64_t failed_graph_runs() const { return failed_graph_runs_.load(std::memory_order_relaxed); }
  uint64_t graph_steps() const { return graph_steps_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> received_{0};
  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> batches_{0};
  std::array<std::atomic<uint64_t>, kCodes> refused_{};
  std::atomic<uint64_t> graph_runs_{0};
  std::atomic<uint64_t> failed_graph_runs_{0};
  std::atomic<uint64_t> graph_steps_{0};
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_RPC_COUNTERS_H_
