// Local lanes with a real daemon: results, versions, refusals, and the ends of the client, the
// daemon and the engine. client/lane/residentd_lane_test.cc tests the C library alone.
//
// RESIDENT_TEST_LANE_SCALE multiplies the counts (default 1; 500: a million lone calls, 5,000
// killed clients).
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/lane.h"
#include "client/lane/fake_daemon.h"
#include "client/operators.h"
#include "client/residentd_client.h"
#include "client/shared_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/daemon.h"
#include "tests/lanes/fake_cuda.h"
#include "tests/support/eventually.h"
#include "tests/support/lane_tests.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

using client::Lane;
using client::LaneCall;
using client::PlaceIn;
using client::PlacesIn;
using client::Varying;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr uint64_t kN = 64;

// Memory of this process that is a buffer of the daemon.
struct Shared {
  Shared(client::Client& client, uint64_t floats)
      : memory(Must(client::SharedMemory::Create(floats * sizeof(float)))),
        buffer(Must(client.ImportShared<float>(memory.fd(), {floats}, {.device = 0}))) {}
  float* data() { return memory.As<float>().data(); }

  client::SharedMemory memory;
  client::Buffer<float> buffer;
};

class LaneClientTest : public ::testing::Test {
 protected:
  std::vector<std::string> Flags(std::vector<std::string> more = {}) const {
    more.push_back("--local_address=" + folder_.path() + "/local");
    return more;
  }
  static std::unique_ptr<client::Client> Connect(const Daemon& daemon) {
    return Must(client::Client::Connect(daemon.address()));
  }
  // An add of kN elements whose three tensors move, with scalar 2.
  static LaneCall PrepareAdd(Lane& lane, const client::BufferHandle& x,
                             const client::BufferHandle& y, const client::BufferHandle& out) {
    client::TaskBatch add("add");
    const client::View view{.shape = {kN}};
    add.Use(x, view).Use(y, view).Use(out, view).Scalar(2);
    return Must(lane.Prepare(add, {Varying::Place(0), Varying::Place(1), Varying::Place(2)}));
  }

  const TempFolder folder_{"lanes", "/tmp"};
};

