// Local lanes, with a real daemon: what a client can do, and what each refusal says.
#include <fcntl.h>
#include <linux/falloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "resident/v1/lanes.grpc.pb.h"
#include "runtime/base/process/descriptor_message.h"
#include "runtime/lane/lane_layout.h"
#include "tests/daemon/lane.h"
#include "tests/daemon/messages.h"
#include "tests/support/eventually.h"
#include "tests/support/local_packets.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr uint64_t kFloats = 1024;

class LanesTest : public ::testing::Test {
 protected:
  std::string Flag() const { return "--local_address=" + path_; }
  void Start(std::vector<std::string> flags = {}) {
    flags.push_back(Flag());
    daemon_ = std::make_unique<Daemon>(flags);
    client_ = std::make_unique<Client>(*daemon_);
  }
  // An attached lane with the buffer x at index 0, and `add` of 4 floats as call 0.
  std::unique_ptr<TestLane> OpenLane(uint32_t slots = 0, uint64_t data_bytes = 0) {
    auto lane = std::make_unique<TestLane>(*daemon_, *client_);
    const grpc::Status opened = lane->Open(slots, data_bytes);
    EXPECT_TRUE(opened.ok()) << opened.error_message();
    EXPECT_TRUE(lane->Attach(path_)) << lane->attach_error();
    if (buffer_ == 0) {
      EXPECT_TRUE(client_->Allocate(kFloats, &buffer_).ok());
      std::vector<float> floats(kFloats);
      for (size_t i = 0; i < kFloats; ++i) floats[i] = static_cast<float>(i);
      EXPECT_TRUE(Upload(*client_, buffer_,
                         std::string(reinterpret_cast<const char*>(floats.data()), kFloats * 4))
                      .ok());
    }
    std::vector<uint32_t> indices;
    EXPECT_TRUE(lane->Bind({buffer_}, &indices).ok());
    EXPECT_EQ(indices, std::vector<uint32_t>{0});
    const grpc::Status prepared = lane->Prepare(AddCall(buffer_, 4), nullptr);
    EXPECT_TRUE(prepared.ok()) << prepared.error_message();
    return lane;
  }
  std::vector<float> Read() const {
    std::string bytes;
    EXPECT_TRUE(Download(*client_, buffer_, &bytes).ok());
    std::vector<float> floats(bytes.size() / 4);
    memcpy(floats.data(), bytes.data(), bytes.size());
    return floats;
  }
  // Places of x, y and out, by the index of their first float.
  static std::vector<uint64_t> Places(uint64_t x, uint64_t y, uint64_t out) {
    return {lane_place(0, 4 * x), lane_place(0, 4 * y), lane_place(0, 4 * out)};
  }
  static v1::PrepareLaneRequest WithWord(v1::PrepareLaneRequest request, const v1::LaneWord& word) {
    *request.add_words() = word;
    return request;
  }
  // gelu of 4 floats, whose third argument is a word from -1 to 1; it refuses -1.
  v1::PrepareLaneRequest BoundedCall() const {
    v1::PrepareLaneRequest gelu;
    gelu.mutable_tasks()->set_operator_("gelu");
    gelu.mutable_tasks()->set_count(1);
    for (uint32_t a = 0; a < 2; ++a) {
      v1::BufferColumn& column = *gelu.mutable_tasks()->add_arguments()->mutable_buffer();
      column.add_buffer_ids(buffer_);
      column.add_shape(4);
      if (a == 1) column.add_offsets(2048);
    }
    gelu.mutable_tasks()->add_arguments()->mutable_scalar()->add_i64(0);
    v1::LaneWord::Value& value = *gelu.add_words()->mutable_value();
    value.set_argument(2);
    value.set_min(-1);
    value.set_max(1);
    return gelu;
  }
  // Lets what is submitted wait, until Go.
  static void Hold(TestLane& lane) { lane.Submit(0, {31, ++held_}, 0, kLaneAwait); }
  static void Go(TestLane& lane) { lane.SetStream(31, held_); }
  uint64_t Joined() const {
    return daemon_->Figure("resident_lane_joined_tasks_total{device=\"0\"}");
  }
  uint64_t Submissions(const std::string& result) const {
    return daemon_->Figure("resident_lane_submissions_total{device=\"0\",result=\"" + result +
                           "\"}");
  }

  // In /tmp: Bazel's folder may be too deep for a socket's path.
  const TempFolder folder_{"resident-lanes", "/tmp"};
  const std::string path_ = folder_.path() + "/socket";
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<Client> client_;
  uint64_t buffer_ = 0;
  static inline uint32_t held_ = 0;
};

TEST_F(LanesTest, EachSubmissionOfALonePreparedCallRunsOnceAndIsAnswered) {
  Start();
  const auto lane = OpenLane();
  for (uint64_t i = 0; i < 200; ++i) {
    const LaneEnd end = lane->Call(0, Places(i, 100 + i, 600 + i));
    ASSERT_TRUE(end.ended);
    ASSERT_EQ(end.status, kLaneOk);
    EXPECT_EQ(end.version, 1u);
    EXPECT_GT(end.device_ns, 0u);
  }
  const std::vector<float> floats = Read();
  for (uint64_t i = 0; i < 200; ++i) EXPECT_EQ(floats[600 + i], static_cast<float>(100 + 2 * i));
  EXPECT_EQ(Submissions("ok"), 200u);
  EXPECT_EQ(daemon_->Figure("resident_lanes{device=\"0\"}"), 1u);
}

TEST_F(LanesTest, ManySubmissionsAtOnceGoThroughManyLaps) {
  Start();
  const auto lane = OpenLane(/*slots=*/64);
  constexpr uint64_t kCount = 20'000;
  for (uint64_t i = 0; i < kCount; ++i) lane->Submit(0, Places(i % 100, 100, 200 + 4 * (i % 100)));
  ASSERT_TRUE(Eventually([&] { return lane->completed() == kCount; }));
  for (uint64_t s = kCount - 64; s < kCount; ++s) EXPECT_EQ(lane->Await(s).status, kLaneOk);
  const std::vector<float> floats = Read();
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(floats[200 + 4 * i], static_cast<float>(100 + i));
  EXPECT_EQ(Submissions("ok"), kCount);
}

