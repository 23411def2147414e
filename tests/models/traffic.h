// Traffic: threads that send requests to a model until it is stopped, or a check of the test fails.
//
//   Traffic traffic(/*threads=*/6, [&](std::mt19937& random) { return Ask(random); });
//   ...
//   traffic.Stop();
//   EXPECT_GT(traffic.served(1), 0u);
#ifndef RESIDENT_TESTS_MODELS_TRAFFIC_H_
#define RESIDENT_TESTS_MODELS_TRAFFIC_H_

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace resident::testing {

class Traffic {
 public:
  // Sends a request, checks its answer, and returns the version that has answered; 0: none, or one
  // that is not counted. Called by all threads, each with a generator of its own.
  using Send = std::function<uint32_t(std::mt19937& random)>;

  Traffic(uint32_t threads, Send send) : send_(std::move(send)) {
    for (uint32_t i = 0; i < threads; ++i) {
      threads_.emplace_back([this, seed = std::random_device{}()] {
        std::mt19937 random(seed);
        while (!ended_ && !::testing::Test::HasFailure()) ++served_.at(send_(random));
      });
    }
  }
  ~Traffic() { Stop(); }
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  void Stop() {
    ended_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  uint64_t served(uint32_t version) const { return served_.at(version); }
  uint64_t served() const {
    uint64_t sum = 0;
    for (uint32_t version = 1; version < served_.size(); ++version) sum += served_[version];
    return sum;
  }

 private:
  const Send send_;
  std::atomic<bool> ended_{false};
  std::array<std::atomic<uint64_t>, 8> served_{};  // By version.
  std::vector<std::thread> threads_;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_MODELS_TRAFFIC_H_
