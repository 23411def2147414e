// A client's side of a local lane, without the client's library: tests can publish anything in its
// memory.
//
// Thread safety: one thread at a time.
//
//   TestLane lane(daemon, client);
//   ASSERT_TRUE(lane.Open().ok());
//   ASSERT_TRUE(lane.Attach(path));
//   const uint64_t s = lane.Submit(call, {lane_place(x, 0), lane_place(out, 0)});
//   EXPECT_EQ(lane.Await(s).status, kLaneOk);
#ifndef RESIDENT_TESTS_DAEMON_LANE_H_
#define RESIDENT_TESTS_DAEMON_LANE_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "resident/v1/lanes.grpc.pb.h"
#include "runtime/lane/lane_layout.h"
#include "tests/daemon/client.h"

namespace resident::testing {

// A completion, read from the memory.
struct LaneEnd {
  bool ended = false;  // False: the lane was closed, or a minute has passed.
  uint8_t status = 0;
  uint8_t flags = 0;
  uint16_t detail = 0;
  uint32_t device_ns = 0;
  uint32_t version = 0;
};

class TestLane {
 public:
  TestLane(const Daemon& daemon, const Client& client);
  // `metadata`: of every call: the session, and a credential if the daemon requires one.
  using Metadata = std::vector<std::pair<std::string, std::string>>;
  TestLane(const std::shared_ptr<grpc::Channel>& channel, Metadata metadata);
  // Ends the lane: its socket and its stream.
  ~TestLane();
  TestLane(const TestLane&) = delete;
  TestLane& operator=(const TestLane&) = delete;

  // The status is that of the call if it ends without a message.
  grpc::Status Open(uint32_t slots = 0, uint64_t data_bytes = 0, uint32_t device = 0);
  // Gets the memory. False: see attach_error().
  bool Attach(const std::string& local_address);
  const std::string& attach_error() const { return attach_error_; }
  // Waits for the end of the stream.
  grpc::Status Finish();
  // Ends the call of Lanes.Open.
  void Cancel() { context_.TryCancel(); }
  // Closes the socket.
  void Detach();

  grpc::Status Bind(const std::vector<uint64_t>& ids, std::vector<uint32_t>* indices);
  grpc::Status Prepare(v1::PrepareLaneRequest request, v1::PrepareLaneResponse* response);
  grpc::Status Release(const std::vector<uint32_t>& buffers, const std::vector<uint32_t>& calls);

  // Publishes the next submission; returns its number. Rings if the daemon is asleep.
  uint64_t Submit(uint16_t call, const std::vector<uint64_t>& words, uint8_t flags = 0,
                  uint8_t kind = kLaneTask);
  LaneEnd Await(uint64_t sequence);
  // Submits and waits.
  LaneEnd Call(uint16_t call, const std::vector<uint64_t>& words, uint8_t flags = 0) {
    return Await(Submit(call, words, flags));
  }
  void Ring();
  void CancelBelow(uint64_t sequence);
  // Stores a stream word of the client's page. `ring`: as the library; a device does not.
  void SetStream(uint32_t stream, uint32_t value, bool ring = true);

  const v1::OpenLaneResponse& opened() const { return opened_; }
  lane_slot* slot(uint64_t sequence) const;
  uint32_t state() const;
  bool asleep() const;
  uint64_t completed() const;
  // Stream words of the daemon's page.
  uint32_t signalled(uint32_t stream) const;
  uint32_t failed(uint32_t stream) const;
  // The data area.
  uint64_t* data() const {
    return reinterpret_cast<uint64_t*>(base_ + lane_data_offset(opened_.slots()));
  }
  // The text of the last refusal.
  std::string refusal() const;
  uint64_t next() const { return next_; }
  int socket() const { return socket_; }
  uint8_t* base() const { return base_; }

 private:
  lane_daemon_page* page() const {
    return reinterpret_cast<lane_daemon_page*>(base_ + kLanePageBytes);
  }

  std::unique_ptr<grpc::ClientContext> Context() const;

  const Metadata metadata_;
  const std::unique_ptr<v1::Lanes::Stub> lanes_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::OpenLaneResponse>> stream_;
  v1::OpenLaneResponse opened_;
  std::string attach_error_;
  int socket_ = -1;
  uint8_t* base_ = nullptr;
  uint64_t next_ = 0;
};

// A call of `add` of vectors of `elements` floats whose three tensors are places; alpha is 1.
v1::PrepareLaneRequest AddCall(uint64_t buffer, uint64_t elements);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_DAEMON_LANE_H_
