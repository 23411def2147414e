// Versions: the operators of the soak. Version v of each computes
//
//   out[i] = x[i] * key(v) + number
//
// with a key of its own, so that every answer tells which code gave it.
//
// Thread safety: functions without state; Keys may be used from any thread.
#ifndef RESIDENT_TESTS_SOAK_VERSIONS_H_
#define RESIDENT_TESTS_SOAK_VERSIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/operators.h"

namespace resident::soak {

// x is 1 to kElements, keys and numbers are below these, so that float32 is exact.
inline constexpr uint32_t kElements = 8;
inline constexpr uint32_t kMostKey = 1u << 16;
inline constexpr uint32_t kMostNumber = 1u << 22;
// A number that no client sends: what a version with a fault in it waits for.
inline constexpr int kPoison = -1;

enum class Fault {
  kNone,
  // As good, but its examples take a while, so that it can be withdrawn meanwhile.
  kSlowInValidation,
  // Refused at install.
  kDoesNotCompile,
  kFaultsInValidation,
  kHangsInValidation,
  kWrongResult,
  kWritesBeyond,
  // Pass every example, and go wrong when the number is kPoison.
  kFaultsInProduction,
  kHangsInProduction,
};
const char* FaultName(Fault fault);

// "soak.0", ...
std::string OperatorName(int op);
client::Installation MakeVersion(int op, uint32_t key, Fault fault);

// Keys of versions that were installed, as the daemon numbered them.
class Keys {
 public:
  void Set(int op, uint32_t version, uint32_t key) {
    absl::MutexLock lock(&mu_);
    keys_[{op, version}] = key;
  }
  // 0: no such version.
  uint32_t Get(int op, uint32_t version) const {
    absl::MutexLock lock(&mu_);
    const auto found = keys_.find({op, version});
    return found == keys_.end() ? 0 : found->second;
  }

 private:
  mutable absl::Mutex mu_;
  std::map<std::pair<int, uint32_t>, uint32_t> keys_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident::soak

#endif  // RESIDENT_TESTS_SOAK_VERSIONS_H_
