// The table of lanes without a daemon: the ends of lanes, tokens, and what happens with bindings
// when an engine is replaced. tests/integration/lanes_test.cc has lanes of a running daemon.
#include "server/lanes/lane_table.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/device/fake_device.h"
#include "runtime/operators/install/fake_operator_manager.h"
#include "tests/support/eventually.h"

namespace resident {
namespace {

using testing::Eventually;
using ::testing::HasSubstr;

constexpr uint64_t kMemory = 64 << 20;
constexpr uint32_t kSlots = 64;

class LaneTableTest : public ::testing::Test {
 protected:
  LaneTableTest() {
    device_.set_session(session_);
    client_ = OpenSession();
  }

  std::shared_ptr<Client> OpenSession() {
    const auto session =
        core_.clients.OpenSession("test", "ipv4:127.0.0.1:1", access_.anonymous()->account());
    EXPECT_TRUE(session.ok()) << session.status();
    return *session;
  }
  // A lane of the client. How it ended is in ends().
  v1::OpenLaneResponse Open() {
    v1::OpenLaneRequest request;
    request.set_slots(kSlots);
    v1::OpenLaneResponse response;
    const absl::Status status = table_->Open(
        client_, request,
        [this](const absl::Status& end) {
          absl::MutexLock lock(&mu_);
          ends_.push_back(end);
        },
        &response);
    EXPECT_TRUE(status.ok()) << status;
    return response;
  }
  std::vector<absl::Status> ends() {
    absl::MutexLock lock(&mu_);
    return ends_;
  }
  // Gets the memory of a lane; the other end of its connection.
  UniqueFd Attach(const v1::OpenLaneResponse& lane) {
    auto hand_over = table_->Attach(lane.token());
    EXPECT_TRUE(hand_over.ok()) << hand_over.status();
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    hand_over->adopt(UniqueFd(ends[0]));
    return UniqueFd(ends[1]);
  }
  uint64_t Allocate(Buffer::Place place) {
    BufferSpec spec;
    spec.shape = {64};
    const auto made = place == Buffer::Place::kDevice
                          ? core_.buffers.Allocate(spec, client_->id(), *session_)
                          : core_.buffers.Adopt(spec, client_->id(), *session_, place,
                                                [](EngineSession& on, uint64_t bytes) {
                                                  return on.AllocateMemory(bytes);
                                                });
    EXPECT_TRUE(made.ok()) << made.status();
    return (*made)->id;
  }
  absl::Status Bind(uint64_t lane, const std::vector<uint64_t>& ids,
                    std::vector<uint32_t>* indices = nullptr) {
    v1::BindLaneRequest request;
    request.set_lane_id(lane);
    for (const uint64_t id : ids) request.add_buffer_ids(id);
    v1::BindLaneResponse response;
    const absl::Status status = table_->Bind(*client_, request, &response);
    if (indices != nullptr) indices->assign(response.indices().begin(), response.indices().end());
    return status;
  }
  absl::Status Prepare(uint64_t lane, uint64_t buffer, uint32_t* call = nullptr) {
    v1::PrepareLaneRequest request;
    request.set_lane_id(lane);
    request.mutable_tasks()->set_operator_("add");
    request.mutable_tasks()->set_count(1);
    for (uint32_t a = 0; a < 3; ++a) {
      v1::BufferColumn& column = *request.mutable_tasks()->add_arguments()->mutable_buffer();
      column.add_buffer_ids(buffer);
      request.add_words()->mutable_place()->set_argument(a);
    }
    v1::PrepareLaneResponse response;
    const absl::Status status = table_->Prepare(*client_, request, &response);
    if (call != nullptr) *call = response.call();
    return status;
  }
  absl::Status Release(uint64_t lane, uint32_t buffer) {
    v1::ReleaseLaneRequest request;
    request.set_lane_id(lane);
    request.add_buffers(buffer);
    return table_->Release(*client_, request);
  }

