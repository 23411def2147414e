// Order by memory: which ORDERED submissions get AFTER_ALL. tests/lanes/lanes_test.cc checks the
// results of ordered tasks with a real daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "client/lane/fake_daemon.h"

namespace resident::testing {
namespace {

constexpr int kNone = RESIDENTD_LANE_ACCESS_NONE, kRead = RESIDENTD_LANE_ACCESS_READ,
              kWrite = RESIDENTD_LANE_ACCESS_WRITE, kBoth = RESIDENTD_LANE_ACCESS_BOTH,
              kElements = RESIDENTD_LANE_ACCESS_ELEMENTS;
constexpr uint64_t kGranule = 512, kBlock = 32768;

class LaneOrderTest : public ::testing::Test {
 protected:
  explicit LaneOrderTest(uint64_t data_bytes = kDataBytes) : daemon_(data_bytes) {
    EXPECT_EQ(daemon_.Attach(&lane_), RESIDENTD_LANE_OK) << residentd_lane_last_error();
  }
  ~LaneOrderTest() override { residentd_lane_detach(lane_); }

  void Tell(uint16_t call, uint32_t word, uint64_t span_bytes, int mode) {
    ASSERT_EQ(residentd_lane_set_access(lane_, call, word, span_bytes, mode), RESIDENTD_LANE_OK)
        << residentd_lane_last_error();
  }
  // Whether the daemon was told to wait. Everything ends at once.
  bool Taken(int64_t sequence) {
    EXPECT_GE(sequence, 0) << residentd_lane_last_error();
    const std::optional<lane_slot> slot = daemon_.Take();
    EXPECT_TRUE(slot.has_value());
    daemon_.SetCompleted(static_cast<uint64_t>(sequence) + 1);
    EXPECT_EQ(lane_head_flags(slot->head) & ~kLaneAfterAll, 0);
    return (lane_head_flags(slot->head) & kLaneAfterAll) != 0;
  }
  bool Waits(uint16_t call, std::vector<uint64_t> words, int flags = RESIDENTD_LANE_ORDERED) {
    return Taken(
        residentd_lane_submit(lane_, call, words.data(), static_cast<int>(words.size()), flags));
  }
  bool RangeWaits(uint16_t call, uint32_t count, std::vector<residentd_lane_column> columns) {
    return Taken(residentd_lane_submit_range(lane_, call, count, columns.data(),
                                             static_cast<int>(columns.size()),
                                             RESIDENTD_LANE_ORDERED));
  }
  // Calls 1, 2, 3: one word with this mode. The first ordered submission always waits.
  void TellThree(uint64_t span_bytes) {
    for (const int mode : {kRead, kWrite, kBoth}) {
      Tell(static_cast<uint16_t>(mode), 0, span_bytes, mode);
    }
    EXPECT_TRUE(Waits(kRead, {0}));
    EmptyTable();
  }
  void EmptyTable() { EXPECT_TRUE(Waits(kRead, {0}, RESIDENTD_LANE_AFTER_ALL)); }