// Results of one call after the other are those of its own inputs.
TEST_F(LaneClientTest, LoneCallsAreEachChecked) {
  const Daemon daemon(Flags());
  const auto client = Connect(daemon);
  Shared x(*client, kN), y(*client, kN), out(*client, 2 * kN);
  const auto lane = Must(client->OpenLane({}));
  LaneCall add = PrepareAdd(*lane, x.buffer, y.buffer, out.buffer);
  uint64_t wrong = 0;
  const uint64_t calls = Scaled(2000);
  for (uint64_t i = 0; i < calls; ++i) {
    const uint64_t at = i % 2 * kN;
    for (uint64_t j = 0; j < kN; j += 21) {
      x.data()[j] = static_cast<float>(i % 8192);
      y.data()[j] = static_cast<float>(j + i % 512);
      out.data()[at + j] = -1;
    }
    const absl::Status done = add(x.buffer, y.buffer, PlaceIn{out.buffer, at * sizeof(float)});
    ASSERT_TRUE(done.ok()) << done;
    for (uint64_t j = 0; j < kN; j += 21)
      wrong += out.data()[at + j] != x.data()[j] + 2 * y.data()[j];
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(residentd_lane_completed(lane->handle()), static_cast<int64_t>(calls));
}

// Random programs on overlapping memory give the results of one task after the other.
TEST_F(LaneClientTest, OrderedTasksGiveTheResultsOfASequence) {
  constexpr uint64_t kTasks = 50;
  // Views of kN floats; each two overlap.
  const std::vector<uint64_t> views = {0, 32, 512, 544, 1024, 1056, 1536, 1568};
  constexpr uint64_t kFloats = 2048;
  const Daemon daemon(Flags());
  const auto client = Connect(daemon);
  Shared memory(*client, kFloats);
  const auto lane = Must(client->OpenLane({}));
  LaneCall add = PrepareAdd(*lane, memory.buffer, memory.buffer, memory.buffer);
  for (uint32_t word = 0; word < 3; ++word) {
    ASSERT_EQ(residentd_lane_set_access(
                  lane->handle(), add.number(), word, kN * sizeof(float),
                  word == 2 ? RESIDENTD_LANE_ACCESS_WRITE : RESIDENTD_LANE_ACCESS_READ),
              RESIDENTD_LANE_OK);
  }
  std::minstd_rand random(1);
  std::vector<float> expected(kFloats);
  for (uint64_t program = 0; program < Scaled(50); ++program) {
    for (uint64_t i = 0; i < kFloats; ++i) {
      expected[i] = memory.data()[i] = static_cast<float>(random() % 64);
    }
    int64_t last = 0;
    for (uint64_t task = 0; task < kTasks; ++task) {
      // An output is an input, or does not overlap with it.
      const uint64_t x = random() % views.size(), y = random() % views.size();
      uint64_t out = random() % views.size();
      while ((x != out && x / 2 == out / 2) || (y != out && y / 2 == out / 2)) {
        out = random() % views.size();
      }
      const auto place = [&](uint64_t view) {
        return PlaceIn{memory.buffer, views[view] * sizeof(float)};
      };
      last = Must(add.Submit(RESIDENTD_LANE_ORDERED | RESIDENTD_LANE_QUIET, place(x), place(y),
                             place(out)));
      for (uint64_t i = 0; i < kN; ++i) {
        expected[views[out] + i] = expected[views[x] + i] + 2 * expected[views[y] + i];
      }
    }
    ASSERT_TRUE(Eventually([&] { return residentd_lane_completed(lane->handle()) > last; }));
    ASSERT_EQ(std::vector<float>(memory.data(), memory.data() + kFloats), expected) << program;
  }
}

// A dependent task starts when all earlier ones have ended.
TEST_F(LaneClientTest, AfterAllOrdersAChain) {
  const Daemon daemon(Flags());
  const auto client = Connect(daemon);
  Shared sum(*client, kN), one(*client, kN);
  for (uint64_t i = 0; i < kN; ++i) one.data()[i] = 0.5;
  const auto lane = Must(client->OpenLane({.slots = 256}));
  LaneCall add = PrepareAdd(*lane, sum.buffer, one.buffer, sum.buffer);
  const uint64_t steps = Scaled(2000);
  for (uint64_t i = 0; i < steps; ++i) {
    absl::StatusOr<int64_t> sequence;
    while (absl::IsResourceExhausted(
        (sequence = add.Submit(RESIDENTD_LANE_AFTER_ALL | RESIDENTD_LANE_QUIET, sum.buffer,
                               one.buffer, sum.buffer))
            .status())) {
      ASSERT_TRUE(lane->Await(residentd_lane_next(lane->handle()) - 128).ok());
    }
    ASSERT_TRUE(sequence.ok()) << sequence.status();
  }
  const auto last = lane->Await(residentd_lane_next(lane->handle()) - 1);
  ASSERT_TRUE(last.ok() && last->status == RESIDENTD_LANE_STATUS_OK) << last.status();
  for (uint64_t i = 0; i < kN; ++i) ASSERT_EQ(sum.data()[i], static_cast<float>(steps)) << i;
}

// Many submissions that wait, in any order, joined or not: each answered once, with its own result.
TEST_F(LaneClientTest, ManySubmissionsAreEachAnsweredOnce) {
  const Daemon daemon(Flags());
  const auto client = Connect(daemon);
  constexpr uint64_t kSets = 1024;
  Shared x(*client, kSets * kN), y(*client, kSets * kN), out(*client, kSets * kN);
  for (uint64_t i = 0; i < kSets * kN; ++i) {
    x.data()[i] = static_cast<float>(i);
    y.data()[i] = static_cast<float>(i % 31);
    out.data()[i] = -1;
  }
  const auto lane = Must(client->OpenLane({}));
  LaneCall add = PrepareAdd(*lane, x.buffer, y.buffer, out.buffer);
  for (uint64_t round = 0; round < Scaled(10); ++round) {
    std::vector<int64_t> sequences;
    for (uint64_t set = 0; set < kSets; ++set) {
      const uint64_t at = set * kN * sizeof(float);
      sequences.push_back(Must(
          add.Submit(0, PlaceIn{x.buffer, at}, PlaceIn{y.buffer, at}, PlaceIn{out.buffer, at})));
    }
    for (const int64_t sequence : sequences) {
      const residentd_lane_completion done = Must(lane->Await(sequence));
      ASSERT_TRUE(lane->Ended(done).ok()) << lane->Ended(done);
      ASSERT_EQ(done.sequence, sequence);
    }
    for (uint64_t i = 0; i < kSets * kN; ++i)
      ASSERT_EQ(out.data()[i], x.data()[i] + 2 * y.data()[i]) << i;
    for (uint64_t i = 0; i < kSets * kN; ++i) out.data()[i] = -1;
  }
}

// Small ranges, which are read at once, and large ones, which another thread reads.
TEST_F(LaneClientTest, RangesRunEachTaskOnce) {
  const Daemon daemon(Flags());
  const auto client = Connect(daemon);
  constexpr uint64_t kTasks = 10'000;
  Shared x(*client, kTasks * kN), y(*client, kN), out(*client, kTasks * kN);
  for (uint64_t i = 0; i < kTasks * kN; ++i) x.data()[i] = static_cast<float>(i % 65521);
  for (uint64_t i = 0; i < kN; ++i) y.data()[i] = static_cast<float>(i);
  const auto lane = Must(client->OpenLane({.data_bytes = 1 << 20}));
  LaneCall add = PrepareAdd(*lane, x.buffer, y.buffer, out.buffer);
  constexpr uint64_t kBytes = kN * sizeof(float);
  std::vector<uint64_t> places;
  const uint32_t index = Must(lane->Bind(out.buffer));
  for (uint64_t i = 0; i < kTasks; ++i)
    places.push_back(residentd_lane_place_at(index, (i * 7 % kTasks) * kBytes));
  for (const uint64_t count : {uint64_t{1}, uint64_t{300}, kTasks}) {
    for (const bool values : {false, true}) {
      for (uint64_t i = 0; i < kTasks * kN; ++i) out.data()[i] = -1;
      const PlacesIn rows{{x.buffer}, kBytes};
      const std::span<const uint64_t> of_out(places.data(), count);
      const absl::StatusOr<int64_t> sequence =
          values ? add.SubmitRange(static_cast<uint32_t>(count), 0, rows, y.buffer, of_out)
                 : add.SubmitRange(static_cast<uint32_t>(count), 0, rows, y.buffer,
                                   PlacesIn{{out.buffer}, kBytes});
      ASSERT_TRUE(sequence.ok()) << sequence.status();
      const residentd_lane_completion done = Must(lane->Await(*sequence));
      ASSERT_TRUE(lane->Ended(done).ok()) << lane->Ended(done);
      uint64_t wrong = 0;
      for (uint64_t i = 0; i < count; ++i) {
        const float* const row = out.data() + (values ? i * 7 % kTasks : i) * kN;
        for (uint64_t j = 0; j < kN; ++j) wrong += row[j] != x.data()[i * kN + j] + 2 * y.data()[j];
      }
      EXPECT_EQ(wrong, 0u) << count << " " << values;
    }
  }
  EXPECT_TRUE(absl::IsInvalidArgument(
      add.SubmitRange(3, 0, x.buffer, y.buffer, std::span<const uint64_t>(places.data(), 2))
          .status()));
}

// Streams that another writer orders.
TEST_F(LaneClientTest, AnAwaitAndASignalOrderTasks) {
  const Daemon daemon(Flags());
  const auto client = Connect(daemon);
  Shared x(*client, kN), y(*client, kN), out(*client, kN);
  const auto lane = Must(client->OpenLane({.slots = 64}));
  LaneCall add = PrepareAdd(*lane, x.buffer, y.buffer, out.buffer);
  residentd_lane* const handle = lane->handle();
  for (uint32_t i = 1; i <= Scaled(200); ++i) {
    ASSERT_GE(residentd_lane_submit_await(handle, 1, i), 0) << residentd_lane_last_error();
    const int64_t task = Must(add.Submit(RESIDENTD_LANE_QUIET, x.buffer, y.buffer, out.buffer));
    ASSERT_GE(residentd_lane_submit_signal(handle, 2, i), 0) << residentd_lane_last_error();
    EXPECT_LE(residentd_lane_completed(handle), task);
    x.data()[9] = static_cast<float>(i);
    residentd_lane_set_stream(handle, 1, i);
    while (residentd_lane_get_signal(handle, 2) != i) std::this_thread::yield();
    ASSERT_EQ(out.data()[9], static_cast<float>(i));
  }
  EXPECT_EQ(residentd_lane_get_failed(handle, 2), 0u);
}

// CUDA streams without a GPU.
class LaneStreamsTest : public LaneClientTest {
 protected:
  static void SetUpTestSuite() {
    // The library finds it by its soname.
    library_ = dlopen("tests/lanes/libfake_cuda.so", RTLD_NOW | RTLD_GLOBAL);
    ASSERT_NE(library_, nullptr) << dlerror();
  }
  template <typename Function>
  static Function* Find(const char* name) {
    void* const found = dlsym(library_, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<Function*>(found);
  }

  static void* library_;
  decltype(&FakeCudaCreateStream) create_ =
      Find<decltype(FakeCudaCreateStream)>("FakeCudaCreateStream");
  decltype(&FakeCudaDestroyStream) destroy_ =
      Find<decltype(FakeCudaDestroyStream)>("FakeCudaDestroyStream");
  decltype(&FakeCudaSynchronize) synchronize_ =
      Find<decltype(FakeCudaSynchronize)>("FakeCudaSynchronize");
  decltype(&FakeCudaSetCapturing) set_capturing_ =
      Find<decltype(FakeCudaSetCapturing)>("FakeCudaSetCapturing");
  decltype(&FakeCudaEnqueue) enqueue_ = Find<decltype(FakeCudaEnqueue)>("FakeCudaEnqueue");
  decltype(&FakeCudaRegistrations) registrations_ =
      Find<decltype(FakeCudaRegistrations)>("FakeCudaRegistrations");
};
void* LaneStreamsTest::library_ = nullptr;

int a_context, another_context;

// Memset, lane add, copy, all enqueued at once; each value is checked.
TEST_F(LaneStreamsTest, TasksRunInTheOrderOfStreams) {
  const Daemon daemon(Flags());
  const auto client = Connect(daemon);
  struct Stream {
    Stream(client::Client& client, void* made) : handle(made), x(client, kN), out(client, kN) {}
    void* handle;
    Shared x, out;
    std::vector<float> results;
    uint64_t round = 0;
  };
  for (const uint64_t streams : {1, 3}) {
    Shared y(*client, kN);
    for (uint64_t i = 0; i < kN; ++i) y.data()[i] = 0.5;
    const auto lane = Must(client->OpenLane({}));
    std::vector<std::unique_ptr<Stream>> all;
    for (uint64_t s = 0; s < streams; ++s)
      all.push_back(std::make_unique<Stream>(*client, create_(&a_context)));
    LaneCall add = PrepareAdd(*lane, all[0]->x.buffer, y.buffer, all[0]->out.buffer);
    const uint64_t rounds = Scaled(300);
    for (uint64_t i = 0; i < rounds; ++i) {
      for (const auto& stream : all) {
        enqueue_(
            stream->handle,
            [](void* argument) {
              auto* const of = static_cast<Stream*>(argument);
              for (uint64_t j = 0; j < kN; ++j) of->x.data()[j] = static_cast<float>(of->round);
            },
            stream.get());
        ASSERT_EQ(residentd_lane_stream_begin(lane->handle(), stream->handle), RESIDENTD_LANE_OK)
            << residentd_lane_last_error();
        Must(add.Submit(RESIDENTD_LANE_QUIET, stream->x.buffer, y.buffer, stream->out.buffer));
        ASSERT_EQ(residentd_lane_stream_end(lane->handle(), stream->handle), RESIDENTD_LANE_OK)
            << residentd_lane_last_error();
        enqueue_(
            stream->handle,
            [](void* argument) {
              auto* const of = static_cast<Stream*>(argument);
              of->results.push_back(of->out.data()[kN - 1]);
              ++of->round;
            },
            stream.get());
      }
      const int64_t behind = residentd_lane_next(lane->handle()) - 2048;
      if (behind > 0 && i % 64 == 0) {
        ASSERT_TRUE(lane->Await(behind).ok());
      }
    }
    for (uint64_t s = 0; s < streams; ++s) {
      synchronize_(all[s]->handle);
      uint64_t wrong = 0;
      for (uint64_t i = 0; i < rounds; ++i)
        wrong += all[s]->results[i] != static_cast<float>(i) + 1;
      EXPECT_EQ(wrong, 0u);
      EXPECT_EQ(residentd_lane_get_signal(lane->handle(), 31 - static_cast<uint32_t>(s)), rounds);
      EXPECT_EQ(residentd_lane_get_failed(lane->handle(), 31 - static_cast<uint32_t>(s)), 0u);
    }
    EXPECT_EQ(registrations_(), 1);
    for (const auto& stream : all) destroy_(stream->handle);
  }
  EXPECT_EQ(registrations_(), 0);
}

// What was ordered before the end of a scope has ended when the next scope of the stream begins;
// the scope of another stream does not say that.
TEST_F(LaneStreamsTest, ASecondScopeOfAStreamNeedsNoAfterAll) {
  void* const streams[] = {create_(&a_context), create_(&a_context)};
  {
    Pair pair;  // The daemon is the test.
    constexpr uint16_t kCall = 1;
    ASSERT_EQ(residentd_lane_set_access(pair.lane, kCall, 0, 4, RESIDENTD_LANE_ACCESS_WRITE),
              RESIDENTD_LANE_OK);
    const auto waits = [&] {
      const uint64_t word = 0;
      EXPECT_GE(residentd_lane_submit(pair.lane, kCall, &word, 1, RESIDENTD_LANE_ORDERED), 0);
      while (true) {
        const auto slot = pair.daemon.Take();
        EXPECT_TRUE(slot.has_value());
        if (!slot.has_value()) return false;
        if (lane_head_kind(slot->head) != kLaneTask) continue;
        return (lane_head_flags(slot->head) & kLaneAfterAll) != 0;
      }
    };
    const auto begin = [&](int stream) {
      ASSERT_EQ(residentd_lane_stream_begin(pair.lane, streams[stream]), RESIDENTD_LANE_OK);
    };
    const auto end = [&](int stream) {
      ASSERT_EQ(residentd_lane_stream_end(pair.lane, streams[stream]), RESIDENTD_LANE_OK);
    };
    begin(0);
    EXPECT_TRUE(waits());  // As the first one always does.
    EXPECT_TRUE(waits());
    end(0);
    begin(0);
    EXPECT_FALSE(waits());
    end(0);
    begin(1);
    EXPECT_TRUE(waits());
    end(1);
    begin(0);
    EXPECT_TRUE(waits());
    begin(0);
    EXPECT_TRUE(waits());
    end(0);
    begin(0);
    EXPECT_FALSE(waits());
    end(0);
  }
  for (void* const stream : streams) destroy_(stream);
}

TEST_F(LaneStreamsTest, WrongStreamsAreRefused) {
  const Daemon daemon(Flags());
  const auto client = Connect(daemon);
  const auto lane = Must(client->OpenLane({.slots = 64}));
  std::vector<void*> streams;
  for (int i = 0; i < 33; ++i) streams.push_back(create_(&a_context));
  void* const other = create_(&another_context);
  const auto refused = [&](void* stream, const char* part) {
    const int64_t next = residentd_lane_next(lane->handle());
    for (const auto call : {residentd_lane_stream_begin, residentd_lane_stream_end}) {
      EXPECT_EQ(call(lane->handle(), stream), RESIDENTD_LANE_INVALID);
      EXPECT_THAT(residentd_lane_last_error(), HasSubstr(part));
    }
    EXPECT_EQ(residentd_lane_next(lane->handle()), next);
  };
  set_capturing_(streams[0], 1);
  refused(streams[0], "captured");
  set_capturing_(streams[0], 0);
  for (int i = 0; i < 32; ++i) {
    ASSERT_EQ(residentd_lane_stream_begin(lane->handle(), streams[static_cast<size_t>(i)]),
              RESIDENTD_LANE_OK)
        << residentd_lane_last_error();
  }
  refused(streams[32], "32 streams");
  refused(other, "another context");
  // A stream whose first await comes after all others.
  ASSERT_EQ(residentd_lane_stream_end(lane->handle(), streams[31]), RESIDENTD_LANE_OK);
  synchronize_(streams[31]);
  for (void* const stream : streams) destroy_(stream);
  destroy_(other);
}

// A full lane enqueues nothing, and a stream does not wait for a daemon that was killed.
TEST_F(LaneStreamsTest, AStreamGoesOnWhenTheDaemonIsKilled) {
  Daemon daemon(Flags());
  const auto client = Connect(daemon);
  auto lane = Must(client->OpenLane({.slots = 64}));
  void* const stream = create_(&a_context);
  std::atomic<bool> may_begin{false};
  // Nothing of the lane is read before the stream has come this far.
  enqueue_(
      stream,
      [](void* argument) {
        while (!*static_cast<std::atomic<bool>*>(argument)) std::this_thread::yield();
      },
      &may_begin);
  int code = RESIDENTD_LANE_OK;
  uint32_t ends = 0;
  while (code == RESIDENTD_LANE_OK) {
    code = residentd_lane_stream_begin(lane->handle(), stream);
    if (code == RESIDENTD_LANE_OK) code = residentd_lane_stream_end(lane->handle(), stream);
    if (code == RESIDENTD_LANE_OK) ++ends;
  }
  EXPECT_EQ(code, RESIDENTD_LANE_FULL);
  EXPECT_EQ(ends, 32u);
  daemon.Kill(SIGKILL);
  ASSERT_TRUE(daemon.Wait().has_value());
  may_begin = true;
  synchronize_(stream);
  EXPECT_EQ(residentd_lane_get_signal(lane->handle(), 31), ends);
  EXPECT_GT(residentd_lane_get_failed(lane->handle(), 31), 0u);
  for (const auto call : {residentd_lane_stream_begin, residentd_lane_stream_end}) {
    EXPECT_LT(call(lane->handle(), stream), 0);
  }
  synchronize_(stream);
  lane.reset();
  EXPECT_EQ(registrations_(), 0);
  destroy_(stream);
}

TEST_F(LaneClientTest, WhatIsWrongIsRefusedAndTheLaneGoesOn) {
  const Daemon daemon(Flags());
  const auto client = Connect(daemon);
  Shared x(*client, kN), y(*client, kN), out(*client, kN);
  const auto lane = Must(client->OpenLane({.slots = 64}));
  LaneCall add = PrepareAdd(*lane, x.buffer, y.buffer, out.buffer);
  const uint32_t index = Must(lane->Bind(x.buffer));
  const uint64_t good = residentd_lane_place_at(index, 0);
  ASSERT_TRUE(add(x.buffer, y.buffer, out.buffer).ok());
  struct Case {
    uint16_t call;
    uint64_t place;
    uint16_t reason;
  };
  for (const Case& wrong :
       {Case{777, good, RESIDENTD_LANE_REFUSED_CALL},
        Case{add.number(), residentd_lane_place_at(99, 0), RESIDENTD_LANE_REFUSED_BUFFER},
        Case{add.number(), residentd_lane_place_at(index, 4), RESIDENTD_LANE_REFUSED_BOUNDS},
        Case{add.number(), residentd_lane_place_at(index, uint64_t{1} << 47),
             RESIDENTD_LANE_REFUSED_BOUNDS},
        Case{add.number(), residentd_lane_place_at(index, 2), RESIDENTD_LANE_REFUSED_ALIGNMENT}}) {
    for (int word = 0; word < 3; ++word) {
      uint64_t words[] = {good, good, residentd_lane_place_at(Must(lane->Bind(out.buffer)), 0)};
      words[word] = wrong.place;
      if (wrong.reason == RESIDENTD_LANE_REFUSED_CALL && word > 0) continue;
      residentd_lane_completion done;
      ASSERT_EQ(residentd_lane_call(lane->handle(), wrong.call, words, 3, -1, &done),
                RESIDENTD_LANE_OK);
      EXPECT_EQ(done.status, RESIDENTD_LANE_STATUS_REFUSED);
      EXPECT_EQ(done.detail, wrong.reason) << word;
      EXPECT_THAT(residentd_lane_explain(lane->handle(), &done), HasSubstr("Fix: "));
    }
  }
  EXPECT_TRUE(add(x.buffer, y.buffer, out.buffer).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(add(x.buffer, y.buffer)));
  EXPECT_TRUE(absl::IsInvalidArgument(add(x.buffer, y.buffer, 1)));
}

// A version is never older than the last Activate that returned before the submission.
TEST_F(LaneClientTest, VersionsAreThoseThatWereActive) {
  const Daemon daemon(Flags());
  const auto client = Connect(daemon);
  client::Operators operators(*client);
  for (const char* const expression : {"x * 2", "x * 3"}) {
    const auto installed = operators.Install(client::Installation::Expression("grow", expression));
    ASSERT_TRUE(installed.ok()) << installed.status();
    const auto active = operators.Activate("grow");
    ASSERT_TRUE(active.ok()) << active.status();
  }
  Shared x(*client, kN), out(*client, kN);
  const auto lane = Must(client->OpenLane({}));
  client::TaskBatch batch("grow");
  batch.Use(x.buffer).Use(out.buffer);
  LaneCall grow = Must(lane->Prepare(batch, {Varying::Place(0), Varying::Place(1)}));
  const uint64_t words[] = {residentd_lane_place_at(Must(lane->Bind(x.buffer)), 0),
                            residentd_lane_place_at(Must(lane->Bind(out.buffer)), 0)};
  // Change k (from 1) ends with version 1 if k is odd. Version 2 is active at first.
  std::atomic<uint64_t> started{0}, finished{0};
  std::atomic<bool> stop{false};
  std::thread changing([&] {
    for (uint64_t k = 1; !stop; ++k) {
      started = k;
      const auto changed = k % 2 == 1 ? operators.Rollback("grow").status()
                                      : operators.Activate("grow", {.version = 2}).status();
      EXPECT_TRUE(changed.ok()) << changed;
      finished = k;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  uint64_t wrong = 0, seen[3] = {};
  const uint64_t calls = Scaled(2000);
  for (uint64_t i = 0; i < calls; ++i) {
    x.data()[5] = static_cast<float>(i % 4096 + 1);
    out.data()[5] = -1;
    const uint64_t before = finished;
    residentd_lane_completion done;
    ASSERT_EQ(residentd_lane_call(lane->handle(), grow.number(), words, 2, -1, &done),
              RESIDENTD_LANE_OK);
    const uint64_t after = started;
    ASSERT_TRUE(lane->Ended(done).ok()) << lane->Ended(done);
    ASSERT_THAT(done.version, AnyOf(1u, 2u));
    ++seen[done.version];
    wrong += out.data()[5] != x.data()[5] * static_cast<float>(done.version + 1);
    if (before == after) wrong += done.version != (before % 2 == 1 ? 1u : 2u);
  }
  stop = true;
  changing.join();
  std::printf("%lu calls: %lu ran version 1, %lu version 2; %lu changes\n", calls, seen[1], seen[2],
              finished.load());
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(residentd_lane_completed(lane->handle()), static_cast<int64_t>(calls));
  EXPECT_GT(seen[1], 0u);
  EXPECT_GT(seen[2], 0u);
}

// Two lanes and a gRPC client whose tasks wait all the time share the device equally.
TEST_F(LaneClientTest, TwoLanesAndAGrpcClientGetEqualShares) {
  constexpr uint64_t kTasks = 45'000;
  constexpr uint32_t kTurn = 256, kSlots = 8192;
  // A turn is a piece of a range that takes about 250 us on all workers, but not more tasks than a
  // batch or a joined range has. Here it is 5 tasks, so that those limits do not matter.
  constexpr int64_t kTaskNs = 100'000;
  const Daemon daemon(Flags({"--cpu_workers=2"}));
  struct Sharer {
    std::unique_ptr<client::Client> client;
    client::Buffer<float> out;
    std::atomic<uint64_t> ended{0};
  } sharers[3];
  std::atomic<bool> stop{false};
  const auto spin = [&](Sharer& sharer, uint32_t count) {
    client::TaskBatch batch("test.spin", count);
    batch.Use(sharer.out).Integer(kTaskNs);
    return batch;
  };
  std::vector<std::thread> threads;
  for (Sharer& sharer : sharers) {
    sharer.client = Connect(daemon);
    sharer.out = Must(sharer.client->Allocate<float>({1}, {.device = 0}));
    if (&sharer == &sharers[2]) break;
    threads.emplace_back([&] {
      const auto lane = Must(sharer.client->OpenLane({.slots = kSlots}));
      residentd_lane* const handle = lane->handle();
      const uint16_t call = Must(lane->Prepare(spin(sharer, 1), {})).number();
      while (!stop) {
        const int64_t sequence =
            residentd_lane_submit(handle, call, nullptr, 0, RESIDENTD_LANE_QUIET);
        if (sequence >= 0) continue;
        ASSERT_EQ(sequence, RESIDENTD_LANE_FULL) << residentd_lane_last_error();
        const int64_t oldest = residentd_lane_next(handle) - kSlots + kTurn;
        ASSERT_EQ(residentd_lane_await(handle, oldest, -1, nullptr), RESIDENTD_LANE_OK);
        sharer.ended = static_cast<uint64_t>(residentd_lane_completed(handle));
      }
      residentd_lane_cancel_below(handle, residentd_lane_next(handle));
    });
  }
  threads.emplace_back([&] {
    client::TaskBatch batch = spin(sharers[2], kTurn);
    const auto stream = Must(sharers[2].client->OpenStream({.max_in_flight = kSlots / kTurn}));
    while (!stop) {
      const absl::Status sent =
          stream->Send(batch, [&](const absl::StatusOr<client::Result>& result) {
            if (result.ok() && result->ok()) sharers[2].ended += kTurn;
          });
      ASSERT_TRUE(sent.ok()) << sent;
    }
    stream->Cancel();
  });
  const auto count = [&](uint64_t(&ended)[3]) {
    for (int i = 0; i < 3; ++i) ended[i] = sharers[i].ended;
    return ended[0] + ended[1] + ended[2];
  };
  uint64_t before[3], after[3], total = 0;
  const auto all_have_begun = [&] {
    return count(before) != 0 && before[0] != 0 && before[1] != 0 && before[2] != 0;
  };
  EXPECT_TRUE(Eventually(all_have_begun));
  const uint64_t begun = count(before);
  EXPECT_TRUE(Eventually([&] { return (total = count(after) - begun) >= kTasks; }));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 3; ++i) {
    const double share = static_cast<double>(after[i] - before[i]) / static_cast<double>(total);
    std::printf("%s: %.1f %% of %lu tasks\n", i == 2 ? "gRPC" : "a lane", 100 * share, total);
    EXPECT_NEAR(3 * share, 1, 0.1);
  }
}

// A task in the ring is stopped, alone.
TEST_F(LaneClientTest, ACancellationAndTheEndOfALaneStopTasksThatRun) {
  const Daemon daemon(Flags());
  const pid_t engine = daemon.engine_pid();
  const auto client = Connect(daemon);
  Shared out(*client, kN);
  auto lane = Must(client->OpenLane({}));
  client::TaskBatch hang("test.until_stopped");
  hang.Use(out.buffer, {.shape = {1}});
  LaneCall call = Must(lane->Prepare(hang, {Varying::Place(0)}));
  const auto runs = [&](uint64_t at) {
    return Eventually([&] { return static_cast<volatile float*>(out.data())[at] > 0; });
  };

  // One after the other: submissions that the daemon finds at once end together.
  const int64_t first = Must(call.Submit(0, PlaceIn{out.buffer, 0}));
  EXPECT_TRUE(runs(0));
  const int64_t second = Must(call.Submit(0, PlaceIn{out.buffer, sizeof(float)}));
  EXPECT_TRUE(runs(1));
  residentd_lane_cancel_below(lane->handle(), second);
  residentd_lane_completion ended;
  ASSERT_EQ(residentd_lane_await(lane->handle(), first, -1, &ended), RESIDENTD_LANE_OK);
  EXPECT_EQ(ended.status, RESIDENTD_LANE_STATUS_CANCELLED);
  EXPECT_NE(ended.flags & RESIDENTD_LANE_MAY_HAVE_RUN, 0);
  // The other one still runs.
  EXPECT_EQ(residentd_lane_await(lane->handle(), second, 0, &ended), RESIDENTD_LANE_TIMEOUT);
  residentd_lane_cancel_below(lane->handle(), second + 1);
  ASSERT_EQ(residentd_lane_await(lane->handle(), second, -1, &ended), RESIDENTD_LANE_OK);
  EXPECT_EQ(ended.status, RESIDENTD_LANE_STATUS_CANCELLED);

  // A lane that closes stops what it has in the ring.
  out.data()[2] = 0;
  Must(call.Submit(0, PlaceIn{out.buffer, 2 * sizeof(float)}));
  EXPECT_TRUE(runs(2));
  lane.reset();
  EXPECT_TRUE(Eventually([&] { return daemon.Device().ring().in_flight() == 0; }));
  EXPECT_EQ(daemon.engine_pid(), engine);
}

// The engine ends while tasks are in flight: each submission gets one status, and the lane goes on
// with the next engine.
TEST_F(LaneClientTest, TheEngineIsKilled) {
  const Daemon daemon(Flags());
  const auto client = Connect(daemon);
  Shared x(*client, kN), y(*client, kN), out(*client, kN);
  const auto lane = Must(client->OpenLane({.slots = 256}));
  LaneCall add = PrepareAdd(*lane, x.buffer, y.buffer, out.buffer);
  std::atomic<bool> stop{false};
  // After five failures in a minute a device has no engine; --gtest_repeat=5 kills 20.
  const uint64_t kills = OnGpu() ? 3 : 4;
  std::thread killing([&] {
    for (uint64_t i = 0; i < kills; ++i) {
      const pid_t engine = daemon.engine_pid();
      std::this_thread::sleep_for(std::chrono::milliseconds(i * 7));
      kill(engine, SIGKILL);
      EXPECT_TRUE(daemon.AwaitAnotherEngine(engine));
    }
    stop = true;
  });
  uint64_t ok = 0, lost = 0;
  while (!stop) {
    std::vector<int64_t> sequences;
    for (int i = 0; i < 64; ++i)
      sequences.push_back(Must(add.Submit(0, x.buffer, y.buffer, out.buffer)));
    for (const int64_t sequence : sequences) {
      const residentd_lane_completion done = Must(lane->Await(sequence));
      const absl::Status status = lane->Ended(done);
      ASSERT_TRUE(status.ok() || absl::IsUnavailable(status) || absl::IsAborted(status)) << status;
      ++(status.ok() ? ok : lost);
    }
  }
  killing.join();
  EXPECT_GT(ok, 0u);
  EXPECT_TRUE(Eventually([&] { return add(x.buffer, y.buffer, out.buffer).ok(); }));
}

TEST_F(LaneClientTest, TheDaemonIsKilled) {
  Daemon daemon(Flags());
  const auto client = Connect(daemon);
  Shared x(*client, kN), y(*client, kN), out(*client, kN);
  const auto lane = Must(client->OpenLane({}));
  LaneCall add = PrepareAdd(*lane, x.buffer, y.buffer, out.buffer);
  ASSERT_TRUE(add(x.buffer, y.buffer, out.buffer).ok());
  std::vector<int64_t> sequences;
  for (int i = 0; i < 1000; ++i)
    sequences.push_back(Must(add.Submit(0, x.buffer, y.buffer, out.buffer)));
  ASSERT_GE(residentd_lane_submit_signal(lane->handle(), 3, 1), 0);
  // This one cannot come from the daemon.
  ASSERT_GE(residentd_lane_submit_await(lane->handle(), 3, 1), 0);
  ASSERT_GE(residentd_lane_submit_signal(lane->handle(), 4, 1), 0);
  daemon.Kill(SIGKILL);
  ASSERT_TRUE(daemon.Wait().has_value());
  for (const int64_t sequence : sequences) {
    const auto done = lane->Await(sequence);
    ASSERT_TRUE(done.ok() || absl::IsUnavailable(done.status())) << done.status();
  }
  // A stream that waits for a signal goes on.
  while (residentd_lane_get_signal(lane->handle(), 3) != 1) std::this_thread::yield();
  while (residentd_lane_get_signal(lane->handle(), 4) != 1) std::this_thread::yield();
  EXPECT_EQ(residentd_lane_get_failed(lane->handle(), 4), 1u);
  EXPECT_TRUE(absl::IsUnavailable(add(x.buffer, y.buffer, out.buffer)));
}

TEST_F(LaneClientTest, TheDaemonDrains) {
  Daemon daemon(Flags());
  const auto client = Connect(daemon);
  Shared x(*client, kN), y(*client, kN), out(*client, kN);
  const auto lane = Must(client->OpenLane({}));
  LaneCall add = PrepareAdd(*lane, x.buffer, y.buffer, out.buffer);
  // The first call also binds the buffers, through the session, which the drain ends too.
  ASSERT_TRUE(add(x.buffer, y.buffer, out.buffer).ok());
  uint64_t ok = 0;
  std::thread ending([&] { daemon.Kill(SIGTERM); });
  absl::Status status;
  while ((status = add(x.buffer, y.buffer, out.buffer)).ok()) ++ok;
  ending.join();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  const auto exit = daemon.Wait();
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->status, 0) << exit->ToString() << daemon.Output();
}

// Runs in a child process: submits until it is killed. Writes a byte to `ready` when it has begun.
[[noreturn]] void SubmitUntilKilled(const std::string& address, int ready) {
  auto client = client::Client::Connect(address);
  if (!client.ok()) _exit(1);
  Shared x(**client, kN), y(**client, kN), out(**client, kN);
  auto lane = (*client)->OpenLane({});
  if (!lane.ok()) _exit(2);
  client::TaskBatch add("add");
  add.Use(x.buffer).Use(y.buffer).Use(out.buffer).Scalar(2);
  auto call = (*lane)->Prepare(add, {Varying::Place(0), Varying::Place(1), Varying::Place(2)});
  if (!call.ok() || !(*call)(x.buffer, y.buffer, out.buffer).ok()) _exit(3);
  if (write(ready, "r", 1) != 1) _exit(4);
  while (true) (void)call->Submit(0, x.buffer, y.buffer, out.buffer);
}

TEST_F(LaneClientTest, ClientsAreKilled) {
  const Daemon daemon(Flags());
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const auto descriptors = [&] { return daemon.Descriptors(); };
  size_t first = 0;
  const uint64_t kills = Scaled(10);
  for (uint64_t i = 0; i < kills; ++i) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      const std::string fd = std::to_string(ready[1]);
      execl(program.c_str(), program.c_str(), "--lane_client", daemon.address().c_str(), fd.c_str(),
            nullptr);
      _exit(127);
    }
    close(ready[1]);
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    std::this_thread::sleep_for(std::chrono::microseconds(i * 137 % 5000));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    if (i == 1) {
      ASSERT_TRUE(Eventually([&] { return daemon.Status().clients_size() == 0; }));
      first = descriptors();
    }
  }
  // What they held is released.
  EXPECT_TRUE(Eventually([&] { return daemon.Figure("resident_lanes{device=\"0\"}") == 0; }));
  EXPECT_TRUE(Eventually([&] { return descriptors() <= first + 2; }))
      << first << " " << descriptors();
  const auto client = Connect(daemon);
  Shared x(*client, kN), y(*client, kN), out(*client, kN);
  const auto lane = Must(client->OpenLane({}));
  LaneCall add = PrepareAdd(*lane, x.buffer, y.buffer, out.buffer);
  EXPECT_TRUE(add(x.buffer, y.buffer, out.buffer).ok());
}

// Lanes without work cost the daemon almost nothing.
TEST_F(LaneClientTest, AsleepLanesUseNoProcessor) {
  const Daemon daemon(Flags());
  constexpr int kClients = 14, kLanes = 16;  // Of 256 lanes an eighth is kept for others.
  std::vector<std::unique_ptr<client::Client>> clients;
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(Connect(daemon));
    for (int j = 0; j < kLanes; ++j) lanes.push_back(Must(clients.back()->OpenLane({.slots = 64})));
  }
  const auto cpu_ns = [&] {
    uint64_t total = 0;
    for (const auto& thread :
         std::filesystem::directory_iterator(absl::StrCat("/proc/", daemon.pid(), "/task"))) {
      std::ifstream file(thread.path() / "schedstat");
      uint64_t ns = 0;
      file >> ns;
      total += ns;
    }
    return total;
  };
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const uint64_t before = cpu_ns();
  constexpr int kSeconds = 4;
  std::this_thread::sleep_for(std::chrono::seconds(kSeconds));
  const double share = static_cast<double>(cpu_ns() - before) / (kSeconds * 1e9);
  std::printf("%zu asleep lanes: %.2f %% of a core\n", lanes.size(), 100 * share);
  EXPECT_LT(share, 0.05);
}

}  // namespace
}  // namespace resident::testing

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--lane_client") {
    resident::testing::SubmitUntilKilled(argv[2], std::atoi(argv[3]));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
