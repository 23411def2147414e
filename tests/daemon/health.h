// The health of a daemon's services by grpc.health.v1: Check and Watch.
//
// Thread safety: CheckHealth may be called from any thread; a HealthWatch belongs to one
// thread.
//
//   EXPECT_EQ(CheckHealth(daemon, "resident.device/0"), kServing);
#ifndef RESIDENT_TESTS_DAEMON_HEALTH_H_
#define RESIDENT_TESTS_DAEMON_HEALTH_H_

#include <memory>
#include <string>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/daemon/daemon.h"

namespace resident::testing {

using HealthStatus = grpc::health::v1::HealthCheckResponse::ServingStatus;
// The call failed: the service is unknown.
inline constexpr HealthStatus kHealthError = grpc::health::v1::HealthCheckResponse::UNKNOWN;
inline constexpr HealthStatus kServing = grpc::health::v1::HealthCheckResponse::SERVING;
inline constexpr HealthStatus kNotServing = grpc::health::v1::HealthCheckResponse::NOT_SERVING;

// Health.Check.
HealthStatus CheckHealth(const Daemon& daemon, const std::string& service);

// Health.Watch.
class HealthWatch {
 public:
  HealthWatch(const Daemon& daemon, const std::string& service);
  ~HealthWatch();
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;

  // Waits for the next status, up to a minute after the constructor. Returns kHealthError if
  // there was none.
  HealthStatus Next();

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
  std::unique_ptr<grpc::ClientReader<grpc::health::v1::HealthCheckResponse>> call_;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_DAEMON_HEALTH_H_
