// HealthService: grpc.health.v1.Health, for load balancers, probes and clients. Open to every
// caller, and therefore with limits of its own.
//
// Every service, and "" for all of them, is SERVING while the daemon accepts work, has applied the
// set of --operators_dir, has not announced its end, and at least one device is usable.
// "resident.device/N" is SERVING under the same conditions if device N is usable: for clients that
// send work to a certain device, and for alerts.
//
// A client that balances its calls keeps a Watch open on each of its connections, without a
// credential. So one Watch of each connection is part of it, and bounded by the number of
// connections; only further ones count towards kMaxHealthWatches.
//
// Check answers at once. Watch answers at once and after each change; a change that was not yet
// sent to a slow reader is replaced by the next one, so that a watch holds one message.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_RPC_HEALTH_SERVICE_H_
#define RESIDENT_SERVER_RPC_HEALTH_SERVICE_H_

#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "runtime/base/limits.h"
#include "server/core/core.h"
#include "server/core/shared_slots.h"

namespace resident {

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  // A watch of the peer (gRPC's form) has begun, or ended.
  using OnWatch = std::function<void(const std::string& peer, bool open)>;

  // Before the first Update there are no statuses, and no service is SERVING.
  HealthService(Core& core, OnWatch on_watch);
  ~HealthService() override;

  // No service is SERVING from now on, although the daemon accepts work for some time.
  void AnnounceEnd() ABSL_LOCKS_EXCLUDED(mu_);
  bool end_announced() const ABSL_LOCKS_EXCLUDED(mu_);
  // Reads the states of the daemon and its devices, and sends changes to the watches.
  void Update() ABSL_LOCKS_EXCLUDED(mu_);

  // INVALID_ARGUMENT: the name is longer than kMaxHealthNameBytes. NOT_FOUND: no such service.
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  // INVALID_ARGUMENT: see Check. RESOURCE_EXHAUSTED: the connection has a watch, and
  // kMaxHealthWatches further ones are open, or the caller has used its share of them.
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

 private:
  using Status = grpc::health::v1::HealthCheckResponse;
  class WatchStream;

  Status::ServingStatus FindStatus(const std::string& service) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // From now on Update sends changes to `watch`.
  void Add(WatchStream* watch) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(WatchStream* watch) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether a watch over the connection from `peer` becomes part of the connection, until Leave.
  bool Join(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(const std::string& peer) ABSL_LOCKS_EXCLUDED(mu_);

  Core& core_;
  const OnWatch on_watch_;
  // For watches that are not part of their connection.
  SharedSlots slots_{{.what = "Health.Watch streams"}, kMaxHealthWatches};

  mutable absl::Mutex mu_;
  bool end_announced_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<WatchStream*> watches_ ABSL_GUARDED_BY(mu_);
  // The peers of the connections that a watch is part of.
  absl::flat_hash_set<std::string> joined_peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_HEALTH_SERVICE_H_
