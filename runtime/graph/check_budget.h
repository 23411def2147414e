// CheckBudget: what one check of a graph may cost: steps of its loops, and bytes of memory.
//
// Every loop of the check takes a step for each iteration, and every list that it keeps holds its
// bytes. A check therefore ends after a number of steps that depends on the graph alone, on any
// machine, whatever the sizes, strides and counts in the graph are. Each element of the graph (a
// node, a tensor, a counter, an argument, a dimension, a wait) allows more steps and bytes, up to a
// limit for all graphs.
//
//   running ──limit reached, memory refused, or cancelled──▶ ended (permanently; see end())
//
// Once it has ended, Take and Hold return false, and each loop returns.
//
// Thread safety: none; `cancelled` and `reserve` are called by the thread of the check.
//
//   CheckBudget budget({.cancelled = [&] { return call_has_ended.load(); }});
//   while (...) {
//     if (!budget.Take()) return false;
//     ...
//   }
#ifndef RESIDENT_RUNTIME_GRAPH_CHECK_BUDGET_H_
#define RESIDENT_RUNTIME_GRAPH_CHECK_BUDGET_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "runtime/graph/limits.h"

namespace resident::graph {

class CheckBudget {
 public:
  enum class End : uint8_t {
    kNone,
    // The limits of the graph.
    kSteps,
    kBytes,
    // `reserve` returned false.
    kMemory,
    // `cancelled` returned true.
    kCancelled
  };
  struct Options {
    // Called every kPollSteps steps. Null: nothing cancels the check.
    std::function<bool()> cancelled = nullptr;
    // Reserves so many more bytes of the process's memory for this check. Null: any amount.
    std::function<bool(uint64_t bytes)> reserve = nullptr;
  };

  // A thousand to five thousand calls of `cancelled` in a second.
  static constexpr uint64_t kPollSteps = 4096;
  // Bytes of one call of `reserve`, unless more are needed.
  static constexpr uint64_t kReservedBytes = uint64_t{1} << 20;

  CheckBudget() : CheckBudget(Options()) {}
  explicit CheckBudget(Options options) : options_(std::move(options)) {}
  CheckBudget(const CheckBudget&) = delete;
  CheckBudget& operator=(const CheckBudget&) = delete;

  // Elements of the graph, before they are read: one step and kElementBytes for each, for which
  // they allow more.
  bool TakeElements(uint64_t count) {
    elements_ += count;
    return Take(count) && Hold(count * kElementBytes);
  }
  // False: the check has ended.
  bool Take(uint64_t steps = 1) {
    steps_ += steps;
    return steps_ < pause_ || Continue();
  }
  // The same, for a node of the graph; a check that ends names the last one.
  bool BeginNode(uint32_t node, uint64_t steps = 1) {
    node_ = node;
    return Take(steps);
  }
  // Takes the steps only if they are a small part of what is left; for what a check can omit.
  bool TakeIfCheap(uint64_t steps) {
    return end_ == End::kNone && steps <= (step_limit() - std::min(steps_, step_limit())) / 8 &&
           Take(steps);
  }

  // Memory that the check is about to use. False: the check has ended.
  bool Hold(uint64_t bytes) {
    held_ += bytes;
    return held_ <= reserved_ ? end_ == End::kNone : Reserve();
  }
  // Memory that it does not use any more. It stays reserved for the rest of the check.
  void Release(uint64_t bytes) { held_ -= bytes; }

  End end() const { return end_; }
  bool ended() const { return end_ != End::kNone; }
  uint32_t node() const { return node_; }
  uint64_t steps() const { return steps_; }
  // The most that was held at one time.
  uint64_t peak_bytes() const { return reserved_; }
  uint64_t step_limit() const {
    return std::min(kCheckSteps + elements_ * kCheckStepsPerElement, kMaxCheckSteps);
  }
  uint64_t byte_limit() const {
    return std::min(kCheckBytes + elements_ * kCheckBytesPerElement, kMaxCheckBytes);
  }

 private:
  // An estimate of what the parts of a graph keep for one of its elements.
  static constexpr uint64_t kElementBytes = 128;
  static_assert(kElementBytes < kCheckBytesPerElement);

  bool Continue() {
    if (end_ == End::kNone && steps_ > step_limit()) end_ = End::kSteps;
    if (end_ == End::kNone && options_.cancelled && options_.cancelled()) end_ = End::kCancelled;
    pause_ = end_ == End::kNone ? steps_ + kPollSteps : 0;
    return end_ == End::kNone;
  }

  bool Reserve() {
    if (end_ != End::kNone) return false;
    const uint64_t more = std::max(held_ - reserved_, kReservedBytes);
    if (held_ > byte_limit()) {
      end_ = End::kBytes;
    } else if (options_.reserve && !options_.reserve(more)) {
      end_ = End::kMemory;
    }
    if (end_ == End::kNone) reserved_ += more;
    pause_ = end_ == End::kNone ? pause_ : 0;
    return end_ == End::kNone;
  }

  const Options options_;
  End end_ = End::kNone;
  uint32_t node_ = 0;
  uint64_t elements_ = 0;
  uint64_t steps_ = 0;
  // Continue decides from here on.
  uint64_t pause_ = 0;
  uint64_t held_ = 0;
  uint64_t reserved_ = 0;
};

// Bytes that a part of a check holds until this is destroyed.
class HeldBytes {
 public:
  explicit HeldBytes(CheckBudget& budget) : budget_(budget) {}
  ~HeldBytes() { budget_.Release(bytes_); }
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;

  bool Hold(uint64_t bytes) {
    bytes_ += bytes;
    return budget_.Hold(bytes);
  }
  void Release(uint64_t bytes) {
    bytes_ -= bytes;
    budget_.Release(bytes);
  }

 private:
  CheckBudget& budget_;
  uint64_t bytes_ = 0;
};

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_CHECK_BUDGET_H_
