// The C library against a daemon that the test plays. tests/lanes has the tests with a real daemon.
#include "client/lane/residentd_lane.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/lane/fake_daemon.h"
#include "runtime/lane/lane_layout.h"

namespace resident::testing {
namespace {

using ::testing::HasSubstr;

uint64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

TEST(LaneTest, ASubmissionIsOneSlotAsTheFormatSays) {
  Pair pair;
  const uint64_t words[] = {residentd_lane_place_at(3, 4096), 5, 6, 7, 8, 9, 10};
  EXPECT_EQ(residentd_lane_submit(
                pair.lane, 12, words, 7,
                RESIDENTD_LANE_AFTER_ALL | RESIDENTD_LANE_DEADLINE | RESIDENTD_LANE_QUIET),
            0);
  const std::optional<lane_slot> slot = pair.daemon.Take();
  ASSERT_TRUE(slot.has_value());
  EXPECT_EQ(slot->head, uint64_t{1} | uint64_t{12} << 32 | uint64_t{7} << 56);
  EXPECT_EQ(lane_head_call(slot->head), 12);
  EXPECT_EQ(lane_head_kind(slot->head), kLaneTask);
  EXPECT_EQ(lane_head_flags(slot->head), kLaneAfterAll | kLaneDeadline | kLaneQuiet);
  EXPECT_EQ(lane_place_buffer(slot->words[0]), 3);
  EXPECT_EQ(lane_place_offset(slot->words[0]), 4096u);
  for (uint64_t i = 1; i < 7; ++i) EXPECT_EQ(slot->words[i], i + 4);
  EXPECT_FALSE(pair.daemon.Take().has_value());

  EXPECT_EQ(residentd_lane_submit_await(pair.lane, 31, 77), 1);
  EXPECT_EQ(residentd_lane_submit_signal(pair.lane, 2, 78), 2);
  EXPECT_EQ(pair.daemon.Take()->head, uint64_t{2} | uint64_t{kLaneAwait} << 48);
  const std::optional<lane_slot> signal = pair.daemon.Take();
  EXPECT_EQ(signal->head, uint64_t{3} | uint64_t{kLaneSignal} << 48);
  EXPECT_EQ(signal->words[0], 2u);
  EXPECT_EQ(signal->words[1], 78u);
  residentd_lane_set_stream(pair.lane, 31, 77);
  EXPECT_EQ(pair.daemon.client()->stream[31], 77u);
  pair.daemon.page()->stream[2] = 78;
  pair.daemon.page()->stream_failed[2] = 4;
  EXPECT_EQ(residentd_lane_get_signal(pair.lane, 2), 78u);
  EXPECT_EQ(residentd_lane_get_failed(pair.lane, 2), 4u);
}

TEST(LaneTest, CompletionsComeInAnyOrder) {
  Pair pair;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(residentd_lane_submit(pair.lane, 0, nullptr, 0, 0), i);
  residentd_lane_completion done;
  EXPECT_EQ(residentd_lane_await(pair.lane, 2, 0, &done), RESIDENTD_LANE_TIMEOUT);
  pair.daemon.Complete(2, kLaneAborted, 9, kLaneMayHaveRun);
  ASSERT_EQ(residentd_lane_await(pair.lane, 2, -1, &done), RESIDENTD_LANE_OK);
  EXPECT_EQ(done.sequence, 2);
  EXPECT_EQ(done.status, RESIDENTD_LANE_STATUS_ABORTED);
  EXPECT_EQ(done.detail, 9);
  EXPECT_EQ(done.flags, RESIDENTD_LANE_MAY_HAVE_RUN);
  EXPECT_EQ(done.device_ns, 1234u);
  EXPECT_EQ(done.version, 7u);
  EXPECT_EQ(residentd_lane_await(pair.lane, 0, 0, nullptr), RESIDENTD_LANE_TIMEOUT);
  EXPECT_EQ(residentd_lane_await(pair.lane, 1, 1'000'000, nullptr), RESIDENTD_LANE_TIMEOUT);
  EXPECT_EQ(residentd_lane_completed(pair.lane), 0);
  pair.daemon.Complete(0);
  pair.daemon.Complete(1);
  pair.daemon.SetCompleted(3);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(residentd_lane_await(pair.lane, i, -1, nullptr), RESIDENTD_LANE_OK);
  EXPECT_EQ(residentd_lane_completed(pair.lane), 3);
}

TEST(LaneTest, WrongArgumentsAreRefusedWithWords) {
  Pair pair;
  const uint64_t words[8] = {};
  EXPECT_EQ(residentd_lane_submit(pair.lane, 0, words, 8, 0), RESIDENTD_LANE_INVALID);
  EXPECT_THAT(residentd_lane_last_error(), HasSubstr("8 words. Fix: pass 0 to 7"));
  EXPECT_EQ(residentd_lane_submit(pair.lane, 0, words, -1, 0), RESIDENTD_LANE_INVALID);
  EXPECT_EQ(residentd_lane_submit(pair.lane, 0, words, 1, 16), RESIDENTD_LANE_INVALID);
  EXPECT_THAT(residentd_lane_last_error(), HasSubstr("flags 0x10"));
  EXPECT_EQ(residentd_lane_submit_await(pair.lane, 32, 0), RESIDENTD_LANE_INVALID);
  EXPECT_EQ(residentd_lane_submit_signal(pair.lane, 32, 0), RESIDENTD_LANE_INVALID);
  EXPECT_EQ(residentd_lane_await(pair.lane, 0, 0, nullptr), RESIDENTD_LANE_INVALID);
  EXPECT_EQ(residentd_lane_await(pair.lane, -1, 0, nullptr), RESIDENTD_LANE_INVALID);
  EXPECT_FALSE(pair.daemon.Take().has_value());
}

// The stamps have 32 bits.
TEST(LaneTest, SequenceNumbersWrapAroundInStamps) {
  const uint64_t first = (uint64_t{1} << 32) - 2 * kSlots;
  Pair pair(first);
  for (uint64_t s = first; s < first + 4 * kSlots; ++s) {
    ASSERT_EQ(residentd_lane_submit(pair.lane, 0, nullptr, 0, 0), static_cast<int64_t>(s));
    ASSERT_EQ(residentd_lane_await(pair.lane, static_cast<int64_t>(s), 0, nullptr),
              RESIDENTD_LANE_TIMEOUT)
        << s;
    const std::optional<lane_slot> slot = pair.daemon.Take();
    ASSERT_TRUE(slot.has_value()) << s;
    pair.daemon.Complete(s);
    pair.daemon.SetCompleted(s + 1);
    residentd_lane_completion done;
    ASSERT_EQ(residentd_lane_await(pair.lane, static_cast<int64_t>(s), -1, &done),
              RESIDENTD_LANE_OK);
    ASSERT_EQ(done.sequence, static_cast<int64_t>(s));
  }
}

// A slot that only QUIET submissions used for 2^32 submissions still has the completion of an old
// one, with the same stamp. It is marked before.
TEST(LaneTest, OldCompletionsAreMarkedSoThatTheyAreNotTakenForLaterOnes) {
  constexpr uint8_t kStale = 255;
  const uint64_t first = uint64_t{3} << 30;
  Pair pair(first);
  pair.daemon.Complete(first - (uint64_t{1} << 30));
  pair.daemon.Complete(first - 1);
  pair.daemon.Complete(first - 2 - kSlots);
  ASSERT_EQ(residentd_lane_submit(pair.lane, 0, nullptr, 0, RESIDENTD_LANE_QUIET),
            static_cast<int64_t>(first));
  const auto status = [&](uint64_t sequence) {
    return static_cast<uint8_t>(pair.daemon.completion(sequence)->head >> 32);
  };
  EXPECT_EQ(status(first), kStale);
  EXPECT_EQ(status(first + 1), kStale);  // Never written: the stamp of 2^32 - 1.
  EXPECT_EQ(status(first - 1), kLaneOk);
  EXPECT_EQ(status(first - 2), kLaneOk);
  pair.daemon.completion(first)->head = lane_completion_head(first, kStale, 0, 0);
  EXPECT_EQ(residentd_lane_await(pair.lane, static_cast<int64_t>(first), 0, nullptr),
            RESIDENTD_LANE_TIMEOUT);
  pair.daemon.Complete(first, kLaneInternal);
  EXPECT_EQ(residentd_lane_await(pair.lane, static_cast<int64_t>(first), 0, nullptr),
            RESIDENTD_LANE_OK);
}

TEST(LaneTest, AFullLaneSaysSoUntilTheOldestHasEnded) {
  Pair pair;
  for (uint32_t i = 0; i < kSlots; ++i)
    ASSERT_EQ(residentd_lane_submit(pair.lane, 0, nullptr, 0, 0), i);
  for (int i = 0; i < 600; ++i)
    ASSERT_EQ(residentd_lane_submit(pair.lane, 0, nullptr, 0, 0), RESIDENTD_LANE_FULL);
  EXPECT_THAT(residentd_lane_last_error(), HasSubstr("Fix: "));
  residentd_lane_completion done;
  EXPECT_EQ(residentd_lane_call(pair.lane, 0, nullptr, 0, 0, &done), RESIDENTD_LANE_TIMEOUT);
  EXPECT_EQ(done.sequence, -1);
  pair.daemon.Complete(1);  // Not the oldest.
  EXPECT_EQ(residentd_lane_submit(pair.lane, 0, nullptr, 0, 0), RESIDENTD_LANE_FULL);
  pair.daemon.Complete(0);
  pair.daemon.SetCompleted(2);
  EXPECT_EQ(residentd_lane_submit(pair.lane, 0, nullptr, 0, 0), kSlots);
  // The slot of 0 is used again, that of 1 not yet.
  EXPECT_EQ(residentd_lane_await(pair.lane, 0, 0, &done), RESIDENTD_LANE_INVALID);
  EXPECT_THAT(residentd_lane_last_error(), HasSubstr("was used again"));
  EXPECT_EQ(residentd_lane_await(pair.lane, 1, 0, &done), RESIDENTD_LANE_OK);
}

TEST(LaneTest, AwaitSleepsAndIsWoken) {
  Pair pair;
  for (int i = 0; i < 20; ++i) {
    const int64_t sequence = residentd_lane_submit(pair.lane, 0, nullptr, 0, 0);
    ASSERT_EQ(sequence, i);
    // Completed in the other order, so that the watermark does not move.
    const int64_t later = i % 2 == 0 ? sequence : sequence - 1;
    std::thread daemon([&] {
      while (__atomic_load_n(&pair.daemon.client()->sleeping, __ATOMIC_ACQUIRE) == 0)
        std::this_thread::yield();
      if (i % 2 == 0) return;
      pair.daemon.Complete(static_cast<uint64_t>(sequence));
      pair.daemon.Complete(static_cast<uint64_t>(later));
      pair.daemon.Wake();
    });
    if (i % 2 == 0) {
      EXPECT_EQ(residentd_lane_await(pair.lane, sequence, 50'000'000, nullptr),
                RESIDENTD_LANE_TIMEOUT);
    } else {
      EXPECT_EQ(residentd_lane_await(pair.lane, sequence, -1, nullptr), RESIDENTD_LANE_OK);
    }
    daemon.join();
    EXPECT_EQ(pair.daemon.client()->sleeping, 0u);
  }
  EXPECT_EQ(pair.daemon.page()->wakes, 10u);
}

// However the daemon's answer and the client's falling asleep meet.
TEST(LaneTest, NoWakeIsLost) {
  Pair pair;
  constexpr uint64_t kCalls = 500;
  std::thread daemon([&] {
    uint64_t wait = 0;
    for (uint64_t s = 0; s < kCalls; ++s) {
      while (!pair.daemon.Take().has_value()) std::this_thread::yield();
      // From before the client polls to after it sleeps.
      wait = (wait + 977) % 40'000;
      const uint64_t until = NowNs() + wait;
      while (NowNs() < until) {
      }
      pair.daemon.Complete(s);
      pair.daemon.SetCompleted(s + 1);
      pair.daemon.Wake();
    }
  });
  for (uint64_t s = 0; s < kCalls; ++s) {
    residentd_lane_completion done;
    ASSERT_EQ(residentd_lane_call(pair.lane, 0, nullptr, 0, -1, &done), RESIDENTD_LANE_OK);
    ASSERT_EQ(done.sequence, static_cast<int64_t>(s));
  }
  daemon.join();
}

TEST(LaneTest, ManySubmissionsOfTwoThreadsAreEachTakenOnceAndInOrder) {
  Pair pair;
  constexpr uint64_t kCount = 30'000;
  uint64_t wrong = 0;
  std::thread daemon([&] {
    for (uint64_t s = 0; s < kCount; ++s) {
      std::optional<lane_slot> slot;
      while (!(slot = pair.daemon.Take()).has_value()) std::this_thread::yield();
      for (uint64_t i = 0; i < 3; ++i) wrong += slot->words[i] != s * 3 + i;
      if (s % 7 != 0) pair.daemon.Complete(s, kLaneOk);  // The others are QUIET.
      pair.daemon.SetCompleted(s + 1);
    }
  });
  uint64_t submitted = 0;
  while (submitted < kCount) {
    const uint64_t words[] = {submitted * 3, submitted * 3 + 1, submitted * 3 + 2};
    const int64_t sequence = residentd_lane_submit(pair.lane, 0, words, 3,
                                                   submitted % 7 == 0 ? RESIDENTD_LANE_QUIET : 0);
    if (sequence == RESIDENTD_LANE_FULL) {
      ASSERT_EQ(residentd_lane_await(pair.lane, static_cast<int64_t>(submitted - kSlots / 2), -1,
                                     nullptr),
                RESIDENTD_LANE_OK);
      continue;
    }
    ASSERT_EQ(sequence, static_cast<int64_t>(submitted++));
  }
  residentd_lane_completion done;
  for (uint64_t s = kCount - kSlots; s < kCount; ++s) {
    ASSERT_EQ(residentd_lane_await(pair.lane, static_cast<int64_t>(s), -1, &done),
              RESIDENTD_LANE_OK);
    EXPECT_EQ(done.version, s % 7 == 0 ? 0u : 7u);
  }
  daemon.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(LaneTest, AQuietSubmissionHasACompletionOnlyIfItFailed) {
  Pair pair;
  for (int i = 0; i < 2; ++i) residentd_lane_submit(pair.lane, 0, nullptr, 0, RESIDENTD_LANE_QUIET);
  pair.daemon.SetCompleted(1);
  residentd_lane_completion done;
  ASSERT_EQ(residentd_lane_await(pair.lane, 0, -1, &done), RESIDENTD_LANE_OK);
  EXPECT_EQ(done.status, RESIDENTD_LANE_STATUS_OK);
  EXPECT_EQ(done.sequence, 0);
  EXPECT_EQ(done.version, 0u);
  pair.daemon.Complete(1, kLaneInternal, 3);
  pair.daemon.SetCompleted(2);
  ASSERT_EQ(residentd_lane_await(pair.lane, 1, -1, &done), RESIDENTD_LANE_OK);
  EXPECT_EQ(done.status, RESIDENTD_LANE_STATUS_INTERNAL);
}

TEST(LaneTest, TheDoorbellRingsOnlyIfTheDaemonSleeps) {
  Pair pair;
  for (int i = 0; i < 5; ++i) residentd_lane_submit(pair.lane, 0, nullptr, 0, 0);
  residentd_lane_set_stream(pair.lane, 0, 1);
  EXPECT_EQ(pair.daemon.CountRings(), 0);
  __atomic_store_n(&pair.daemon.page()->asleep, 1, __ATOMIC_SEQ_CST);
  residentd_lane_submit(pair.lane, 0, nullptr, 0, 0);
  EXPECT_EQ(pair.daemon.CountRings(), 1);
  residentd_lane_set_stream(pair.lane, 0, 2);
  EXPECT_EQ(pair.daemon.CountRings(), 1);
  // A daemon that does not read the socket does not stop the client.
  for (int i = 0; i < 20; ++i) residentd_lane_submit(pair.lane, 0, nullptr, 0, 0);
  __atomic_store_n(&pair.daemon.page()->asleep, 0, __ATOMIC_SEQ_CST);
  pair.daemon.CountRings();
  residentd_lane_submit(pair.lane, 0, nullptr, 0, 0);
  EXPECT_EQ(pair.daemon.CountRings(), 0);
}

TEST(LaneTest, ADaemonThatDoesNotReadTheSocketDoesNotStopTheClient) {
  Pair pair;
  __atomic_store_n(&pair.daemon.page()->asleep, 1, __ATOMIC_SEQ_CST);
  for (uint64_t s = 0; s < 20'000; ++s) {
    ASSERT_EQ(residentd_lane_submit(pair.lane, 0, nullptr, 0, 0), static_cast<int64_t>(s));
    pair.daemon.SetCompleted(s + 1);
  }
}

// A daemon that goes to sleep at any time still sees every submission.
TEST(LaneTest, NoDoorbellIsLost) {
  Pair pair;
  constexpr uint64_t kCalls = 500;
  std::thread daemon([&] {
    for (uint64_t s = 0; s < kCalls; ++s) {
      while (!pair.daemon.Take().has_value()) {
        __atomic_store_n(&pair.daemon.page()->asleep, 1, __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        const bool taken = pair.daemon.Take().has_value();
        if (!taken) pair.daemon.WaitForRing();
        __atomic_store_n(&pair.daemon.page()->asleep, 0, __ATOMIC_RELAXED);
        if (taken) break;
      }
      pair.daemon.Complete(s);
      pair.daemon.SetCompleted(s + 1);
      pair.daemon.Wake();
    }
  });
  for (uint64_t s = 0; s < kCalls; ++s) {
    ASSERT_EQ(residentd_lane_call(pair.lane, 0, nullptr, 0, -1, nullptr), RESIDENTD_LANE_OK);
  }
  daemon.join();
}

TEST(LaneTest, TheEndOfTheDaemonIsNoticed) {
  Pair pair;
  for (int i = 0; i < 3; ++i) residentd_lane_submit(pair.lane, 0, nullptr, 0, 0);
  pair.daemon.Complete(1);  // Answered before the end.
  std::thread daemon([&] {
    while (__atomic_load_n(&pair.daemon.client()->sleeping, __ATOMIC_ACQUIRE) == 0)
      std::this_thread::yield();
    pair.daemon.End();
  });
  residentd_lane_completion done;
  EXPECT_EQ(residentd_lane_await(pair.lane, 0, -1, &done), RESIDENTD_LANE_LOST);
  daemon.join();
  EXPECT_THAT(residentd_lane_last_error(), HasSubstr("may have run"));
  EXPECT_EQ(residentd_lane_await(pair.lane, 1, -1, &done), RESIDENTD_LANE_OK);
  EXPECT_EQ(residentd_lane_await(pair.lane, 2, -1, &done), RESIDENTD_LANE_LOST);
  EXPECT_EQ(residentd_lane_await(pair.lane, 2, 0, &done), RESIDENTD_LANE_LOST);
  EXPECT_EQ(residentd_lane_submit(pair.lane, 0, nullptr, 0, 0), RESIDENTD_LANE_LOST);
  EXPECT_EQ(residentd_lane_call(pair.lane, 0, nullptr, 0, -1, &done), RESIDENTD_LANE_LOST);
}

TEST(LaneTest, TheEndOfTheDaemonIsNoticedBySubmit) {
  {
    Pair pair;  // By the doorbell.
    __atomic_store_n(&pair.daemon.page()->asleep, 1, __ATOMIC_SEQ_CST);
    pair.daemon.End();
    EXPECT_EQ(residentd_lane_submit(pair.lane, 0, nullptr, 0, 0), RESIDENTD_LANE_LOST);
  }
  Pair pair;  // Because the lane stays full.
  pair.daemon.End();
  int64_t code = 0;
  for (uint32_t i = 0; i < kSlots + 1000 && code != RESIDENTD_LANE_LOST; ++i)
    code = residentd_lane_submit(pair.lane, 0, nullptr, 0, 0);
  EXPECT_EQ(code, RESIDENTD_LANE_LOST);
}

// A stream that waits for a signal goes on.
TEST(LaneTest, PromisedSignalsComeWhenTheDaemonHasEnded) {
  Pair pair;
  lane_daemon_page* const page = pair.daemon.page();
  for (uint32_t value = 1; value <= 3; ++value) {
    ASSERT_GE(residentd_lane_submit_signal(pair.lane, 2, value), 0);
  }
  ASSERT_GE(residentd_lane_submit_signal(pair.lane, 5, 7), 0);
  ASSERT_GE(residentd_lane_submit_await(pair.lane, 6, 9), 0);
  page->stream[5] = 7;  // This one has come.
  pair.daemon.End();
  while (residentd_lane_get_signal(pair.lane, 2) != 3) std::this_thread::yield();
  EXPECT_EQ(residentd_lane_get_failed(pair.lane, 2), 1u);
  EXPECT_EQ(residentd_lane_get_signal(pair.lane, 5), 7u);
  EXPECT_EQ(residentd_lane_get_failed(pair.lane, 5), 0u);
  EXPECT_EQ(residentd_lane_get_signal(pair.lane, 6), 0u);
  // One that the library accepts afterwards, because it has not noticed yet.
  ASSERT_GE(residentd_lane_submit_signal(pair.lane, 2, 4), 0);
  EXPECT_EQ(residentd_lane_get_signal(pair.lane, 2), 4u);
}

TEST(LaneTest, DetachKeepsThePromiseOfSignals) {
  Pair pair;
  ASSERT_GE(residentd_lane_submit_signal(pair.lane, 31, 1), 0);
  // A child neither waits for the thread, which it does not have, nor keeps the parent's promise.
  const pid_t child = fork();
  if (child == 0) {
    residentd_lane_detach(pair.lane);
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pair.daemon.page()->stream[31], 0u);
  residentd_lane_detach(pair.lane);
  pair.lane = nullptr;
  EXPECT_EQ(pair.daemon.page()->stream[31], 1u);
}

TEST(LaneTest, ADaemonThatDrainsOrClosesTakesNoSubmissions) {
  Pair pair;
  EXPECT_EQ(residentd_lane_submit(pair.lane, 0, nullptr, 0, 0), 0);
  pair.daemon.page()->state = kLaneDraining;
  EXPECT_EQ(residentd_lane_submit(pair.lane, 0, nullptr, 0, 0), RESIDENTD_LANE_CLOSED);
  EXPECT_THAT(residentd_lane_last_error(), HasSubstr("is stopping"));
  pair.daemon.Complete(0, kLaneUnavailable);
  residentd_lane_completion done;
  EXPECT_EQ(residentd_lane_await(pair.lane, 0, -1, &done), RESIDENTD_LANE_OK);
  EXPECT_THAT(residentd_lane_explain(pair.lane, &done), HasSubstr("did not run"));

  Pair closed;
  EXPECT_EQ(residentd_lane_submit(closed.lane, 0, nullptr, 0, 0), 0);
  __atomic_store_n(&closed.daemon.page()->state, kLaneClosed, __ATOMIC_RELEASE);
  closed.daemon.End();
  EXPECT_EQ(residentd_lane_await(closed.lane, 0, -1, &done), RESIDENTD_LANE_CLOSED);
  EXPECT_EQ(residentd_lane_submit(closed.lane, 0, nullptr, 0, 0), RESIDENTD_LANE_LOST);
}

TEST(LaneTest, AForkedChildCannotUseTheLaneAndDoesNotEndIt) {
  Pair pair;
  EXPECT_EQ(residentd_lane_submit(pair.lane, 0, nullptr, 0, 0), 0);
  const pid_t child = fork();
  if (child == 0) {
    const bool refused =
        residentd_lane_submit(pair.lane, 0, nullptr, 0, 0) == RESIDENTD_LANE_FORKED &&
        residentd_lane_await(pair.lane, 0, -1, nullptr) == RESIDENTD_LANE_FORKED &&
        residentd_lane_submit_range(pair.lane, 0, 1, nullptr, 0, 0) == RESIDENTD_LANE_FORKED;
    residentd_lane_cancel_below(pair.lane, 1);
    residentd_lane_detach(pair.lane);
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pair.daemon.CountRings(), 0);
  EXPECT_EQ(residentd_lane_submit(pair.lane, 0, nullptr, 0, 0), 1);
  pair.daemon.Complete(1);
  EXPECT_EQ(residentd_lane_await(pair.lane, 1, -1, nullptr), RESIDENTD_LANE_OK);
}

TEST(LaneTest, DetachEndsTheConnection) {
  FakeDaemon daemon;
  residentd_lane* lane;
  ASSERT_EQ(daemon.Attach(&lane), RESIDENTD_LANE_OK);
  EXPECT_EQ(residentd_lane_slots(lane), kSlots);
  residentd_lane_detach(lane);
  EXPECT_TRUE(daemon.ClientHasEnded());
  residentd_lane_detach(nullptr);
}

TEST(LaneTest, CancellingRaisesTheWordAndAlwaysRings) {
  Pair pair;
  for (int i = 0; i < 3; ++i) residentd_lane_submit(pair.lane, 0, nullptr, 0, 0);
  residentd_lane_cancel_below(pair.lane, 2);
  EXPECT_EQ(pair.daemon.client()->cancel_below, 2u);
  EXPECT_EQ(pair.daemon.CountRings(), 1);
  residentd_lane_cancel_below(pair.lane, 1);  // It only rises, and not over what was submitted.
  residentd_lane_cancel_below(pair.lane, -1);
  EXPECT_EQ(pair.daemon.client()->cancel_below, 2u);
  residentd_lane_cancel_below(pair.lane, 1000);
  EXPECT_EQ(pair.daemon.client()->cancel_below, 3u);
}

TEST(LaneTest, ARangeHasARecordForEachWordAndItsValues) {
  Pair pair;
  const uint64_t values[] = {10, 20, 30};
  const residentd_lane_column columns[] = {{100, 4, nullptr}, {0, 0, values}};
  EXPECT_EQ(residentd_lane_submit_range(pair.lane, 5, 3, columns, 2, RESIDENTD_LANE_AFTER_ALL), 0);
  const std::optional<lane_slot> slot = pair.daemon.Take();
  ASSERT_TRUE(slot.has_value());
  EXPECT_EQ(slot->head, uint64_t{1} | uint64_t{5} << 32 | uint64_t{kLaneRange} << 48 |
                            uint64_t{kLaneAfterAll} << 56);
  EXPECT_EQ(slot->words[0], 3u);
  ASSERT_EQ(slot->words[1] % 8, 0u);
  ASSERT_LE(slot->words[1] + 2 * sizeof(lane_range_column), kDataBytes);
  const auto* const records =
      reinterpret_cast<lane_range_column*>(pair.daemon.data() + slot->words[1]);
  EXPECT_EQ(records[0].base, 100u);
  EXPECT_EQ(records[0].stride, 4u);
  EXPECT_EQ(records[0].values, 0u);
  EXPECT_EQ(records[1].base, 0u);
  EXPECT_EQ(records[1].stride, 0u);
  ASSERT_NE(records[1].values, 0u);
  EXPECT_EQ(memcmp(pair.daemon.data() + records[1].values, values, sizeof(values)), 0);
}

TEST(LaneTest, ValuesInTheDataAreaAreNotCopied) {
  Pair pair;
  uint64_t bytes = 0;
  uint64_t* const data = residentd_lane_data(pair.lane, 1024, &bytes);
  ASSERT_NE(data, nullptr);
  // Values are never at offset 0, which means that there are none.
  EXPECT_EQ(bytes, kDataBytes - 1024 - 64);
  const residentd_lane_column columns[] = {{0, 0, data}, {0, 0, data + 8}};
  for (uint64_t i = 0; i < 308; ++i) data[i] = i;
  ASSERT_EQ(residentd_lane_submit_range(pair.lane, 5, 300, columns, 2, 0), 0);
  const std::optional<lane_slot> slot = pair.daemon.Take();
  EXPECT_GE(slot->words[1], kDataBytes - 1024);
  const auto* const records =
      reinterpret_cast<lane_range_column*>(pair.daemon.data() + slot->words[1]);
  EXPECT_EQ(records[0].values, 64u);
  EXPECT_EQ(records[1].values, 128u);
  EXPECT_EQ(reinterpret_cast<uint64_t*>(pair.daemon.data() + records[1].values)[299], 307u);
  EXPECT_EQ(residentd_lane_data(pair.lane, kDataBytes, &bytes), nullptr);
}

TEST(LaneTest, TheDataAreaIsUsedAgainWhenRangesHaveEnded) {
  Pair pair;
  std::vector<uint64_t> values(100);
  const residentd_lane_column columns[] = {{0, 0, values.data()}};
  uint64_t ended = 0;
  for (uint64_t s = 0; s < 1000; ++s) {
    values.assign(values.size(), s);
    int64_t sequence = residentd_lane_submit_range(
        pair.lane, 0, static_cast<uint32_t>(values.size()), columns, 1, 0);
    if (sequence == RESIDENTD_LANE_FULL) {
      // The oldest ones end, whose values must still be what they were.
      for (; ended < s; ++ended) {
        const std::optional<lane_slot> slot = pair.daemon.Take();
        const auto* record =
            reinterpret_cast<lane_range_column*>(pair.daemon.data() + slot->words[1]);
        const auto* taken = reinterpret_cast<uint64_t*>(pair.daemon.data() + record->values);
        for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(taken[i], ended);
        pair.daemon.Complete(ended);
      }
      pair.daemon.SetCompleted(ended);
      sequence = residentd_lane_submit_range(pair.lane, 0, static_cast<uint32_t>(values.size()),
                                             columns, 1, 0);
    }
    ASSERT_EQ(sequence, static_cast<int64_t>(s)) << residentd_lane_last_error();
  }
  EXPECT_GT(ended, 900u);
  // One that never fits, and those that are no ranges.
  values.resize(600);
  const residentd_lane_column large[] = {{0, 0, values.data()}};
  EXPECT_EQ(residentd_lane_submit_range(pair.lane, 0, 600, large, 1, 0), RESIDENTD_LANE_INVALID);
  EXPECT_THAT(residentd_lane_last_error(),
              HasSubstr("needs 4824 bytes of the data area, which has 4096"));
  EXPECT_EQ(residentd_lane_submit_range(pair.lane, 0, 0, columns, 1, 0), RESIDENTD_LANE_INVALID);
  EXPECT_EQ(residentd_lane_submit_range(pair.lane, 0, 1, columns, 1, RESIDENTD_LANE_DEADLINE),
            RESIDENTD_LANE_INVALID);
}

TEST(LaneTest, ALaneWithoutDataAreaTakesRangesWithoutWordsOnly) {
  FakeDaemon daemon(0);
  residentd_lane* lane;
  ASSERT_EQ(daemon.Attach(&lane), RESIDENTD_LANE_OK);
  EXPECT_EQ(residentd_lane_data(lane, 0, nullptr), nullptr);
  const residentd_lane_column columns[] = {{0, 0, nullptr}};
  EXPECT_EQ(residentd_lane_submit_range(lane, 0, 2, columns, 1, 0), RESIDENTD_LANE_INVALID);
  EXPECT_EQ(residentd_lane_submit_range(lane, 0, 2, nullptr, 0, 0), 0);
  residentd_lane_detach(lane);
}

TEST(LaneTest, AddressesOfMappedBuffersBecomePlaces) {
  Pair pair;
  float x[64], y[64];
  uint64_t place = 0;
  EXPECT_EQ(residentd_lane_place(pair.lane, x, 4, &place), RESIDENTD_LANE_INVALID);
  EXPECT_EQ(residentd_lane_map(pair.lane, 7, x, sizeof(x)), RESIDENTD_LANE_OK);
  EXPECT_EQ(residentd_lane_map(pair.lane, 9, y, sizeof(y)), RESIDENTD_LANE_OK);
  EXPECT_EQ(residentd_lane_map(pair.lane, 65536, y, sizeof(y)), RESIDENTD_LANE_INVALID);
  ASSERT_EQ(residentd_lane_place(pair.lane, x + 4, 16, &place), RESIDENTD_LANE_OK);
  EXPECT_EQ(place, residentd_lane_place_at(7, 16));
  ASSERT_EQ(residentd_lane_place(pair.lane, y, sizeof(y), &place), RESIDENTD_LANE_OK);
  EXPECT_EQ(place, residentd_lane_place_at(9, 0));
  EXPECT_EQ(residentd_lane_place(pair.lane, y + 63, 8, &place), RESIDENTD_LANE_INVALID);
  EXPECT_EQ(residentd_lane_map(pair.lane, 7, x, 0), RESIDENTD_LANE_OK);
  EXPECT_EQ(residentd_lane_place(pair.lane, x, 4, &place), RESIDENTD_LANE_INVALID);
}

TEST(LaneTest, MemoryThatAParentPassedIsMapped) {
  Pair pair;
  const int first = memfd_create("first", 0), second = memfd_create("second", 0);
  ASSERT_EQ(ftruncate(first, 4096), 0);
  ASSERT_EQ(ftruncate(second, 8192), 0);
  setenv("RESIDENTD_LANE_MEMORY", absl::StrCat(first, ":4096,", second, ":8192").c_str(), 1);
  uint64_t bytes = 0;
  auto* const memory = static_cast<uint8_t*>(residentd_lane_memory(pair.lane, 1, &bytes));
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(bytes, 8192u);
  memory[8191] = 5;
  uint8_t read = 0;
  EXPECT_EQ(pread(second, &read, 1, 8191), 1);
  EXPECT_EQ(read, 5);
  EXPECT_EQ(residentd_lane_memory(pair.lane, 1, nullptr), memory);
  uint64_t place = 0;
  EXPECT_EQ(residentd_lane_place(pair.lane, memory + 64, 64, &place), RESIDENTD_LANE_OK);
  EXPECT_EQ(place, residentd_lane_place_at(1, 64));
  EXPECT_EQ(residentd_lane_memory(pair.lane, 2, nullptr), nullptr);
  EXPECT_THAT(residentd_lane_last_error(), HasSubstr("no memory of buffer 2"));
  for (const char* wrong : {"", "x", "3", "3:", ":4096"}) {
    setenv("RESIDENTD_LANE_MEMORY", wrong, 1);
    EXPECT_EQ(residentd_lane_memory(pair.lane, 0, nullptr), nullptr) << wrong;
  }
  close(first);
  close(second);
}

TEST(LaneTest, ARefusalIsExplained) {
  Pair pair;
  residentd_lane_submit(pair.lane, 0, nullptr, 0, 0);
  pair.daemon.Complete(0, kLaneRefused, kLaneRefusedBounds);
  residentd_lane_completion done;
  ASSERT_EQ(residentd_lane_await(pair.lane, 0, -1, &done), RESIDENTD_LANE_OK);
  pair.daemon.page()->refused = 12;
  strcpy(pair.daemon.page()->refusal, "word 1: of another submission");
  EXPECT_THAT(residentd_lane_explain(pair.lane, &done),
              HasSubstr("not inside of its buffer. Fix: "));
  pair.daemon.page()->refused = 0;
  strcpy(pair.daemon.page()->refusal, "word 1: offset 8 of buffer 2, which has 4 bytes");
  EXPECT_STREQ(residentd_lane_explain(pair.lane, &done),
               "word 1: offset 8 of buffer 2, which has 4 bytes");
  for (uint16_t reason = 1; reason <= kLaneRefusedStream; ++reason) {
    const residentd_lane_completion refused = {5, 0, 0, reason, RESIDENTD_LANE_STATUS_REFUSED, 0};
    EXPECT_THAT(residentd_lane_explain(pair.lane, &refused), HasSubstr(". Fix: ")) << reason;
    EXPECT_THAT(residentd_lane_explain(pair.lane, &refused),
                ::testing::Not(HasSubstr("does not know")))
        << reason;
  }
}

TEST(LaneTest, AnAttachThatFailsSaysWhy) {
  EXPECT_EQ(residentd_lane_version(), RESIDENTD_LANE_VERSION);
  residentd_lane* lane;
  EXPECT_EQ(residentd_lane_attach("/nonexistent/socket", kToken, &lane), RESIDENTD_LANE_LOST);
  EXPECT_THAT(residentd_lane_last_error(), HasSubstr("/nonexistent/socket: No such file"));
  EXPECT_EQ(residentd_lane_attach(std::string(200, 'x').c_str(), kToken, &lane),
            RESIDENTD_LANE_INVALID);
  EXPECT_EQ(residentd_lane_attach("/nonexistent/socket", nullptr, &lane), RESIDENTD_LANE_INVALID);
  unsetenv("RESIDENTD_LANE_TOKEN");
  EXPECT_EQ(residentd_lane_attach(nullptr, nullptr, &lane), RESIDENTD_LANE_INVALID);
  EXPECT_THAT(residentd_lane_last_error(), HasSubstr("residentctl lane"));
  {
    FakeDaemon daemon;
    EXPECT_EQ(daemon.Attach(&lane, "no such token. Fix: open a lane"), RESIDENTD_LANE_NOT_ACCEPTED);
    EXPECT_STREQ(residentd_lane_last_error(), "no such token. Fix: open a lane");
    EXPECT_EQ(lane, nullptr);
  }
  {
    FakeDaemon daemon;
    daemon.welcome().layout_hash ^= 1;
    EXPECT_EQ(daemon.Attach(&lane), RESIDENTD_LANE_NOT_ACCEPTED);
    EXPECT_THAT(residentd_lane_last_error(), HasSubstr("another format"));
  }
  for (const uint32_t slots : {2 * kSlots, 0u, 63u}) {
    FakeDaemon daemon;
    daemon.welcome().slots = slots;
    EXPECT_EQ(daemon.Attach(&lane), RESIDENTD_LANE_NOT_ACCEPTED) << slots;
  }
}

}  // namespace
}  // namespace resident::testing
