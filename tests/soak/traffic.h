// Traffic: a client that sends numbered requests to all operators at full speed, and checks
// each answer.
//
// It uses the service directly, because a client library could hide duplicate answers.
//
// Thread safety: Check and Finish may only be called from one thread at a time.
#ifndef RESIDENT_TESTS_SOAK_TRAFFIC_H_
#define RESIDENT_TESTS_SOAK_TRAFFIC_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "resident/v1/executor.grpc.pb.h"
#include "tests/soak/findings.h"
#include "tests/soak/timeline.h"
#include "tests/soak/versions.h"

namespace resident::soak {

class Traffic {
 public:
  struct World {
    int operators;
    const Timeline* timeline;
    const Keys* keys;
    Findings* findings;
  };

  // Sends requests until Finish.
  Traffic(const std::shared_ptr<grpc::Channel>& channel, const World& world);

  // Checks the answers received so far. REQUIRES: no change is in progress, so that the
  // timeline is complete.
  void Check();
  // Stops sending, waits for the outstanding answers, and checks them.
  void Finish();

  uint64_t answered() const { return answered_.load(std::memory_order_relaxed); }

 private:
  enum class Outcome { kServed, kRefused, kLost };
  struct Answer {
    int op;
    uint32_t version;
    uint32_t key;
    Outcome outcome;
    Span span;
  };
  struct Sent {
    int op;
    Clock::time_point at;
  };

  void Write();
  void Read();
  void HandleResult(const v1::BatchResult& result);
  // Computes the key of the version from all tasks that ended OK. Returns false if the
  // tasks do not agree.
  static bool ComputeKey(const v1::BatchResult& result, uint32_t* key);
  void Evaluate(const Answer& answer);
  bool MaySend() const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const World world_;
  const std::unique_ptr<v1::Executor::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SubmitRequest, v1::SubmitResponse>> stream_;
  std::atomic<uint64_t> answered_{0};

  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<uint64_t, Sent> pending_ ABSL_GUARDED_BY(mu_);
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mu_);

  // Declared last, because they use all members above.
  std::thread writer_;
  std::thread reader_;
};

}  // namespace resident::soak

#endif  // RESIDENT_TESTS_SOAK_TRAFFIC_H_
