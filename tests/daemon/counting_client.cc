#include "tests/daemon/counting_client.h"

#include <gtest/gtest.h>

#include "tests/daemon/client.h"

namespace resident::testing {
namespace {

// Number of tasks of a batch, number of counters of a session, and batches that count each once.
constexpr uint32_t kCountedBatch = 50;
constexpr uint32_t kCounted = 1 << 16;
constexpr uint32_t kBatchesOfRound = kCounted / kCountedBatch;

}  // namespace

CountingClient::CountingClient(const Daemon& daemon)
    : daemon_(daemon), thread_([this] { CountUntilStopped(); }) {
  EXPECT_TRUE(Eventually([&] { return batches_ > 0; }));
}

CountingClient::~CountingClient() {
  stop_ = true;
  thread_.join();
}

bool CountingClient::KeepsRunning() const {
  const uint64_t before = batches_;
  return Eventually([&] { return batches_ >= before + 2; });
}

void CountingClient::CountUntilStopped() {
  while (!stop_) CountInOneSession();
}

void CountingClient::CountInOneSession() {
  const Client client(daemon_, "counting");
  grpc::Status imported;
  const Counters counters(client, kCounted, 0, &imported);
  if (!imported.ok()) {  // The engine is being replaced.
    ++interruptions_;
    return;
  }
  for (uint64_t batch = 0; !stop_; ++batch) {
    const auto first = static_cast<uint32_t>(batch % kBatchesOfRound * kCountedBatch);
    const auto round = static_cast<float>(batch / kBatchesOfRound + 1);
    const RunOutcome outcome = client.Run(counters.Batch(first, kCountedBatch));
    for (uint32_t i = 0; i < kCountedBatch; ++i) {
      if (outcome.status(static_cast<int>(i)) == v1::TASK_STATUS_OK) {
        EXPECT_EQ(counters.value(first + i), round) << "task " << i;
      } else {
        EXPECT_LE(counters.value(first + i), round) << "task " << i;
      }
    }
    if (!outcome.all_ok()) {
      EXPECT_NE(outcome.message().find("Fix: "), std::string::npos) << outcome.message();
      ++interruptions_;
      return;
    }
    ++batches_;
  }
}

}  // namespace resident::testing