  FakeDaemon daemon_;
  residentd_lane* lane_ = nullptr;
};

TEST_F(LaneOrderTest, WritersWaitForReadersAndWritersAndReadersForWriters) {
  TellThree(4);
  for (const int first : {kRead, kWrite, kBoth}) {
    for (const int second : {kRead, kWrite, kBoth}) {
      EmptyTable();
      EXPECT_FALSE(Waits(static_cast<uint16_t>(first), {64}));
      // Another granule, and another buffer.
      EXPECT_FALSE(Waits(static_cast<uint16_t>(second), {kGranule}));
      EXPECT_FALSE(Waits(static_cast<uint16_t>(second), {residentd_lane_place_at(1, 64)}));
      EXPECT_EQ(Waits(static_cast<uint16_t>(second), {kGranule - 4}),
                first != kRead || second != kRead);
    }
  }
}

TEST_F(LaneOrderTest, ATaskDoesNotWaitForItself) {
  TellThree(4);
  Tell(4, 0, 4096, kRead);
  Tell(4, 1, 4096, kWrite);
  EXPECT_FALSE(Waits(4, {4096, 4096}));
  // What a task that waited uses is kept.
  EXPECT_TRUE(Waits(4, {4096, 4096}));
  EXPECT_TRUE(Waits(4, {4096, 4096}));
  EXPECT_FALSE(Waits(4, {0, 16384}));
}

TEST_F(LaneOrderTest, OnlyAnAfterAllEndsWhatIsKept) {
  TellThree(4);
  EXPECT_FALSE(Waits(kWrite, {0}));
  // Not ordered: it neither waits nor is waited for.
  EXPECT_FALSE(Waits(kWrite, {0}, 0));
  EXPECT_FALSE(Waits(kWrite, {kBlock}, 0));
  EXPECT_FALSE(Waits(kRead, {kBlock}));
  // Neither waits for earlier tasks.
  EXPECT_FALSE(Taken(residentd_lane_submit_await(lane_, 0, 1)));
  EXPECT_FALSE(Taken(residentd_lane_submit_signal(lane_, 0, 1)));
  EXPECT_TRUE(Waits(kRead, {0}));
  EXPECT_FALSE(Waits(kWrite, {kGranule}));
  EXPECT_TRUE(Waits(kRead, {kBlock}, RESIDENTD_LANE_ORDERED | RESIDENTD_LANE_AFTER_ALL));
  EXPECT_FALSE(Waits(kWrite, {kGranule}));
  EXPECT_TRUE(Waits(kWrite, {kBlock}));
}

TEST_F(LaneOrderTest, SubmissionsThatAreNotPublishedAreNotKept) {
  TellThree(4);
  for (uint32_t i = 0; i < kSlots; ++i) {
    ASSERT_GE(residentd_lane_submit(lane_, kRead, nullptr, 0, 0), 0);
  }
  const uint64_t word = 0;
  EXPECT_EQ(residentd_lane_submit(lane_, kWrite, &word, 1, RESIDENTD_LANE_ORDERED),
            RESIDENTD_LANE_FULL);
  while (daemon_.Take().has_value()) {
  }
  daemon_.SetCompleted(static_cast<uint64_t>(residentd_lane_next(lane_)));
  EXPECT_FALSE(Waits(kRead, {0}));
}

TEST_F(LaneOrderTest, ACancelledAfterAllIsNotReliedOn) {
  TellThree(4);
  EXPECT_FALSE(Waits(kWrite, {0}));
  EXPECT_TRUE(Waits(kRead, {0}));
  residentd_lane_cancel_below(lane_, residentd_lane_next(lane_));
  EXPECT_TRUE(Waits(kRead, {kBlock}));
  EXPECT_FALSE(Waits(kRead, {kBlock}));
}

TEST_F(LaneOrderTest, ACallOfWhichAWordIsUnknownUsesAllMemory) {
  EXPECT_TRUE(Waits(9, {0}));
  EXPECT_TRUE(Waits(9, {0}));
  TellThree(4);
  Tell(5, 0, 4, kRead);
  EXPECT_FALSE(Waits(5, {0}));
  EXPECT_TRUE(Waits(5, {0, kBlock}));
  EXPECT_TRUE(Waits(kRead, {kBlock}));
  EXPECT_FALSE(Waits(kRead, {kBlock}));
  EXPECT_TRUE(Waits(5, {}));
  EXPECT_TRUE(Waits(kRead, {0}));
  Tell(5, 1, 0, kNone);
  EXPECT_FALSE(Waits(5, {0, kBlock}));
  EXPECT_FALSE(Waits(kWrite, {kBlock}));
  Tell(65535, 0, 4, kRead);
  EXPECT_FALSE(Waits(65535, {0}));
  for (const auto& [word, mode] : {std::pair{7, kRead}, {0, 5}, {0, -1}}) {
    EXPECT_EQ(residentd_lane_set_access(lane_, 0, static_cast<uint32_t>(word), 4, mode),
              RESIDENTD_LANE_INVALID);
    EXPECT_THAT(residentd_lane_last_error(), ::testing::HasSubstr("Fix: "));
  }
}

TEST_F(LaneOrderTest, TheNumberOfElementsIsTheSpan) {
  TellThree(4);
  Tell(6, 0, 1 << 20, kWrite);
  Tell(6, 1, 4, kElements);
  EXPECT_FALSE(Waits(6, {0, 128}));
  EXPECT_FALSE(Waits(6, {kGranule, 128}));
  EXPECT_TRUE(Waits(6, {0, 129}));
  EXPECT_TRUE(Waits(6, {kGranule, 1}));
  EXPECT_FALSE(Waits(6, {kGranule, 0}));
  EXPECT_FALSE(RangeWaits(6, 3, {{kBlock, kBlock, nullptr}, {kBlock / 4, 0, nullptr}}));
  EXPECT_TRUE(Waits(kRead, {4 * kBlock - 4}));
  EXPECT_FALSE(Waits(kRead, {4 * kBlock}));
}

TEST_F(LaneOrderTest, ADeadlineIsNoWordOfTheCall) {
  TellThree(4);
  for (uint32_t word = 0; word < 6; ++word) Tell(6, word, 4, kRead);
  const uint64_t words[] = {0, 0, 0, 0, 0, 0, 12345};
  ASSERT_GE(residentd_lane_submit(
                lane_, 6, words, 7,
                RESIDENTD_LANE_ORDERED | RESIDENTD_LANE_DEADLINE | RESIDENTD_LANE_QUIET),
            0);
  EXPECT_EQ(lane_head_flags(daemon_.Take()->head), kLaneDeadline | kLaneQuiet);
}

TEST_F(LaneOrderTest, MemoryBeyondTheLimitsWaits) {
  constexpr uint64_t kBlocks = 4096;
  TellThree(4);
  for (uint64_t i = 0; i < kBlocks; ++i) ASSERT_FALSE(Waits(kRead, {i * kBlock})) << i;
  EXPECT_FALSE(Waits(kRead, {0}));
  EXPECT_TRUE(Waits(kRead, {kBlocks * kBlock}));
  // The table is empty but for that.
  for (uint64_t i = 0; i < kBlocks - 1; ++i) ASSERT_FALSE(Waits(kWrite, {i * kBlock})) << i;
  EXPECT_TRUE(Waits(kWrite, {(kBlocks + 1) * kBlock}));
  // As much as is possible, and more.
  Tell(4, 0, kBlocks * kBlock, kWrite);
  Tell(5, 0, kBlocks * kBlock + 1, kWrite);
  Tell(6, 0, ~uint64_t{0}, kRead);
  EXPECT_TRUE(Waits(4, {0}));
  EXPECT_FALSE(Waits(6, {~uint64_t{0}}, 0));
  EXPECT_TRUE(Waits(kRead, {kBlocks * kBlock - 4}));
  EmptyTable();
  for (const uint16_t call : {5, 6}) {
    EXPECT_TRUE(Waits(call, {residentd_lane_place_at(65535, 64)}));
    EXPECT_TRUE(Waits(kRead, {0}));
    EXPECT_FALSE(Waits(kRead, {0}));
  }
}

class LaneOrderRangeTest : public LaneOrderTest {
 protected:
  LaneOrderRangeTest() : LaneOrderTest(4 << 20) {}
};

TEST_F(LaneOrderRangeTest, ARangeUsesTheMemoryOfAllItsTasks) {
  TellThree(4);
  EXPECT_FALSE(RangeWaits(kWrite, 10, {{kBlock, kGranule, nullptr}}));
  EXPECT_FALSE(Waits(kRead, {kBlock - 4}));
  EXPECT_TRUE(Waits(kRead, {kBlock + 9 * kGranule}));
  EXPECT_FALSE(RangeWaits(kWrite, 10, {{kBlock, uint64_t{0} - kGranule, nullptr}}));
  EXPECT_FALSE(Waits(kRead, {kBlock - 10 * kGranule}));
  EXPECT_TRUE(Waits(kRead, {kBlock - 9 * kGranule}));
  const uint64_t places[] = {0, 7 * kGranule, residentd_lane_place_at(3, kBlock)};
  EXPECT_FALSE(RangeWaits(kWrite, 3, {{0, 0, places}}));
  EXPECT_FALSE(Waits(kRead, {6 * kGranule}));
  EXPECT_FALSE(Waits(kRead, {kBlock}));
  EXPECT_TRUE(Waits(kRead, {residentd_lane_place_at(3, kBlock)}));
  EXPECT_TRUE(RangeWaits(kWrite, 3, {{0, 0, places}}));
  EXPECT_TRUE(Waits(kRead, {7 * kGranule}));
  const std::vector<uint64_t> many(65537, 0);
  EXPECT_FALSE(RangeWaits(kRead, 65536, {{0, 0, many.data()}}));
  EXPECT_TRUE(RangeWaits(kRead, 65537, {{0, 0, many.data()}}));
  EXPECT_TRUE(Waits(kRead, {kBlock}));
}

// Against a model that keeps each granule: a submission waits if it must, and only then. Places by
// stride that leave out memory between them are not part of it.
TEST_F(LaneOrderRangeTest, RandomSubmissionsAreOrderedAsAModelSays) {
  std::minstd_rand random(1);
  const auto below = [&](uint64_t n) { return random() % n; };
  TellThree(4);
  uint64_t waited = 0, submissions = 0;
  for (int program = 0; program < 60; ++program) {
    struct Word {
      uint64_t span;
      int mode;
    };
    std::vector<std::vector<Word>> calls(5);
    for (size_t call = 0; call < calls.size(); ++call) {
      calls[call].resize(1 + below(4));
      for (uint32_t word = 0; word < calls[call].size(); ++word) {
        Word& told = calls[call][word];
        told = {below(2) == 0 ? below(3 * kGranule) : below(3 * kBlock),
                static_cast<int>(below(4))};
        Tell(static_cast<uint16_t>(10 + call), word, told.span, told.mode);
      }
    }
    EmptyTable();
    const uint64_t memory = (1 + below(40)) * kBlock;
    std::map<uint64_t, int> used;  // Granules; the modes.
    for (int i = 0; i < 100; ++i) {
      const size_t call = below(calls.size());
      const auto count = static_cast<uint32_t>(below(4) == 0 ? 1 + below(6) : 1);
      std::vector<uint64_t> words;
      std::vector<residentd_lane_column> columns;
      std::vector<std::vector<uint64_t>> values(calls[call].size());
      std::map<uint64_t, int> uses;
      for (size_t w = 0; w < calls[call].size(); ++w) {
        const Word& word = calls[call][w];
        const auto use = [&](uint64_t place) {
          if (word.span == 0 || word.mode == kNone) return;
          for (uint64_t at = place / kGranule; at <= (place + word.span - 1) / kGranule; ++at) {
            uses[at] |= word.mode;
          }
        };
        const auto random_place = [&] {
          return residentd_lane_place_at(static_cast<uint32_t>(below(3)), below(memory));
        };
        words.push_back(random_place());
        const bool by_stride = below(2) == 0;
        const uint64_t stride = below(word.span + 1);
        for (uint32_t task = 0; task < count; ++task) {
          values[w].push_back(by_stride || count == 1 ? words[w] + task * stride : random_place());
          use(values[w].back());
        }
        if (by_stride) {
          // Also backwards.
          const bool down = below(2) == 0;
          columns.push_back(
              {down ? values[w].back() : words[w], down ? uint64_t{0} - stride : stride, nullptr});
        } else {
          columns.push_back({0, 0, values[w].data()});
        }
      }
      const bool must = std::any_of(uses.begin(), uses.end(), [&](const auto& use) {
        const auto found = used.find(use.first);
        return found != used.end() && ((use.second | found->second) & kWrite) != 0;
      });
      const auto number = static_cast<uint16_t>(10 + call);
      const bool waits = count == 1 ? Waits(number, words) : RangeWaits(number, count, columns);
      ASSERT_EQ(waits, must) << program << " " << i;
      if (waits) used.clear();
      for (const auto& [granule, mode] : uses) used[granule] |= mode;
      waited += waits;
      ++submissions;
    }
  }
  std::printf("%lu of %lu submissions waited\n", waited, submissions);
  EXPECT_GT(waited, submissions / 20);
  EXPECT_LT(waited, submissions * 19 / 20);
}

}  // namespace
}  // namespace resident::testing
