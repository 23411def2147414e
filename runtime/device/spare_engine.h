// SpareEngine: keeps one prepared engine process for a device, for whoever needs one first: the
// supervisor, in place of an engine that has ended, or an install that validates a version. To
// prepare one takes a GPU 200 to 400 ms; to start a prepared one takes a few.
//
// A spare has a context and the kernel's image, does no work on the device and has no buffer
// memory. It is confined as every engine is.
//
//                  ┌──────────────── backoff ◀── it ended, or could not be prepared ──┐
//                  ▼                                                                  │
//   (none) ──Refill──▶ preparing ──▶ ready ───────────────────────────────────────────┘
//      ▲                   │           │
//      └──────── Take ─────┴───────────┘
//
// Refill is a call of its own, because preparing one takes processor time and the driver's locks:
// whoever has taken the spare says when it is no longer in a hurry.
//
// Thread safety: all members may be called from any thread.
//
//   auto spare = std::make_shared<SpareEngine>(options);
//   spare->Refill();
//   std::unique_ptr<EngineProcess> process = spare->Take();  // Null: launch one.
//   ...
//   spare->Refill();
#ifndef RESIDENT_RUNTIME_DEVICE_SPARE_ENGINE_H_
#define RESIDENT_RUNTIME_DEVICE_SPARE_ENGINE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/process/wake_event.h"
#include "runtime/device/device_control.h"
#include "runtime/device/engine_process.h"

namespace resident {

class SpareEngine {
 public:
  // A failure is followed by a wait: none after the first, then these, doubled each time. A spare
  // that was taken, or lived for kLongestWait, ends the series.
  static constexpr std::chrono::milliseconds kFirstWait{1'000};
  static constexpr std::chrono::milliseconds kLongestWait{60'000};

  // As EngineProcess::Launch has them. Nothing is started before Refill.
  explicit SpareEngine(const DeviceOptions& options);
  ~SpareEngine();
  SpareEngine(const SpareEngine&) = delete;
  SpareEngine& operator=(const SpareEngine&) = delete;

  // The spare, no longer this object's, after at most kPrepareLimit if it is being prepared. Null:
  // there is none, or its staging is smaller than `staging_bytes`.
  std::unique_ptr<EngineProcess> Take(uint64_t staging_bytes = 0);
  // There is to be one.
  void Refill();
  // Ends it for good.
  void Stop();

  // Of a spare that is ready; 0: there is none.
  int64_t pid() const;

 private:
  void Work();
  // Prepares one; whether it is ready.
  bool Prepare();
  // Waits until the spare was taken or has ended, or Stop; false: it has ended.
  bool Watch();
  // Waits after a failure.
  void BackOff();

  const DeviceOptions options_;
  WakeEvent wake_;

  mutable absl::Mutex mu_;
  bool wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool ready_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<EngineProcess> process_ ABSL_GUARDED_BY(mu_);  // Being prepared, or ready.
  std::chrono::milliseconds wait_ ABSL_GUARDED_BY(mu_){0};       // After the next failure.

  absl::Mutex stop_mu_ ABSL_ACQUIRED_BEFORE(mu_);  // Whoever joins the worker.
  std::thread worker_ ABSL_GUARDED_BY(stop_mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_SPARE_ENGINE_H_
