#include "server/console/history.h"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "nlohmann/json.hpp"

namespace resident {

History::History(std::function<Totals()> read, TimeSource& time)
    : read_(std::move(read)), time_(time), thread_([this] { Loop(); }) {}

History::~History() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void History::Loop() {
  prctl(PR_SET_NAME, "resident-chart");
  Totals before = read_();
  TimeSource::TimePoint began = time_.Now();
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      time_.Await(mu_, absl::Condition(&stopping_), began + kInterval);
      if (stopping_) return;
    }
    Totals now = read_();
    const TimeSource::TimePoint ended = time_.Now();
    // Longer than kInterval if the thread was late.
    const double seconds = std::chrono::duration<double>(ended - began).count();
    Rates rates{
        .tasks = static_cast<double>(now.tasks - before.tasks) / seconds,
        .received_bytes = static_cast<double>(now.received_bytes - before.received_bytes) / seconds,
        .sent_bytes = static_cast<double>(now.sent_bytes - before.sent_bytes) / seconds};
    for (size_t device = 0; device < now.busy.size(); ++device) {
      const std::chrono::duration<double> busy = now.busy[device] - before.busy[device];
      rates.busy.push_back(std::clamp(busy.count() / seconds, 0.0, 1.0));
    }
    absl::MutexLock lock(&mu_);
    rates_.push_back(std::move(rates));
    if (rates_.size() > kIntervals) rates_.pop_front();
    before = std::move(now);
    began = ended;
  }
}

std::string History::Json() const {
  nlohmann::json json = {{"interval_s", kInterval.count()},
                         {"tasks", nlohmann::json::array()},
                         {"received_bytes", nlohmann::json::array()},
                         {"sent_bytes", nlohmann::json::array()},
                         {"busy", nlohmann::json::array()}};
  absl::MutexLock lock(&mu_);
  for (const Rates& rates : rates_) {
    json["tasks"].push_back(rates.tasks);
    json["received_bytes"].push_back(rates.received_bytes);
    json["sent_bytes"].push_back(rates.sent_bytes);
    for (size_t device = 0; device < rates.busy.size(); ++device) {
      json["busy"][device].push_back(rates.busy[device]);
    }
  }
  return json.dump();
}

}  // namespace resident