TEST_F(LanesTest, ASubmissionAfterAllStartsWhenTheEarlierOnesHaveEnded) {
  Start();
  const auto lane = OpenLane(/*slots=*/64);
  // Each adds 1 to the same float: two at the same time would lose one.
  const Counters counters(*client_, 1);
  v1::PrepareLaneRequest count;
  *count.mutable_tasks() = FloatTasks("test.count", counters.buffer(), 0, 1).tasks();
  v1::PrepareLaneResponse prepared;
  const grpc::Status status = lane->Prepare(count, &prepared);
  ASSERT_TRUE(status.ok()) << status.error_message();
  for (int i = 0; i < 2000; ++i) {
    lane->Submit(static_cast<uint16_t>(prepared.call()), {}, kLaneAfterAll);
  }
  ASSERT_TRUE(Eventually([&] { return lane->completed() == 2000; }));
  EXPECT_EQ(counters.value(0), 2000.0f);
}

TEST_F(LanesTest, AQuietSubmissionWritesACompletionOnlyIfItFails) {
  Start();
  const auto lane = OpenLane();
  const uint64_t quiet = lane->Submit(0, Places(0, 0, 600), kLaneQuiet);
  const uint64_t refused = lane->Submit(0, {lane_place(7, 0), 0, 0}, kLaneQuiet);
  EXPECT_EQ(lane->Await(refused).status, kLaneRefused);
  ASSERT_TRUE(Eventually([&] { return lane->completed() == 2; }));
  const auto* completion = reinterpret_cast<lane_completion*>(
      lane->base() + lane_completions_offset(lane->opened().slots()));
  EXPECT_EQ(completion[quiet].head, 0u);
}

TEST_F(LanesTest, EachBadSubmissionIsRefusedWithItsReason) {
  Start();
  const auto lane = OpenLane();
  const uint64_t end = 4 * kFloats;
  struct Case {
    uint16_t call;
    std::vector<uint64_t> words;
    uint8_t flags;
    uint8_t kind;
    uint16_t reason;
    const char* text;
  };
  const uint64_t good = lane_place(0, 0);
  for (const Case& bad : std::vector<Case>{
           {1, {}, 0, kLaneTask, kLaneRefusedCall, "no prepared call 1"},
           {UINT16_MAX, {}, 0, kLaneTask, kLaneRefusedCall, "no prepared call 65535"},
           {0, {}, 0, kLaneRange, kLaneRefusedRange, "a range of 0 tasks"},
           {0, {}, 0, 4, kLaneRefusedKind, "kind 4"},
           {0, {}, 0, 255, kLaneRefusedKind, "kind 255"},
           {0, {good, good, good}, 8, kLaneTask, kLaneRefusedFlags, "unknown bits"},
           {0, {lane_place(1, 0), good, good}, 0, kLaneTask, kLaneRefusedBuffer, "index 1"},
           {0, {good, lane_place(UINT16_MAX, 0), good}, 0, kLaneTask, kLaneRefusedBuffer, "word 1"},
           {0, {good, good, lane_place(0, end - 12)}, 0, kLaneTask, kLaneRefusedBounds, "word 2"},
           {0, {good, good, lane_place(0, end)}, 0, kLaneTask, kLaneRefusedBounds, "exceeds"},
           {0,
            {good, good, UINT64_MAX >> 16 & ~uint64_t{3}},
            0,
            kLaneTask,
            kLaneRefusedBounds,
            "exceeds"},
           {0, {lane_place(0, 2), good, good}, 0, kLaneTask, kLaneRefusedAlignment, "multiple"}}) {
    const LaneEnd refused = lane->Await(lane->Submit(bad.call, bad.words, bad.flags, bad.kind));
    EXPECT_EQ(refused.status, kLaneRefused) << bad.text;
    EXPECT_EQ(refused.detail, bad.reason) << bad.text << ": " << lane->refusal();
    EXPECT_THAT(lane->refusal(), HasSubstr(bad.text));
  }
  // The last tensor that fits.
  EXPECT_EQ(lane->Call(0, {good, good, lane_place(0, end - 16)}).status, kLaneOk);
  EXPECT_EQ(Submissions("refused"), 12u);
  EXPECT_EQ(daemon_->Status().clients(0).lane_refused(), 12u);
}

TEST_F(LanesTest, ValuesAndNumbersOfElementsHaveTheirLimits) {
  Start();
  const auto lane = OpenLane();
  v1::PrepareLaneRequest elements = AddCall(buffer_, 16);
  elements.add_words()->mutable_elements()->set_max(16);
  v1::PrepareLaneResponse response;
  ASSERT_TRUE(lane->Prepare(elements, &response).ok());
  const auto call = static_cast<uint16_t>(response.call());
  const auto run = [&](uint64_t n, uint64_t offset) {
    return lane->Call(call, {lane_place(0, 0), lane_place(0, 0), lane_place(0, offset), n});
  };
  EXPECT_EQ(run(0, 0).detail, kLaneRefusedValue);
  EXPECT_EQ(run(17, 0).detail, kLaneRefusedValue);
  EXPECT_EQ(run(UINT64_MAX, 0).detail, kLaneRefusedValue);
  // Only the elements that there are must fit.
  EXPECT_EQ(run(1, 4 * kFloats - 4).status, kLaneOk);
  EXPECT_EQ(run(2, 4 * kFloats - 4).detail, kLaneRefusedBounds);
  EXPECT_EQ(run(3, 2048).status, kLaneOk);
  EXPECT_EQ(Read()[513], 2.0f);
  EXPECT_EQ(Read()[515], 515.0f);

  ASSERT_TRUE(lane->Prepare(BoundedCall(), &response).ok());
  const auto bounded = static_cast<uint16_t>(response.call());
  EXPECT_EQ(lane->Call(bounded, {1}).status, kLaneOk);
  // The other bytes of the word are ignored.
  EXPECT_EQ(lane->Call(bounded, {uint64_t{77} << 32 | 1}).status, kLaneOk);
  EXPECT_EQ(lane->Call(bounded, {2}).detail, kLaneRefusedValue);
  EXPECT_EQ(lane->Call(bounded, {uint32_t(-2)}).detail, kLaneRefusedValue);
  // Within the limits, and refused by the operator.
  EXPECT_EQ(lane->Call(bounded, {uint32_t(-1)}).status, kLaneInvalidArgument);
}

