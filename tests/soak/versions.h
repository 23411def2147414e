// Versions: the operators of the soak. Version v of each operator computes
//
//   out[i] = x[i] * key(v) + number
//
// with a different key for each version, so that the result shows which version computed it.
//
// Thread safety: functions without state. Keys may be used from any thread.
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

// x has the values 1 to kElements. Keys and numbers are below these limits, so that float32
// is exact.
inline constexpr uint32_t kElements = 8;
inline constexpr uint32_t kMaxKey = 1u << 16;
inline constexpr uint32_t kMaxNumber = 1u << 22;
// Clients never send this number. It triggers the fault of a version that fails in
// production.
inline constexpr int kPoison = -1;

enum class Fault {
  kNone,
  // A good version with slow examples, so that it can be withdrawn during validation.
  kSlowInValidation,
  // These are refused during the install.
  kDoesNotCompile,
  kFaultsInValidation,
  kHangsInValidation,
  kWrongResult,
  kWritesBeyond,
  // These pass every example, and fail if the number is kPoison.
  kFaultsInProduction,
  kHangsInProduction,
};
const char* FaultName(Fault fault);

// Returns "soak.0", ...
std::string OperatorName(int op);
client::Installation MakeVersion(int op, uint32_t key, Fault fault);

// The keys of installed versions, by the daemon's version numbers.
class Keys {
 public:
  void Set(int op, uint32_t version, uint32_t key) {
    absl::MutexLock lock(&mu_);
    keys_[{op, version}] = key;
  }
  // Returns 0 if there is no such version.
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
