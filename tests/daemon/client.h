// A client of the daemon, and tasks with visible effects.
//
// Thread safety: Client: like gRPC's stubs, calls from any thread.
//
//   const Client client(daemon);
//   const Counters counters(client, 1000);
//   const RunOutcome outcome = client.Run(counters.Batch(0, 1000));
#ifndef RESIDENT_TESTS_DAEMON_CLIENT_H_
#define RESIDENT_TESTS_DAEMON_CLIENT_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "resident/v1/buffers.grpc.pb.h"
#include "resident/v1/executor.grpc.pb.h"
#include "tests/daemon/daemon.h"

namespace resident::testing {

// The outcome of a batch: the call's status, and the result if the call was OK.
struct RunOutcome {
  grpc::Status call;
  v1::BatchResult result;

  // Status of task i; UNAVAILABLE if the call itself failed.
  v1::TaskStatus status(int i) const;
  bool all_ok() const { return call.ok() && result.status_size() == 0; }
  // The first error message; empty if there is none.
  std::string message() const;
};

// A client with a session.
class Client {
 public:
  explicit Client(const Daemon& daemon, const std::string& name = "test");
  ~Client();

  // A context with the session's id and a deadline of a minute.
  std::unique_ptr<grpc::ClientContext> Context() const;
  RunOutcome Run(const v1::Batch& batch) const;
  // Allocates a device buffer of floats; returns the status of the call.
  grpc::Status Allocate(uint64_t floats, uint64_t* id, uint32_t device = 0) const;

  v1::Executor::Stub& executor() const { return *executor_; }
  v1::Buffers::Stub& buffers() const { return *buffers_; }
  const std::string& session() const { return session_; }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Executor::Stub> executor_;
  const std::unique_ptr<v1::Buffers::Stub> buffers_;
  const std::unique_ptr<v1::Sessions::Stub> sessions_;
  grpc::ClientContext open_context_;
  std::unique_ptr<grpc::ClientReader<v1::OpenSessionResponse>> open_;
  std::string session_;
};

// `count` tasks of an operator whose only tensor is one float of this buffer, consecutive
// from `first`; `scalar` is its other argument, if any.
v1::Batch FloatTasks(const std::string& operator_name, uint64_t buffer, uint32_t first,
                     uint32_t count, std::optional<int64_t> scalar = std::nullopt);

// Floats in memory that the client shares with the daemon: the effects of tasks can be read
// even after the daemon and the engine have ended.
class Counters {
 public:
  // `imported` receives the status of the call that shares the memory; if null, the call
  // must succeed.
  Counters(const Client& client, uint32_t count, uint32_t device = 0,
           grpc::Status* imported = nullptr);
  ~Counters();
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

  uint64_t buffer() const { return buffer_; }
  float value(uint32_t i) const { return values_[i]; }
  // Tasks that add 1 to each of `count` floats.
  v1::Batch Batch(uint32_t first, uint32_t count) const {
    return FloatTasks("test.count", buffer_, first, count);
  }

 private:
  std::string name_;
  const uint32_t count_;
  volatile float* values_ = nullptr;
  uint64_t buffer_ = 0;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_DAEMON_CLIENT_H_