TEST_F(LanesTest, PrepareRefusesWhatRunRefusesAndWordsThatDoNotFit) {
  Start();
  const auto lane = OpenLane();
  const auto refused = [&](const v1::PrepareLaneRequest& request, StatusCode code,
                           const std::string& text) {
    const grpc::Status status = lane->Prepare(request, nullptr);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  };
  v1::PrepareLaneRequest request = AddCall(buffer_, 4);
  request.mutable_tasks()->set_operator_("ad");
  refused(request, StatusCode::NOT_FOUND, "'add'");
  request = AddCall(buffer_, 4);
  request.mutable_tasks()->set_operator_("flux.run");
  refused(request, StatusCode::INVALID_ARGUMENT, "flux.run");
  request = AddCall(buffer_, 4);
  request.mutable_tasks()->set_count(2);
  refused(request, StatusCode::INVALID_ARGUMENT, "count 2");
  refused(AddCall(buffer_ + 1000, 4), StatusCode::NOT_FOUND, "buffer");
  refused(AddCall(buffer_, kFloats + 1), StatusCode::INVALID_ARGUMENT, "ends beyond buffer");
  request = AddCall(buffer_, 4);
  request.mutable_tasks()->mutable_arguments(0)->mutable_inline_()->set_dtype(v1::DTYPE_F32);
  refused(request, StatusCode::INVALID_ARGUMENT, "inline");
  const auto word = [](auto set) {
    v1::LaneWord word;
    set(word);
    return word;
  };
  refused(WithWord(AddCall(buffer_, 4), v1::LaneWord()), StatusCode::INVALID_ARGUMENT, "word 3");
  refused(WithWord(AddCall(buffer_, 4), word([](auto& w) { w.mutable_place()->set_argument(0); })),
          StatusCode::INVALID_ARGUMENT, "has a word already");
  refused(WithWord(AddCall(buffer_, 4), word([](auto& w) { w.mutable_place()->set_argument(3); })),
          StatusCode::INVALID_ARGUMENT, "scalar, not a tensor");
  refused(WithWord(AddCall(buffer_, 4), word([](auto& w) { w.mutable_value()->set_argument(9); })),
          StatusCode::INVALID_ARGUMENT, "does not exist");
  refused(WithWord(AddCall(buffer_, 4), word([](auto& w) {
                     w.mutable_value()->set_argument(3);
                     w.mutable_value()->set_min(1);
                   })),
          StatusCode::INVALID_ARGUMENT, "floating-point");
  refused(WithWord(AddCall(buffer_, 4), word([](auto& w) { w.mutable_elements()->set_max(5); })),
          StatusCode::INVALID_ARGUMENT, "they must have as many");
  request = AddCall(buffer_, 4);
  for (int i = 0; i < 5; ++i) *request.add_words() = request.words(0);
  refused(request, StatusCode::INVALID_ARGUMENT, "8 words");
  request = AddCall(buffer_, 4);
  request.mutable_tasks()->set_version(9);
  refused(request, StatusCode::NOT_FOUND, "version");
}

TEST_F(LanesTest, ReleasedBuffersAndCallsAreRefusedAndTheirPlacesAreReused) {
  Start();
  const auto lane = OpenLane();
  uint64_t other = 0;
  ASSERT_TRUE(client_->Allocate(16, &other).ok());
  std::vector<uint32_t> indices;
  ASSERT_TRUE(lane->Bind({other, buffer_, other}, &indices).ok());
  EXPECT_EQ(indices, (std::vector<uint32_t>{1, 0, 1}));
  ASSERT_TRUE(lane->Release({1}, {}).ok());
  EXPECT_EQ(lane->Call(0, {lane_place(1, 0), 0, 0}).detail, kLaneRefusedBuffer);
  EXPECT_EQ(lane->Release({1}, {}).error_code(), StatusCode::NOT_FOUND);
  ASSERT_TRUE(lane->Bind({other}, &indices).ok());
  EXPECT_EQ(indices, std::vector<uint32_t>{1});
  // A buffer that is freed stays allocated while it is bound.
  v1::FreeRequest free;
  free.set_buffer_id(other);
  v1::FreeResponse freed;
  ASSERT_TRUE(client_->buffers().Free(client_->Context().get(), free, &freed).ok());
  EXPECT_EQ(lane->Call(0, {0, 0, lane_place(1, 0)}).status, kLaneOk);

  ASSERT_TRUE(lane->Release({}, {0}).ok());
  EXPECT_EQ(lane->Call(0, Places(0, 0, 0)).detail, kLaneRefusedCall);
  v1::PrepareLaneResponse prepared;
  ASSERT_TRUE(lane->Prepare(AddCall(buffer_, 4), &prepared).ok());
  EXPECT_EQ(prepared.call(), 0u);
  EXPECT_EQ(lane->Call(0, Places(0, 0, 0)).status, kLaneOk);
}

TEST_F(LanesTest, ADeadlineThatHasPassedAndACancelledSubmissionDoNotRun) {
  Start();
  const auto lane = OpenLane();
  std::vector<uint64_t> words = Places(0, 0, 600);
  words.resize(7);
  words[6] = 1;  // A nanosecond after the machine's start.
  EXPECT_EQ(lane->Call(0, words, kLaneDeadline).status, kLaneDeadlineExceeded);
  words[6] = UINT64_MAX;
  EXPECT_EQ(lane->Call(0, words, kLaneDeadline).status, kLaneOk);

  lane->CancelBelow(lane->next() + 2);
  EXPECT_EQ(lane->Call(0, Places(0, 0, 700)).status, kLaneCancelled);
  EXPECT_EQ(lane->Call(0, Places(0, 0, 700)).status, kLaneCancelled);
  EXPECT_EQ(lane->Call(0, Places(0, 0, 704)).status, kLaneOk);
  EXPECT_EQ(Read()[701], 701.0f);
  EXPECT_EQ(Submissions("cancelled"), 2u);
}

TEST_F(LanesTest, AClientThatIsAsleepIsWokenByOneByteAndADaemonTooIsAsleep) {
  Start({"--lane_spin_us=0"});
  const auto lane = OpenLane();
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(Eventually([&] { return lane->asleep(); }));
    ASSERT_EQ(lane->Call(0, Places(0, 0, 600)).status, kLaneOk);
  }
  EXPECT_GE(daemon_->Figure("resident_lane_wakeups_total{device=\"0\"}"), 50u);
}

TEST_F(LanesTest, ATokenIsValidOnceAndOnlyWithoutADescriptor) {
  Start();
  TestLane lane(*daemon_, *client_);
  ASSERT_TRUE(lane.Open().ok());
  const int memory = NewMemory(4096, true);
  const LocalAnswer with = PassDescriptors(path_, "residln1" + lane.opened().token(), {memory});
  EXPECT_EQ(with.code, StatusCode::INVALID_ARGUMENT);
  close(memory);
  EXPECT_EQ(PassDescriptors(path_, "residln1" + std::string(32, '0'), {}).code,
            StatusCode::NOT_FOUND);
  ASSERT_TRUE(lane.Attach(path_)) << lane.attach_error();
  EXPECT_EQ(PassDescriptors(path_, "residln1" + lane.opened().token(), {}).code,
            StatusCode::NOT_FOUND);
}