  const std::shared_ptr<FakeSession> session_ = std::make_shared<FakeSession>(1, kMemory, kMemory);
  FakeDevice device_{0, kMemory, kMemory};
  const std::unique_ptr<Registry> registry_ = *Registry::Create({});
  FakeOperatorManager manager_;
  Access access_;
  Core core_{{.staging_bytes = kMemory, .local_address = "/run/socket"},
             {&device_},
             *registry_,
             manager_,
             access_};
  absl::Mutex mu_;
  std::vector<absl::Status> ends_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<LaneTable> table_ =
      std::make_unique<LaneTable>(core_, LaneTable::Options{.max_lanes = 16});
  std::shared_ptr<Client> client_;
};

TEST_F(LaneTableTest, ATokenGivesTheMemoryOnce) {
  const v1::OpenLaneResponse lane = Open();
  EXPECT_EQ(table_->CountOn(0), 1u);
  EXPECT_TRUE(absl::IsNotFound(table_->Attach("").status()));
  EXPECT_TRUE(absl::IsNotFound(table_->Attach(std::string(32, '0')).status()));
  const auto hand_over = table_->Attach(lane.token());
  ASSERT_TRUE(hand_over.ok()) << hand_over.status();
  EXPECT_EQ(hand_over->answer.size(), sizeof(lane_welcome));
  EXPECT_EQ(fcntl(hand_over->memory.get(), F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW),
            F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_TRUE(absl::IsNotFound(table_->Attach(lane.token()).status()));
  EXPECT_TRUE(ends().empty());
}

// Whatever ends a lane, its caller hears of it once, and nothing of it is left.
TEST_F(LaneTableTest, EachEndIsReportedOnce) {
  const auto expect_end = [&](size_t count, absl::StatusCode code) {
    EXPECT_TRUE(Eventually([&] { return ends().size() == count; })) << count;
    ASSERT_EQ(ends().size(), count);
    EXPECT_EQ(ends().back().code(), code) << ends().back();
    EXPECT_EQ(table_->CountOn(0), 0u);
    EXPECT_EQ(access_.anonymous()->account()->tasks_in_flight(), 0u);
  };
  // The answer was not sent.
  v1::OpenLaneResponse lane = Open();
  EXPECT_EQ(access_.anonymous()->account()->tasks_in_flight(), kSlots);
  table_->Attach(lane.token())->adopt(UniqueFd());
  expect_end(1, absl::StatusCode::kOk);
  // Its client closes the connection.
  lane = Open();
  Attach(lane).Reset();
  expect_end(2, absl::StatusCode::kOk);
  // The session ends; the lane was not fetched.
  lane = Open();
  core_.clients.EndSession(client_);
  expect_end(3, absl::StatusCode::kUnauthenticated);
  // The stream ends: its caller knows.
  client_ = OpenSession();
  lane = Open();
  const UniqueFd connection = Attach(lane);
  table_->Close(lane.lane_id());
  table_->Close(lane.lane_id());
  EXPECT_EQ(table_->CountOn(0), 0u);
  char byte;
  EXPECT_EQ(recv(connection.get(), &byte, 1, 0), 0);
  EXPECT_EQ(ends().size(), 3u);
  EXPECT_TRUE(absl::IsNotFound(Bind(lane.lane_id(), {Allocate(Buffer::Place::kDevice)})));
}

TEST_F(LaneTableTest, BoundBuffersHaveTheirIndexUntilTheyAreReleased) {
  const uint64_t lane = Open().lane_id();
  const std::vector<uint64_t> ids = {Allocate(Buffer::Place::kDevice),
                                     Allocate(Buffer::Place::kHost),
                                     Allocate(Buffer::Place::kImportedDevice)};
  std::vector<uint32_t> indices;
  ASSERT_TRUE(Bind(lane, {ids[0], ids[1], ids[0]}, &indices).ok());
  EXPECT_EQ(indices, (std::vector<uint32_t>{0, 1, 0}));
  ASSERT_TRUE(Bind(lane, {ids[2], ids[1]}, &indices).ok());
  EXPECT_EQ(indices, (std::vector<uint32_t>{2, 1}));
  // A refused call changes nothing.
  EXPECT_TRUE(absl::IsNotFound(Bind(lane, {ids[0], 999})));
  EXPECT_EQ(table_->OfClient(client_->id()).buffers, 3u);
  ASSERT_TRUE(Release(lane, 1).ok());
  EXPECT_FALSE(Release(lane, 1).ok());
  EXPECT_EQ(table_->OfClient(client_->id()).buffers, 2u);
  ASSERT_TRUE(Bind(lane, {Allocate(Buffer::Place::kDevice)}, &indices).ok());
  EXPECT_EQ(indices, std::vector<uint32_t>{1});
  // It stays allocated while it is bound.
  const uint64_t used = session_->memory_used_bytes();
  ASSERT_TRUE(core_.buffers.Free(client_->id(), ids[0]).ok());
  EXPECT_EQ(session_->memory_used_bytes(), used);
  ASSERT_TRUE(Release(lane, 0).ok());
  EXPECT_EQ(session_->memory_used_bytes(), used - 256);
}

// Memory of clients keeps its index; the daemon's own is lost, and is bound at another one.
TEST_F(LaneTableTest, AnEngineThatIsReplacedMovesTheBindings) {
  const uint64_t lane = Open().lane_id();
  const std::vector<uint64_t> ids = {Allocate(Buffer::Place::kDevice),
                                     Allocate(Buffer::Place::kHost),
                                     Allocate(Buffer::Place::kImportedDevice)};
  ASSERT_TRUE(Bind(lane, ids).ok());
  ASSERT_TRUE(Prepare(lane, ids[0]).ok());
  const auto next = std::make_shared<FakeSession>(2, kMemory, kMemory);
  core_.buffers.OnRestart(0, *next, "killed",
                          [](auto&&...) { return absl::InternalError("not durable"); });
  device_.set_session(next);
  table_->OnRestart(0, next);
  table_->OnRestart(0, session_);  // An older one changes nothing.
  std::vector<uint32_t> indices;
  ASSERT_TRUE(Bind(lane, {ids[1], ids[2]}, &indices).ok());
  EXPECT_EQ(indices, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(Bind(lane, {ids[0]}).code(), absl::StatusCode::kFailedPrecondition);
  // A lane that is opened now is on the next engine at once.
  const uint64_t other = Open().lane_id();
  ASSERT_TRUE(Bind(other, {ids[2]}).ok());
}

TEST_F(LaneTableTest, CallsAndBuffersCountForTheClient) {
  const uint64_t lane = Open().lane_id();
  const uint64_t buffer = Allocate(Buffer::Place::kDevice);
  uint32_t call = 99;
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(Prepare(lane, buffer, &call).ok());
    EXPECT_EQ(call, i);
  }
  const LaneTable::Figures figures = table_->OfClient(client_->id());
  EXPECT_EQ(figures.lanes, 1u);
  EXPECT_EQ(figures.slots, kSlots);
  EXPECT_EQ(figures.calls, 3u);
  v1::ReleaseLaneRequest release;
  release.set_lane_id(lane);
  release.add_calls(1);
  ASSERT_TRUE(table_->Release(*client_, release).ok());
  ASSERT_TRUE(Prepare(lane, buffer, &call).ok());
  EXPECT_EQ(call, 1u);
  EXPECT_EQ(table_->OfClient(client_->id() + 1).lanes, 0u);
}

TEST_F(LaneTableTest, ADrainOpensAndPreparesNothing) {
  const v1::OpenLaneResponse lane = Open();
  const UniqueFd connection = Attach(lane);
  core_.gate.Close();
  table_->BeginDrain();
  v1::OpenLaneRequest request;
  v1::OpenLaneResponse response;
  EXPECT_TRUE(absl::IsUnavailable(table_->Open(
      client_, request, [](const absl::Status&) {}, &response)));
  EXPECT_TRUE(absl::IsUnavailable(Prepare(lane.lane_id(), Allocate(Buffer::Place::kDevice))));
  EXPECT_EQ(table_->CountOn(0), 1u);
}

}  // namespace
}  // namespace resident
