// OpenCalls: bounds the memory of open calls, of which each takes about kCallBytes although nothing
// was sent but its headers.
//
// Beyond the first kFreeCalls, a call takes a place, until it ends. A caller may have at most as
// many places as stay free, so that n greedy callers leave 1/(n+1) of them to others. The places of
// all take one part in kShare of --max_host_mib; there are at least kMinPlaces. Calls of methods
// that are open to all have places of their own, so that callers without a credential leave those
// of the others free.
//
// Thread safety: all members may be called from any thread.
//
//   OpenCalls calls(core);
//   ASSIGN_OR_RETURN(const OpenCalls::Place place, calls.Enter(context, /*open_to_all=*/false));
//   ... until the call has ended ...
#ifndef RESIDENT_SERVER_RPC_OPEN_CALLS_H_
#define RESIDENT_SERVER_RPC_OPEN_CALLS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server_context.h"
#include "server/core/core.h"

namespace resident {

class OpenCalls {
 private:
  struct Open;

 public:
  static constexpr uint64_t kCallBytes = 24u << 10;
  static constexpr uint64_t kFreeCalls = 1024;
  static constexpr uint64_t kMinPlaces = 4096;
  static constexpr uint64_t kShare = 8;
  // One place in this many is for methods that are open to all.
  static constexpr uint64_t kOpenShare = 8;

  // An open call, until the last copy is destroyed.
  using Place = std::shared_ptr<const Open>;

  // `core` must outlive the server, and this the places.
  explicit OpenCalls(Core& core);
  OpenCalls(const OpenCalls&) = delete;
  OpenCalls& operator=(const OpenCalls&) = delete;

  // `open_to_all`: the call's method needs no credential. RESOURCE_EXHAUSTED: no place is free for
  // this caller. UNAUTHENTICATED: the credential was withdrawn meanwhile.
  absl::StatusOr<Place> Enter(const grpc::CallbackServerContext& context, bool open_to_all);

 private:
  static constexpr size_t kMinAccounts = 1024;

  struct Open {
    Open(std::atomic<uint64_t>& open, Budget::Charge charge);
    ~Open();
    std::atomic<uint64_t>& open;
    const Budget::Charge charge;
  };

  std::shared_ptr<Budget::Account> FindAccount(const std::string& holder) ABSL_LOCKS_EXCLUDED(mu_);

  Core& core_;
  std::atomic<uint64_t> open_{0};  // Relaxed, because it orders nothing.
  Budget places_;
  Budget open_places_;  // For methods that are open to all.
  absl::Mutex mu_;
  // By holder (NameHolder) and budget. Those without a place are removed when there are prune_at_.
  absl::flat_hash_map<std::string, std::weak_ptr<Budget::Account>> accounts_ ABSL_GUARDED_BY(mu_);
  size_t prune_at_ ABSL_GUARDED_BY(mu_) = kMinAccounts;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_OPEN_CALLS_H_
