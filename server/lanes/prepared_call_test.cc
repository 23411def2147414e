// Prepared calls without a lane: which words are refused, where a task's tensors are, and what
// changes with an engine or a version. server/lanes/lane_test.cc has the lane around them.
#include "server/lanes/prepared_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "runtime/device/fake_device.h"

namespace resident {
namespace {

using ::testing::HasSubstr;
using Place = Buffer::Place;

constexpr ClientId kClient = 1;
constexpr uint64_t kMemory = 1 << 20;
constexpr uint64_t kElements = 16;

class PreparedCallTest : public ::testing::Test {
 protected:
  PreparedCallTest() { buffers_.AddOwner(kClient); }

  std::shared_ptr<const Buffer> Make(Place place, FakeSession& session, uint64_t elements = 64) {
    BufferSpec spec;
    spec.shape = {static_cast<int64_t>(elements)};
    const auto made =
        place == Place::kDevice
            ? buffers_.Allocate(spec, kClient, session)
            : buffers_.Adopt(spec, kClient, session, place, [](EngineSession& on, uint64_t bytes) {
                return on.AllocateMemory(bytes);
              });
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  }
  PreparedCall::Sources Sources(const std::shared_ptr<FakeSession>& session) {
    return {.registry = *registry_, .buffers = buffers_, .client = kClient, .session = session};
  }
  // An add of kElements floats, with `words` tensors that move and the others fixed.
  v1::PrepareLaneRequest Add(const Buffer& buffer, uint32_t words = 3) {
    v1::PrepareLaneRequest request;
    request.mutable_tasks()->set_operator_("add");
    request.mutable_tasks()->set_count(1);
    for (uint32_t a = 0; a < 3; ++a) {
      v1::BufferColumn& column = *request.mutable_tasks()->add_arguments()->mutable_buffer();
      column.add_buffer_ids(buffer.id);
      column.add_shape(kElements);
      if (a < words) request.add_words()->mutable_place()->set_argument(a);
    }
    return request;
  }
  std::shared_ptr<const PreparedCall> Prepare(const v1::PrepareLaneRequest& request) {
    auto call = PreparedCall::Prepare(Sources(session_), request);
    EXPECT_TRUE(call.ok()) << call.status();
    return *call;
  }
  void ExpectNotPrepared(const v1::PrepareLaneRequest& request, const std::string& part) {
    const absl::Status status = PreparedCall::Prepare(Sources(session_), request).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
  }
  // Adds the buffer to the lane's table; returns its index.
  uint32_t Bind(std::shared_ptr<const Buffer> buffer) {
    table_.push_back(MakeBound(std::move(buffer), session_->epoch()));
    return static_cast<uint32_t>(table_.size() - 1);
  }
  static LaneWordCopy Words(const std::vector<uint64_t>& words) {
    LaneWordCopy copy{};
    std::copy(words.begin(), words.end(), copy.begin());
    return copy;
  }
  uint16_t Refused(const PreparedCall& call, const std::vector<uint64_t>& words) {
    CheckedTask task;
    return call.Check(Words(words), table_, &task).reason;
  }

