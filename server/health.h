// Health: keeps gRPC's health service in step with the daemon.
//
// Every service, and "" for all of them, serves while the daemon takes work and at
// least one device is not given up. "resident.device/N" serves while the daemon takes work
// and device N is not given up: for whoever sends work to a certain device, and for alerts.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_HEALTH_H_
#define RESIDENT_SERVER_HEALTH_H_

#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/health_check_service_interface.h"
#include "runtime/device/device.h"
#include "server/drain_gate.h"

namespace resident {

class Health {
 public:
  Health(std::vector<Device*> devices, const DrainGate* gate)
      : devices_(std::move(devices)), gate_(gate) {}

  // From here on Update tells `service`; null: nobody.
  void Attach(grpc::HealthCheckServiceInterface* service);
  // Something may have changed.
  void Update();

 private:
  const std::vector<Device*> devices_;
  const DrainGate* const gate_;
  void Tell(const std::string& name, bool serving) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  grpc::HealthCheckServiceInterface* service_ ABSL_GUARDED_BY(mu_) = nullptr;
  // What it was told: gRPC passes on to watchers what is no change, too.
  std::map<std::string, bool> told_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_HEALTH_H_
