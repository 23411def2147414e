#include "client/bench/measurements.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/status_macros.h"

namespace resident::bench {
namespace {

using Clock = std::chrono::steady_clock;

// A batch that is sent repeatedly, and the buffer that its tasks write.
struct Slot {
  client::Buffer<float> out;
  std::unique_ptr<client::TaskBatch> batch;
  float alpha = 0;
  bool used = false;
  Clock::time_point sent;
};

// The reports of the stream's threads: free slots, latencies, the first failure.
class Answers {
 public:
  explicit Answers(size_t slots) {
    for (size_t i = 0; i < slots; ++i) free_.push_back(i);
  }

  // Waits for a slot that can be sent. Returns the first failure if there is one.
  absl::StatusOr<size_t> Take() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Answers::Ready));
    if (!status_.ok()) return status_;
    const size_t slot = free_.back();
    free_.pop_back();
    return slot;
  }

  void Answer(size_t slot, double us, const absl::StatusOr<client::Result>& result) {
    absl::MutexLock lock(&mutex_);
    if (status_.ok()) status_ = result.ok() ? result->status() : result.status();
    latencies_us_.push_back(us);
    free_.push_back(slot);
  }

  absl::Status status() {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

  std::vector<double> TakeLatencies() {
    absl::MutexLock lock(&mutex_);
    return std::move(latencies_us_);
  }

 private:
  bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !free_.empty() || !status_.ok();
  }

  absl::Mutex mutex_;
  std::vector<size_t> free_ ABSL_GUARDED_BY(mutex_);
  std::vector<double> latencies_us_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

struct Rate {
  uint64_t batches = 0;
  double seconds = 0;
  std::vector<double> batch_us;
};

// Sends the batches of the slots repeatedly over one stream.
absl::StatusOr<Rate> Send(client::Client& client, const TaskStreamOptions& options,
                          std::vector<Slot>& slots, const std::function<void(double)>& progress) {
  Answers answers(slots.size());
  ASSIGN_OR_RETURN(std::unique_ptr<client::Stream> stream,
                   client.OpenStream({.max_in_flight = static_cast<uint32_t>(slots.size())}));
  Rate rate;
  const Clock::duration duration = absl::ToChronoNanoseconds(options.duration);
  const Clock::time_point start = Clock::now();
  while (options.batches > 0 ? rate.batches < options.batches : Clock::now() - start < duration) {
    ASSIGN_OR_RETURN(size_t index, answers.Take());
    Slot& slot = slots[index];
    slot.used = true;
    slot.sent = Clock::now();
    RETURN_IF_ERROR(
        stream->Send(*slot.batch, [&, i = index](const absl::StatusOr<client::Result>& result) {
          const std::chrono::duration<double, std::micro> us = Clock::now() - slots[i].sent;
          answers.Answer(i, us.count(), result);
        }));
    ++rate.batches;
    if (rate.batches % 16 == 0) {
      progress(options.batches > 0
                   ? static_cast<double>(rate.batches) / static_cast<double>(options.batches)
                   : std::chrono::duration<double>(Clock::now() - start) /
                         std::chrono::duration<double>(duration));
    }
  }
  RETURN_IF_ERROR(stream->Finish());
  rate.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  RETURN_IF_ERROR(answers.status());
  rate.batch_us = answers.TakeLatencies();
  return rate;
}

// Downloads the results of a slot's tasks and compares them with sums of the CPU.
absl::Status Check(const Slot& slot, size_t index, const std::vector<float>& x,
                   const std::vector<float>& y, TaskStreamReport& report) {
  ASSIGN_OR_RETURN(std::vector<float> sums, slot.out.Download());
  for (size_t i = 0; i < x.size(); ++i) {
    const float expected = x[i] + slot.alpha * y[i];
    if (sums[i] == expected) continue;
    if (report.wrong++ == 0) {
      report.first_difference = absl::StrCat("batch slot ", index, ", element ", i, ": ", sums[i],
                                             " instead of ", expected);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TaskStreamReport> StreamTasks(client::Client& client,
                                             const TaskStreamOptions& options,
                                             const std::function<void(double)>& progress) {
  // Whole numbers: exact in float32, also when the device fuses multiply and add.
  const uint64_t total = uint64_t{options.batch} * options.elements;
  std::vector<float> x(total), y(total);
  for (uint64_t i = 0; i < total; ++i) {
    x[i] = static_cast<float>(i % 65521);
    y[i] = static_cast<float>(i % 251);
  }
  client::BufferOptions on{.device = options.device};
  ASSIGN_OR_RETURN(client::Buffer<float> x_buffer, client.Upload(x, on));
  on.device = x_buffer.device();
  ASSIGN_OR_RETURN(client::Buffer<float> y_buffer, client.Upload(y, on));

  const client::View rows{.shape = {options.elements}, .stride = options.elements};
  uint32_t slot_count = std::max(options.in_flight, 1u);
  if (options.batches > 0) {
    slot_count = static_cast<uint32_t>(std::min<uint64_t>(slot_count, options.batches));
  }
  std::vector<Slot> slots(slot_count);
  for (size_t i = 0; i < slots.size(); ++i) {
    ASSIGN_OR_RETURN(client::Buffer<float> out, client.Allocate<float>({total}, on));
    slots[i].out = std::move(out);
    slots[i].alpha = static_cast<float>(i % 16 + 1);
    slots[i].batch = std::make_unique<client::TaskBatch>("add", options.batch);
    slots[i].batch->Use(x_buffer, rows).Use(y_buffer, rows).Use(slots[i].out, rows);
    slots[i].batch->Scalar(slots[i].alpha);
  }

  TaskStreamReport report;
  // The echo takes as long again.
  const double share = options.echo == nullptr ? 1 : 0.5;
  ASSIGN_OR_RETURN(Rate rate,
                   Send(client, options, slots, [&](double done) { progress(share * done); }));
  report.batches = rate.batches;
  report.seconds = rate.seconds;
  report.tasks = report.batches * options.batch;
  report.batch_us = std::move(rate.batch_us);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].used) continue;
    RETURN_IF_ERROR(Check(slots[i], i, x, y, report));
  }
  if (options.echo != nullptr) {
    ASSIGN_OR_RETURN(rate, Send(*options.echo, options, slots,
                                [&](double done) { progress(share + share * done); }));
    report.echo_batches = rate.batches;
    report.echo_seconds = rate.seconds;
  }
  return report;
}

}  // namespace resident::bench
