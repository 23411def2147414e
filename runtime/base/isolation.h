// Isolation: how far a version of an operator is kept from harming other tasks.
#ifndef RESIDENT_RUNTIME_BASE_ISOLATION_H_
#define RESIDENT_RUNTIME_BASE_ISOLATION_H_

#include <cstdint>

namespace resident {

// As resident.v1.Isolation.
enum class Isolation : uint8_t {
  // Of a request: the highest level that the version passes, up to the daemon's --isolation. Of a
  // version: none, because it is built in or a program.
  kUnspecified = 0,
  // It runs as the compiler made it.
  kTrusted = 1,
  // It returns soon after the stop word of its block is set, whatever it does.
  kStoppable = 2,
  // There is no such version yet.
  kConfined = 3,
};

// "trusted"; empty for kUnspecified.
constexpr const char* IsolationName(Isolation isolation) {
  switch (isolation) {
    case Isolation::kUnspecified:
      return "";
    case Isolation::kTrusted:
      return "trusted";
    case Isolation::kStoppable:
      return "stoppable";
    case Isolation::kConfined:
      return "confined";
  }
  return "unknown";
}

// The default of --isolation: the level of installs that name none.
inline constexpr Isolation kDefaultIsolation = Isolation::kStoppable;

// What was rewritten to make a version stoppable on a GPU, by rule (runtime/compile/ptx).
struct RewriteCounts {
  // L1, L2, L3, L4.
  uint32_t loops = 0;
  uint32_t counted_loops = 0;
  uint32_t short_loops = 0;
  uint32_t endless_loops = 0;
  // L5.
  uint32_t looks = 0;
  // B1.
  uint32_t barriers = 0;
  // W1 and W2: tests, which several operations of a basic block share.
  uint32_t warp_operations = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_ISOLATION_H_
