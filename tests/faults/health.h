// What grpc.health.v1 says of a daemon's services, asked and watched.
//
// Thread safety: HealthOf may be called from any thread; a HealthWatch belongs to one.
//
//   EXPECT_EQ(HealthOf(daemon, "resident.device/0"), kServing);
#ifndef RESIDENT_TESTS_FAULTS_HEALTH_H_
#define RESIDENT_TESTS_FAULTS_HEALTH_H_

#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <string>

#include "tests/faults/daemon.h"

namespace resident::testing {

// HealthCheckResponse.ServingStatus.
inline constexpr int kHealthError = 0;  // The call failed: such a service is not known.
inline constexpr int kServing = 1;
inline constexpr int kNotServing = 2;
inline constexpr int kServiceUnknown = 3;

// Health.Check.
int HealthOf(const Daemon& daemon, const std::string& service);

// Health.Watch.
class HealthWatch {
 public:
  HealthWatch(const Daemon& daemon, const std::string& service);
  ~HealthWatch();
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;

  // Waits for the next status, a minute at most; kHealthError: none came.
  int Next();

 private:
  void Await();  // The call's pending operation.

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  bool ok_ = false;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_FAULTS_HEALTH_H_