  const Limits limits_;
  const std::unique_ptr<Registry> registry_ = *Registry::Create({});
  BufferTable buffers_{limits_};
  const std::shared_ptr<FakeSession> session_ = std::make_shared<FakeSession>(1, kMemory, kMemory);
  std::vector<BoundBuffer> table_;
};

// Only a task that writes the daemon's own device memory may be completed ahead of its fence; any
// memory on the device may be read ahead.
TEST_F(PreparedCallTest, TheMemoryOfTheTensorsIsThatOfTheirBuffers) {
  const std::vector<Place> places = {Place::kDevice, Place::kHost, Place::kImportedDevice};
  std::vector<std::shared_ptr<const Buffer>> buffers;
  for (const Place place : places) {
    buffers.push_back(Make(place, *session_));
    Bind(buffers.back());
  }
  const auto moving = Prepare(Add(*buffers[0]));
  for (uint32_t in = 0; in < 3; ++in) {
    const auto fixed = Prepare(Add(*buffers[in], 0));
    CheckedTask of_fixed;
    ASSERT_FALSE(fixed->Check({}, table_, &of_fixed));
    EXPECT_EQ(fixed->DeviceOutputs(of_fixed), places[in] == Place::kDevice);
    EXPECT_EQ(OnDevice(of_fixed.device_memory) & 7, places[in] == Place::kHost ? 0u : 7u);
    for (uint32_t out = 0; out < 3; ++out) {
      CheckedTask task;
      const uint64_t x = lane_place(static_cast<uint16_t>(in), 0);
      ASSERT_FALSE(
          moving->Check(Words({x, x, lane_place(static_cast<uint16_t>(out), 0)}), table_, &task));
      EXPECT_EQ(moving->DeviceOutputs(task), places[out] == Place::kDevice) << in << out;
      EXPECT_EQ(OnDevice(task.device_memory) & moving->inputs(),
                places[in] == Place::kHost ? 0u : moving->inputs())
          << in << out;
    }
  }
}

TEST_F(PreparedCallTest, APlaceIsCheckedAtBothEnds) {
  const auto buffer = Make(Place::kDevice, *session_);
  const uint16_t at = static_cast<uint16_t>(Bind(buffer));
  const auto call = Prepare(Add(*buffer));
  const uint64_t good = lane_place(at, 0);
  const uint64_t last = (64 - kElements) * sizeof(float);
  EXPECT_EQ(Refused(*call, {good, good, lane_place(at, last)}), 0);
  EXPECT_EQ(Refused(*call, {good, good, lane_place(at, last + 4)}), kLaneRefusedBounds);
  EXPECT_EQ(Refused(*call, {good, good, lane_place(at, 2)}), kLaneRefusedAlignment);
  EXPECT_EQ(Refused(*call, {good, good, lane_place(at, (uint64_t{1} << 48) - 4)}),
            kLaneRefusedBounds);
  EXPECT_EQ(Refused(*call, {good, good, lane_place(static_cast<uint16_t>(at + 1), 0)}),
            kLaneRefusedBuffer);
  table_[at].buffer = nullptr;
  EXPECT_EQ(Refused(*call, {good, good, good}), kLaneRefusedBuffer);
  // A tensor whose elements lie before its first one, too.
  v1::PrepareLaneRequest backwards = Add(*buffer);
  v1::BufferColumn& x = *backwards.mutable_tasks()->mutable_arguments(0)->mutable_buffer();
  x.add_strides(-1);
  x.add_offsets((kElements - 1) * sizeof(float));
  table_[at] = MakeBound(buffer, session_->epoch());
  const auto reversed = Prepare(backwards);
  EXPECT_EQ(Refused(*reversed, {lane_place(at, (kElements - 1) * sizeof(float)), good, good}), 0);
  EXPECT_EQ(Refused(*reversed, {lane_place(at, (kElements - 2) * sizeof(float)), good, good}),
            kLaneRefusedBounds);
}

TEST_F(PreparedCallTest, AnotherEngineLosesOrMovesTheBuffers) {
  const auto own = Make(Place::kDevice, *session_);
  const auto imported = Make(Place::kImportedDevice, *session_);
  const auto of_own = Prepare(Add(*own, 0));
  const auto of_imported = Prepare(Add(*imported, 0));
  const auto next = std::make_shared<FakeSession>(2, kMemory, kMemory);
  buffers_.OnRestart(0, *next, "killed",
                     [](auto&&...) { return absl::InternalError("not durable"); });
  const auto lost = of_own->MoveTo(Sources(next));
  EXPECT_TRUE(lost->lost());
  CheckedTask task;
  EXPECT_EQ(lost->Check({}, table_, &task).reason, kLaneRefusedLostBuffer);
  const auto moved = of_imported->MoveTo(Sources(next));
  EXPECT_FALSE(moved->lost());
  EXPECT_FALSE(moved->Check({}, table_, &task));
  EXPECT_EQ(task.values[0], (*buffers_.Find(kClient, imported->id))->memory->address);
  // In the lane's table.
  EXPECT_EQ(MakeBound(own, 2).address, 0u);
  EXPECT_NE(MakeBound(*buffers_.Find(kClient, imported->id), 2).address, 0u);
}

TEST_F(PreparedCallTest, WrongTemplatesAndWordsAreRefused) {
  const auto buffer = Make(Place::kDevice, *session_);
  v1::PrepareLaneRequest two = Add(*buffer);
  two.mutable_tasks()->set_count(2);
  ExpectNotPrepared(two, "count");
  v1::PrepareLaneRequest twice = Add(*buffer);
  twice.add_words()->mutable_place()->set_argument(0);
  ExpectNotPrepared(twice, "argument 0");
  v1::PrepareLaneRequest no_tensor = Add(*buffer, 0);
  no_tensor.add_words()->mutable_place()->set_argument(3);
  ExpectNotPrepared(no_tensor, "argument 3");
  v1::PrepareLaneRequest none = Add(*buffer);
  none.add_words();
  ExpectNotPrepared(none, "word 3");
  v1::PrepareLaneRequest unknown = Add(*buffer);
  unknown.mutable_tasks()->set_operator_("none");
  ExpectNotPrepared(unknown, "'none'");
}

// A call follows the active version, and a pinned one does not.
TEST_F(PreparedCallTest, ACallRunsTheActiveVersionOrItsOwn) {
  const auto commit = [](const RegistryChange&) -> absl::StatusOr<uint64_t> { return 1; };
  for (int version = 1; version <= 2; ++version) {
    VersionSpec spec;
    spec.signature = "x: in f32[N], out: out f32[N]";
    auto reserved = registry_->Reserve("grow", spec, std::nullopt, absl::Now() + absl::Seconds(60));
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    ASSERT_TRUE(registry_->Load(*std::move(reserved), std::nullopt, commit).ok());
    if (version == 1) {
      ASSERT_TRUE(registry_->Activate("grow", 0, std::nullopt, /*force=*/false, commit).ok());
    }
  }
  const auto buffer = Make(Place::kDevice, *session_);
  v1::PrepareLaneRequest request;
  request.mutable_tasks()->set_operator_("grow");
  request.mutable_tasks()->set_count(1);
  for (uint32_t a = 0; a < 2; ++a) {
    v1::BufferColumn& column = *request.mutable_tasks()->add_arguments()->mutable_buffer();
    column.add_buffer_ids(buffer->id);
    column.add_shape(kElements);
    request.add_words()->mutable_place()->set_argument(a);
  }
  const auto following = Prepare(request);
  request.mutable_tasks()->set_version(1);
  const auto pinned = Prepare(request);
  const WorkLimits limits{.engine = session_->info()};
  const auto version = [&](const PreparedCall& call) {
    const std::optional<CallTarget> target = call.Resolve(*registry_, limits);
    EXPECT_TRUE(target.has_value());
    return target.has_value() && target->version != nullptr ? target->version->version : 0;
  };
  EXPECT_EQ(version(*following), 1u);
  const uint64_t changes = following->Resolve(*registry_, limits)->changes;
  ASSERT_TRUE(registry_->Activate("grow", 2, std::nullopt, /*force=*/false, commit).ok());
  EXPECT_NE(registry_->changes(), changes);
  EXPECT_EQ(version(*following), 2u);
  EXPECT_EQ(version(*pinned), 1u);
  // Installed operators may store anywhere, but that is decided for each version.
  EXPECT_FALSE(following->Resolve(*registry_, limits)->version->trusted);
}

}  // namespace
}  // namespace resident