TEST_F(LanesTest, OpenHasItsLimits) {
  Start({"--max_lanes=8", "--max_queued_tasks=4096"});
  const auto refused = [&](uint32_t slots, uint64_t data, uint32_t device) {
    TestLane lane(*daemon_, *client_);
    return lane.Open(slots, data, device);
  };
  EXPECT_EQ(refused(65, 0, 0).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused(32, 0, 0).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused(1u << 17, 0, 0).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused(64, 1, 0).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused(64, 65u << 20, 0).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused(64, 0, 99).error_code(), StatusCode::NOT_FOUND);
  {
    // The client's queue has 4,096 places, and a lane holds as many as it has slots.
    TestLane all(*daemon_, *client_);
    ASSERT_TRUE(all.Open(4096).ok());
    const grpc::Status second = refused(64, 0, 0);
    EXPECT_EQ(second.error_code(), StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(second.error_message(), HasSubstr("--max_queued_tasks"));
    EXPECT_EQ(client_->Run(SmallAdd()).call.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  }
  // They are free again when the lane has ended.
  ASSERT_TRUE(Eventually([&] { return client_->Run(SmallAdd()).all_ok(); }));
  std::vector<std::unique_ptr<TestLane>> lanes;
  grpc::Status status;
  while (status.ok() && lanes.size() < 9) {
    lanes.push_back(std::make_unique<TestLane>(*daemon_, *client_));
    status = lanes.back()->Open(64);
  }
  // One of eight is kept for callers that have none.
  EXPECT_EQ(lanes.size(), 8u);
  EXPECT_THAT(status.error_message(), HasSubstr("--max_lanes"));
}

TEST_F(LanesTest, LanesAreOffWithoutALocalSocketOrWithoutPlaces) {
  daemon_ = std::make_unique<Daemon>(std::vector<std::string>{});
  client_ = std::make_unique<Client>(*daemon_);
  TestLane without(*daemon_, *client_);
  const grpc::Status status = without.Open();
  EXPECT_EQ(status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("--local_address"));
  Start({"--max_lanes=0"});
  TestLane none(*daemon_, *client_);
  EXPECT_EQ(none.Open().error_code(), StatusCode::FAILED_PRECONDITION);
}

TEST_F(LanesTest, ALaneOfAnotherSessionIsUnknown) {
  Start();
  const auto lane = OpenLane();
  const Client other(*daemon_);
  const auto stub = v1::Lanes::NewStub(daemon_->Connect());
  v1::BindLaneRequest bind;
  bind.set_lane_id(lane->opened().lane_id());
  bind.add_buffer_ids(buffer_);
  v1::BindLaneResponse bound;
  EXPECT_EQ(stub->Bind(other.Context().get(), bind, &bound).error_code(), StatusCode::NOT_FOUND);
  // A buffer of another session cannot be bound.
  uint64_t foreign = 0;
  ASSERT_TRUE(other.Allocate(4, &foreign).ok());
  EXPECT_EQ(lane->Bind({foreign}, nullptr).error_code(), StatusCode::NOT_FOUND);
}

TEST_F(LanesTest, TooManyRefusalsCloseTheLane) {
  Start();
  const auto lane = OpenLane(/*slots=*/4096);
  for (int i = 0; i < 3000; ++i) lane->Submit(9, {});
  const grpc::Status end = lane->Finish();
  EXPECT_EQ(end.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(end.error_message(), HasSubstr("no prepared call 9"));
  EXPECT_EQ(lane->state(), uint32_t{kLaneClosed});
  EXPECT_EQ(OpenLane()->Call(0, Places(0, 0, 0)).status, kLaneOk);
}

TEST_F(LanesTest, AClientThatReleasesPagesAgainAndAgainLosesItsLane) {
  Start();
  TestLane lane(*daemon_, *client_);
  ASSERT_TRUE(lane.Open(/*slots=*/65536).ok());
  // Attached by hand, because the descriptor is needed.
  const int socket = ConnectLocal(path_);
  ASSERT_TRUE(SendLocal(socket, std::string(kLaneMagic) + lane.opened().token(), {}));
  alignas(lane_welcome) char packet[64];
  DescriptorMessage received;
  ASSERT_EQ(ReceiveDescriptorMessage(socket, packet, sizeof(packet), 0, &received),
            static_cast<ssize_t>(sizeof(lane_welcome)));
  const int memory = received.fds[0].get();
  EXPECT_EQ(ftruncate(memory, 4096), -1);  // Sealed.
  auto* const base = static_cast<uint8_t*>(
      mmap(nullptr, lane.opened().memory_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0));
  ASSERT_NE(base, MAP_FAILED);
  const auto* const page = reinterpret_cast<lane_daemon_page*>(base + kLanePageBytes);
  auto* const slots = reinterpret_cast<lane_slot*>(base + lane_slots_offset());
  uint64_t sequence = 0;
  // Each visit finds a page that is gone.
  ASSERT_TRUE(Eventually([&] {
    for (int i = 0; i < 20 && __atomic_load_n(&page->state, __ATOMIC_ACQUIRE) == kLaneOpen; ++i) {
      lane_slot& slot = slots[sequence % 65536];
      __atomic_store_n(&slot.head, lane_slot_head(sequence, 0, kLaneTask, 0), __ATOMIC_RELEASE);
      ++sequence;
      (void)!send(socket, "r", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
      fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(lane_slots_offset()), 65536 * 80);
    }
    return __atomic_load_n(&page->state, __ATOMIC_ACQUIRE) == kLaneClosed;
  }));
  close(socket);
  EXPECT_TRUE(client_->Run(SmallAdd()).all_ok());
}

TEST_F(LanesTest, AFloodOfDoorbellsDoesNotDelayOthers) {
  Start();
  const auto lane = OpenLane();
  ASSERT_TRUE(Eventually([&] { return lane->asleep(); }));
  for (int i = 0; i < 100'000; ++i) lane->Ring();
  EXPECT_TRUE(client_->Run(SmallAdd()).all_ok());
  EXPECT_EQ(lane->Call(0, Places(0, 0, 0)).status, kLaneOk);
}

// The child of a client that attaches to a lane, submits and is killed: only system calls, because
// the parent has threads.
void RunChild(const std::string& path, const std::string& token, uint64_t memory_bytes,
              uint32_t slots, int ready) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) _exit(1);
  char hello[64];
  memcpy(hello, kLaneMagic, 8);
  memcpy(hello + 8, token.data(), token.size());
  if (send(connection, hello, 8 + token.size(), 0) < 0) _exit(2);
  char packet[64];
  iovec payload{packet, sizeof(packet)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message = {};
  message.msg_iov = &payload;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(connection, &message, 0) != sizeof(lane_welcome)) _exit(3);
  int fd = -1;
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
  auto* const base =
      static_cast<uint8_t*>(mmap(nullptr, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  if (base == MAP_FAILED) _exit(4);
  auto* const all = reinterpret_cast<lane_slot*>(base + lane_slots_offset());
  const auto* const page = reinterpret_cast<lane_daemon_page*>(base + kLanePageBytes);
  for (uint64_t s = 0;; ++s) {
    while (s - __atomic_load_n(&page->completed, __ATOMIC_ACQUIRE) >= slots) {
    }
    lane_slot& slot = all[s % slots];
    for (uint64_t w = 0; w < 3; ++w) {
      __atomic_store_n(&slot.words[w], lane_place(0, 16 * (w + s % 50)), __ATOMIC_RELAXED);
    }
    __atomic_store_n(&slot.head, lane_slot_head(s, 0, kLaneTask, 0), __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&page->asleep, __ATOMIC_RELAXED) != 0) {
      (void)!send(connection, "r", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (s == 100) (void)!write(ready, "x", 1);
  }
}

TEST_F(LanesTest, AClientThatIsKilledLeavesNothing) {
  Start();
  (void)OpenLane();
  ASSERT_TRUE(Eventually([&] { return daemon_->Figure("resident_lanes{device=\"0\"}") == 0; }));
  const size_t descriptors = daemon_->Descriptors();
  for (int i = 0; i < 20; ++i) {
    TestLane lane(*daemon_, *client_);
    ASSERT_TRUE(lane.Open(256).ok());
    ASSERT_TRUE(lane.Bind({buffer_}, nullptr).ok());
    ASSERT_TRUE(lane.Prepare(AddCall(buffer_, 4), nullptr).ok());
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      RunChild(path_, lane.opened().token(), lane.opened().memory_bytes(), 256, ready[1]);
    }
    close(ready[1]);
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    kill(child, SIGKILL);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    // The end of the socket ends the lane and its stream.
    EXPECT_TRUE(lane.Finish().ok());
  }
  EXPECT_TRUE(Eventually([&] { return daemon_->Device().ring().in_flight() == 0; }));
  EXPECT_TRUE(Eventually([&] { return daemon_->Descriptors() <= descriptors; }));
  EXPECT_EQ(daemon_->Figure("resident_lanes{device=\"0\"}"), 0u);
  EXPECT_EQ(OpenLane()->Call(0, Places(0, 0, 0)).status, kLaneOk);
  EXPECT_EQ(Submissions("failed"), 0u);
}

TEST_F(LanesTest, ALaneEndsWithItsStreamAndWithItsSession) {
  Start();
  auto lane = OpenLane();
  lane->Cancel();
  EXPECT_TRUE(Eventually([&] { return lane->state() == kLaneClosed; }));
  const auto second = OpenLane();
  client_.reset();
  EXPECT_TRUE(Eventually([&] { return second->state() == kLaneClosed; }));
}

TEST_F(LanesTest, AfterTheEngineWasReplacedLostBuffersAreRefusedAndBoundAgain) {
  Start();
  const auto lane = OpenLane();
  ASSERT_EQ(lane->Call(0, Places(0, 0, 0)).status, kLaneOk);
  const Counters shared(*client_, 16);
  std::vector<uint32_t> indices;
  ASSERT_TRUE(lane->Bind({shared.buffer()}, &indices).ok());
  v1::PrepareLaneRequest count;
  *count.mutable_tasks() = FloatTasks("test.count", shared.buffer(), 0, 1).tasks();
  v1::PrepareLaneResponse fixed;
  ASSERT_TRUE(lane->Prepare(count, &fixed).ok());
  count.add_words()->mutable_place()->set_argument(0);
  v1::PrepareLaneResponse moving;
  ASSERT_TRUE(lane->Prepare(count, &moving).ok());

  const pid_t engine = daemon_->engine_pid();
  kill(engine, SIGKILL);
  ASSERT_TRUE(daemon_->AwaitAnotherEngine(engine));
  // Submissions wait until the lane has moved to the new engine.
  EXPECT_EQ(lane->Call(0, Places(0, 0, 0)).detail, kLaneRefusedLostBuffer);
  // A client's own memory is mapped again.
  EXPECT_EQ(lane->Call(static_cast<uint16_t>(fixed.call()), {}).status, kLaneOk);
  EXPECT_EQ(lane->Call(static_cast<uint16_t>(moving.call()), {lane_place(1, 4)}).status, kLaneOk);
  EXPECT_EQ(shared.value(0), 1.0f);
  EXPECT_EQ(shared.value(1), 1.0f);
  uint64_t other = 0;
  ASSERT_TRUE(client_->Allocate(kFloats, &other).ok());
  ASSERT_TRUE(lane->Bind({other}, &indices).ok());
  const uint64_t place = lane_place(static_cast<uint16_t>(indices[0]), 0);
  EXPECT_EQ(lane->Call(0, {place, place, place}).status, kLaneOk);
}

TEST_F(LanesTest, EngineLossUnderLoadAnswersEverySubmissionOnce) {
  Start();
  const auto lane = OpenLane(/*slots=*/1024);
  // In memory of this process, which is mapped into each engine.
  const Counters counters(*client_, 1);
  v1::PrepareLaneRequest count;
  *count.mutable_tasks() = FloatTasks("test.count", counters.buffer(), 0, 1).tasks();
  v1::PrepareLaneResponse prepared;
  ASSERT_TRUE(lane->Prepare(count, &prepared).ok());
  uint64_t ran = 0;
  uint64_t unsure = 0;
  for (int round = 0; round < 3; ++round) {
    const pid_t engine = daemon_->engine_pid();
    const uint64_t first = lane->next();
    for (int i = 0; i < 1000; ++i) {
      if (i == 500) kill(engine, SIGKILL);
      lane->Submit(static_cast<uint16_t>(prepared.call()), {}, kLaneAfterAll);
    }
    ASSERT_TRUE(Eventually([&] { return lane->completed() == lane->next(); }));
    for (uint64_t s = first; s < lane->next(); ++s) {
      const LaneEnd end = lane->Await(s);
      ASSERT_TRUE(end.ended);
      if (end.status == kLaneOk) {
        ++ran;
      } else {
        EXPECT_TRUE(end.status == kLaneUnavailable || end.status == kLaneAborted)
            << int{end.status} << " " << lane->refusal();
        unsure += (end.flags & kLaneMayHaveRun) != 0;
      }
    }
    ASSERT_TRUE(daemon_->AwaitAnotherEngine(engine));
  }
  EXPECT_GE(counters.value(0), static_cast<float>(ran));
  EXPECT_LE(counters.value(0), static_cast<float>(ran + unsure));
}

TEST_F(LanesTest, ADrainRefusesWhatWasNotReadAndWaitsForWhatWasTaken) {
  Start();
  const auto lane = OpenLane();
  ASSERT_EQ(lane->Call(0, Places(0, 0, 0)).status, kLaneOk);
  daemon_->Kill(SIGTERM);
  ASSERT_TRUE(Eventually([&] { return lane->state() != kLaneOpen; }));
  const uint64_t s = lane->Submit(0, Places(0, 0, 0));
  const LaneEnd end = lane->Await(s);
  if (end.ended) {
    EXPECT_EQ(end.status, kLaneUnavailable);
    EXPECT_EQ(end.flags & kLaneMayHaveRun, 0);
  }
  EXPECT_TRUE(Eventually([&] { return lane->state() == kLaneClosed; }));
  EXPECT_TRUE(daemon_->Wait().has_value());
}

TEST_F(LanesTest, ALaneIsServedAfterTheDeviceWasParked) {
  Start({"--park_after=100ms"});
  const auto lane = OpenLane();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(lane->Call(0, Places(0, 0, 0)).status, kLaneOk);
    ASSERT_TRUE(Eventually(
        [&] { return daemon_->Device().state() == v1::DeviceStatus::STATE_IDLE_PARKED; }));
  }
  EXPECT_EQ(lane->Call(0, Places(0, 0, 0)).status, kLaneOk);
}

TEST_F(LanesTest, SixteenLanesOfASessionAllWork) {
  Start({"--max_lanes=32"});
  std::vector<std::unique_ptr<TestLane>> lanes;
  for (int i = 0; i < 16; ++i) lanes.push_back(OpenLane(64));
  TestLane more(*daemon_, *client_);
  EXPECT_THAT(more.Open(64).error_message(), HasSubstr("16 open lanes"));
  for (int round = 0; round < 200; ++round) {
    for (const auto& lane : lanes) lane->Submit(0, Places(0, 4, 8));
  }
  for (const auto& lane : lanes) {
    EXPECT_TRUE(Eventually([&] { return lane->completed() == 200; }));
  }
}

// --- Joined submissions, ranges, awaits and signals
// -----------------------------------------------

TEST_F(LanesTest, SubmissionsThatWaitAreJoinedAndEachIsAnswered) {
  Start();
  const auto lane = OpenLane();
  v1::PrepareLaneResponse bounded;
  ASSERT_TRUE(lane->Prepare(BoundedCall(), &bounded).ok());
  EXPECT_TRUE(bounded.joins());
  v1::PrepareLaneRequest timed = AddCall(buffer_, 4);
  timed.set_task_times(true);
  v1::PrepareLaneResponse single;
  ASSERT_TRUE(lane->Prepare(timed, &single).ok());
  EXPECT_FALSE(single.joins());

  Hold(*lane);
  const uint64_t first = lane->next();
  for (uint64_t i = 0; i < 700; ++i) {
    lane->Submit(0, Places(i % 100, 100, 200 + 4 * (i % 200)), i % 3 == 0 ? kLaneQuiet : 0);
  }
  Go(*lane);
  ASSERT_TRUE(Eventually([&] { return lane->completed() == lane->next(); }));
  // 512 in one range; the others are too few for one.
  EXPECT_EQ(Joined(), 512u);
  for (uint64_t i = 0; i < 700; ++i) {
    if (i % 3 == 0) continue;
    const LaneEnd end = lane->Await(first + i);
    EXPECT_EQ(end.status, kLaneOk);
    EXPECT_EQ(end.flags, i < 512 ? kLaneJoined : 0) << i;
    EXPECT_EQ(end.version, 1u);
    EXPECT_GT(end.device_ns, 0u);
  }
  const std::vector<float> floats = Read();
  for (uint64_t i = 0; i < 200; ++i) {
    for (uint64_t j = 0; j < 4; ++j) {
      EXPECT_EQ(floats[200 + 4 * i + j], static_cast<float>(i % 100 + 100 + 2 * j)) << i;
    }
  }

  // One of them is refused by the operator.
  Hold(*lane);
  const uint64_t values = lane->next();
  const auto call = static_cast<uint16_t>(bounded.call());
  for (uint64_t i = 0; i < 300; ++i) lane->Submit(call, {i == 77 ? uint32_t(-1) : i % 2});
  Go(*lane);
  for (uint64_t i = 0; i < 300; ++i) {
    const LaneEnd end = lane->Await(values + i);
    EXPECT_EQ(end.status, i == 77 ? kLaneInvalidArgument : kLaneOk) << i;
    EXPECT_EQ(end.flags, kLaneJoined) << i;
  }
  EXPECT_EQ(Joined(), 812u);

  // With a time of their own, and of several calls: one by one.
  Hold(*lane);
  const uint64_t rest = lane->next();
  for (uint64_t i = 0; i < 300; ++i) {
    lane->Submit(static_cast<uint16_t>(single.call()), Places(0, 0, 600));
  }
  for (uint64_t i = 0; i < 300; ++i) {
    lane->Submit(i == 100 ? call : 0, i == 100 ? std::vector<uint64_t>{1} : Places(0, 0, 600));
  }
  Go(*lane);
  for (uint64_t i = 0; i < 600; ++i) {
    const LaneEnd end = lane->Await(rest + i);
    EXPECT_EQ(end.status, kLaneOk) << i;
    EXPECT_EQ(end.flags, 0) << i;
  }
  EXPECT_EQ(Joined(), 812u);
  EXPECT_EQ(Submissions("failed"), 1u);
}

TEST_F(LanesTest, ABadSubmissionAmongManyThatWaitIsRefusedAlone) {
  Start();
  const auto lane = OpenLane();
  Hold(*lane);
  const uint64_t first = lane->next();
  for (uint64_t i = 0; i < 600; ++i) {
    lane->Submit(0, i == 280 ? Places(0, 0, kFloats) : Places(0, 0, 600));
  }
  Go(*lane);
  for (uint64_t i = 0; i < 600; ++i) {
    const LaneEnd end = lane->Await(first + i);
    EXPECT_EQ(end.status, i == 280 ? kLaneRefused : kLaneOk) << i;
  }
  EXPECT_EQ(Joined(), 280u + 319u);
}

TEST_F(LanesTest, ARangeIsOneSubmissionOfManyTasks) {
  Start();
  const auto lane = OpenLane(0, 64 << 10);
  auto* const records = reinterpret_cast<lane_range_column*>(lane->data());
  uint64_t* const values = lane->data() + 64;
  // Task i: out[600 + 4 * i ...] = x[i ...] + y[values[i] ...].
  const auto fill = [&] {
    for (uint64_t i = 0; i < 100; ++i) values[i] = lane_place(0, 4 * (i % 7));
    records[0] = {lane_place(0, 0), 4, 0};
    records[1] = {0, 0, 64 * 8};
    records[2] = {lane_place(0, 4 * 600), 16, 0};
  };
  fill();
  const LaneEnd end = lane->Await(lane->Submit(0, {100, 0}, 0, kLaneRange));
  ASSERT_EQ(end.status, kLaneOk) << lane->refusal();
  EXPECT_EQ(end.detail, 0);
  EXPECT_EQ(end.version, 1u);
  EXPECT_GT(end.device_ns, 0u);
  const std::vector<float> floats = Read();
  for (uint64_t i = 0; i < 100; ++i) {
    for (uint64_t j = 0; j < 4; ++j) {
      EXPECT_EQ(floats[600 + 4 * i + j], static_cast<float>(i + i % 7 + 2 * j)) << i;
    }
  }
  EXPECT_EQ(Submissions("ok"), 1u);

  struct Case {
    const char* text;
    std::function<void()> spoil;
    uint16_t reason;
    uint64_t count = 100;
    uint64_t records = 0;
    uint8_t flags = 0;
  };
  const uint64_t size = 4 * kFloats;
  for (const Case& bad : std::vector<Case>{
           {"a range of 0 tasks", [] {}, kLaneRefusedRange, 0},
           {"--max_batch_tasks", [] {}, kLaneRefusedRange, UINT64_MAX},
           {"records at the offset 65536", [] {}, kLaneRefusedRange, 100, 65536},
           {"records at the offset 4", [] {}, kLaneRefusedRange, 100, 4},
           {"records at the offset 184", [] {}, kLaneRefusedRange, 100, UINT64_MAX - 7},
           {"unknown bits", [] {}, kLaneRefusedFlags, 100, 0, kLaneDeadline},
           {"has a base", [&] { records[1].base = 8; }, kLaneRefusedRange},
           {"100 values at the offset 65528", [&] { records[1].values = 65528; },
            kLaneRefusedRange},
           {"100 values at the offset 513", [&] { records[1].values = 513; }, kLaneRefusedRange},
           {"100 values at the offset 184", [&] { records[1].values = UINT64_MAX - 7; },
            kLaneRefusedRange},
           {"task 42 of the range", [&] { values[42] = lane_place(0, size); }, kLaneRefusedBounds},
           {"task 99 of the range", [&] { values[99] = lane_place(1, 0); }, kLaneRefusedBuffer},
           {"task 0 of the range", [&] { values[0] = lane_place(0, 2); }, kLaneRefusedAlignment},
           {"task 99 of the range", [&] { records[2].stride = 20; }, kLaneRefusedBounds},
           {"task 1 of the range", [&] { records[2].stride = 2; }, kLaneRefusedAlignment},
           {"not all in one buffer", [&] { records[2].stride = uint64_t{1} << 47; },
            kLaneRefusedRange},
           {"not all in one buffer", [&] { records[2].stride = -uint64_t{32}; }, kLaneRefusedRange},
           {"not all in one buffer", [&] { records[2].stride = uint64_t{1} << 63; },
            kLaneRefusedRange}}) {
    fill();
    bad.spoil();
    const LaneEnd refused =
        lane->Await(lane->Submit(0, {bad.count, bad.records}, bad.flags, kLaneRange));
    EXPECT_EQ(refused.status, kLaneRefused) << bad.text;
    EXPECT_EQ(refused.detail, bad.reason) << bad.text << ": " << lane->refusal();
    EXPECT_THAT(lane->refusal(), HasSubstr(bad.text));
  }
  // Nothing of them ran, and the lane goes on.
  EXPECT_EQ(Read(), floats);
  fill();
  records[2] = {lane_place(0, 4 * 1020), -uint64_t{16}, 0};
  EXPECT_EQ(lane->Await(lane->Submit(0, {100, 0}, 0, kLaneRange)).status, kLaneOk)
      << lane->refusal();
}

TEST_F(LanesTest, TheCompletionOfARangeSaysHowManyTasksFailed) {
  Start();
  const auto lane = OpenLane(0, 64 << 10);
  v1::PrepareLaneResponse bounded;
  ASSERT_TRUE(lane->Prepare(BoundedCall(), &bounded).ok());
  const auto call = static_cast<uint16_t>(bounded.call());
  auto* const records = reinterpret_cast<lane_range_column*>(lane->data());
  uint64_t* const values = lane->data() + 64;
  records[0] = {0, 0, 64 * 8};
  for (uint64_t i = 0; i < 50; ++i) values[i] = i % 10 == 3 ? uint32_t(-1) : 1;
  const LaneEnd failed = lane->Await(lane->Submit(call, {50, 0}, 0, kLaneRange));
  EXPECT_EQ(failed.status, kLaneInvalidArgument) << lane->refusal();
  EXPECT_EQ(failed.detail, 5);
  // A bounded value is checked for each task, also by stride.
  records[0] = {0, 1, 0};
  EXPECT_EQ(lane->Await(lane->Submit(call, {2, 0}, 0, kLaneRange)).status, kLaneOk);
  EXPECT_EQ(lane->Await(lane->Submit(call, {3, 0}, 0, kLaneRange)).detail, kLaneRefusedValue);
  EXPECT_THAT(lane->refusal(), HasSubstr("task 2 of the range"));
  lane->Submit(0, {0, 1}, 0, kLaneSignal);
  ASSERT_TRUE(Eventually([&] { return lane->signalled(0) == 1; }));
  EXPECT_EQ(lane->failed(0), 6u);  // A refused range counts as one.
}

TEST_F(LanesTest, ARangeThatDoesNotFitIsReadWithATicketOfItsOwn) {
  Start();
  constexpr uint32_t kTasks = 20'000;
  const auto lane = OpenLane(/*slots=*/64, 1 << 20);
  const Counters counters(*client_, kTasks);
  v1::PrepareLaneRequest count;
  *count.mutable_tasks() = FloatTasks("test.count", counters.buffer(), 0, 1).tasks();
  count.add_words()->mutable_place()->set_argument(0);
  v1::PrepareLaneResponse prepared;
  ASSERT_TRUE(lane->Prepare(count, &prepared).ok());
  std::vector<uint32_t> indices;
  ASSERT_TRUE(lane->Bind({counters.buffer()}, &indices).ok());
  const auto call = static_cast<uint16_t>(prepared.call());
  auto* const records = reinterpret_cast<lane_range_column*>(lane->data());
  uint64_t* const values = lane->data() + 8;
  for (uint64_t i = 0; i < kTasks; ++i) {
    values[i] = lane_place(static_cast<uint16_t>(indices[0]), 4 * (i * 7 % kTasks));
  }
  records[0] = {0, 0, 64};
  for (int round = 1; round <= 3; ++round) {
    lane->Submit(call, {kTasks, 0}, kLaneAfterAll, kLaneRange);
    const LaneEnd after = lane->Call(0, Places(0, 0, 600), kLaneAfterAll);
    EXPECT_EQ(after.status, kLaneOk);
    for (uint32_t i = 0; i < kTasks; ++i) {
      ASSERT_EQ(counters.value(i), static_cast<float>(round)) << i;
    }
  }
  values[kTasks - 1] = lane_place(9, 0);
  EXPECT_EQ(lane->Await(lane->Submit(call, {kTasks, 0}, 0, kLaneRange)).detail, kLaneRefusedBuffer);
  EXPECT_THAT(lane->refusal(), HasSubstr("task 19999 of the range"));
  EXPECT_EQ(daemon_->Status().clients(0).queued_tasks(), 0u);
}

TEST_F(LanesTest, ARangeThatNeverFitsIsRefused) {
  Start({"--max_queued_tasks=4096"});
  const auto lane = OpenLane(/*slots=*/1024, 1 << 20);
  auto* const records = reinterpret_cast<lane_range_column*>(lane->data());
  for (int w = 0; w < 3; ++w) records[w] = {lane_place(0, 0), 0, 0};
  const LaneEnd refused = lane->Await(lane->Submit(0, {5000, 0}, 0, kLaneRange));
  EXPECT_EQ(refused.detail, kLaneRefusedRange);
  EXPECT_THAT(lane->refusal(), HasSubstr("--max_queued_tasks"));
  EXPECT_EQ(lane->Call(0, Places(0, 0, 600)).status, kLaneOk);
}

TEST_F(LanesTest, WhatFollowsAnAwaitIsNotReadBeforeItsWord) {
  Start();
  const auto lane = OpenLane();
  for (const bool ring : {true, false}) {
    const uint32_t value = ring ? 1 : 2;
    const uint64_t await = lane->Submit(0, {3, value}, 0, kLaneAwait);
    const uint64_t task = lane->Submit(0, Places(0, 0, 600));
    ASSERT_TRUE(Eventually([&] { return lane->asleep(); }));
    EXPECT_EQ(lane->completed(), await);
    // A device writes the word and does not ring.
    lane->SetStream(3, value, ring);
    EXPECT_EQ(lane->Await(task).status, kLaneOk);
    EXPECT_EQ(lane->Await(await).status, kLaneOk);
  }
  // A later value will do, also beyond 2^31.
  lane->SetStream(4, UINT32_MAX);
  lane->SetStream(4, 5);
  EXPECT_EQ(lane->Await(lane->Submit(0, {4, UINT32_MAX}, 0, kLaneAwait)).status, kLaneOk);
  // What waits behind one that never comes can be cancelled.
  const uint64_t never = lane->Submit(0, {4, 6}, 0, kLaneAwait);
  const uint64_t behind = lane->Submit(0, Places(0, 0, 600));
  ASSERT_TRUE(Eventually([&] { return lane->asleep(); }));
  lane->CancelBelow(behind + 1);
  EXPECT_EQ(lane->Await(never).status, kLaneCancelled);
  EXPECT_EQ(lane->Await(behind).status, kLaneCancelled);
  EXPECT_EQ(lane->Await(lane->Submit(0, {32, 0}, 0, kLaneAwait)).detail, kLaneRefusedStream);
  EXPECT_EQ(lane->Await(lane->Submit(0, {UINT64_MAX, 0}, 0, kLaneSignal)).detail,
            kLaneRefusedStream);
  EXPECT_EQ(lane->Await(lane->Submit(0, {1, 0}, kLaneQuiet, kLaneSignal)).detail,
            kLaneRefusedFlags);
  EXPECT_EQ(lane->Await(lane->Submit(1, {1, 0}, 0, kLaneSignal)).detail, kLaneRefusedCall);
}

TEST_F(LanesTest, ASignalFollowsEverythingBeforeItAndCountsWhatFailed) {
  Start();
  const auto lane = OpenLane(/*slots=*/64);
  const Counters counters(*client_, 1);
  v1::PrepareLaneRequest count;
  *count.mutable_tasks() = FloatTasks("test.count", counters.buffer(), 0, 1).tasks();
  v1::PrepareLaneResponse prepared;
  ASSERT_TRUE(lane->Prepare(count, &prepared).ok());
  const auto call = static_cast<uint16_t>(prepared.call());
  for (uint32_t i = 1; i <= 500; ++i) {
    lane->Submit(call, {}, kLaneAfterAll);
    if (i % 100 == 0) lane->Submit(0, Places(0, 0, kFloats));  // Refused.
    lane->Submit(0, {7, i}, 0, kLaneSignal);
    if (i % 50 != 0) continue;
    ASSERT_TRUE(Eventually([&] { return lane->signalled(7) == i; }));
    EXPECT_EQ(counters.value(0), static_cast<float>(i));
    EXPECT_EQ(lane->failed(7), i / 100);
  }
  ASSERT_TRUE(Eventually([&] { return lane->completed() == lane->next(); }));

  // Also of what ends with its engine.
  lane->Submit(0, {6, 0}, 0, kLaneSignal);
  const pid_t engine = daemon_->engine_pid();
  for (int i = 0; i < 60; ++i) {
    if (i == 30) kill(engine, SIGKILL);
    lane->Submit(call, {}, kLaneAfterAll);
  }
  lane->Submit(0, {6, 1}, 0, kLaneSignal);
  ASSERT_TRUE(Eventually([&] { return lane->signalled(6) == 1; }));
  EXPECT_TRUE(daemon_->AwaitAnotherEngine(engine));
}

}  // namespace
}  // namespace resident::testing
