// Bake: judges a version that has begun to serve, against the version before it.
//
// Pure logic: whoever owns one feeds it counters now and then. It says once what it has
// found; a bake that has ended is dropped.
//
//   kWait ──▶ kPassed      the time is over, and nothing was found
//      └────▶ kRegressed   a threshold was passed: `reason` says which, with the figures
//
// Thread safety: an object belongs to one thread.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_BAKE_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_BAKE_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/operators/install/operator_manager.h"

namespace resident {

// What a version has served, since some moment.
struct BakeCounters {
  uint64_t tasks = 0;
  uint64_t failed = 0;
  uint64_t p99_ns = 0;  // Device time; 0: unknown.
  uint64_t shadow_tasks = 0;
  uint64_t shadow_mismatches = 0;
};

// `wanted`, with the daemon's `defaults` for what is 0.
BakeOptions WithDefaults(const BakeOptions& wanted, const BakeOptions& defaults);

class Bake {
 public:
  enum class Verdict : uint8_t { kWait, kPassed, kRegressed };

  // `options` without zeros (WithDefaults). `before_p99_ns`: of the version before, while
  // it served; 0: unknown, and latency is not judged.
  Bake(const BakeOptions& options, uint64_t before_p99_ns,
       std::chrono::steady_clock::time_point now)
      : options_(options), before_p99_ns_(before_p99_ns), ends_(now + options.time) {}

  Verdict Judge(const BakeCounters& counters, std::chrono::steady_clock::time_point now);
  const std::string& reason() const { return reason_; }
  BakeAction action() const { return options_.action; }

 private:
  const BakeOptions options_;
  const uint64_t before_p99_ns_;
  const std::chrono::steady_clock::time_point ends_;
  std::string reason_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_BAKE_H_
