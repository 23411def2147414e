// SpareEngine: keeps one prepared engine process for a device. It is taken either by the
// supervisor, to replace an engine that has ended, or by an install, to validate a version.
// Preparing one for a GPU takes 200 to 400 ms; starting a prepared one takes a few milliseconds.
//
// A spare has a context and the kernel's image, does no work on the device and has no buffer
// memory. It is confined like every engine.
//
//                  ┌──────────────── backoff ◀── it ended, or could not be prepared ──┐
//                  ▼                                                                  │
//   (none) ──Refill──▶ preparing ──▶ ready ───────────────────────────────────────────┘
//      ▲                   │           │
//      └──────── Take ─────┴───────────┘
//
// Take does not refill, because preparing a spare takes processor time and the driver's locks: the
// caller of Take calls Refill when its own work is no longer urgent.
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
  // Waits after failures: none after the first, then kFirstWait, doubled each time up to
  // kLongestWait. A spare that was taken, or ran for kLongestWait, resets the wait.
  static constexpr std::chrono::milliseconds kFirstWait{1'000};
  static constexpr std::chrono::milliseconds kLongestWait{60'000};

  // `options`: see EngineProcess::Launch. Nothing is started before Refill.
  explicit SpareEngine(const DeviceOptions& options);
  ~SpareEngine();
  SpareEngine(const SpareEngine&) = delete;
  SpareEngine& operator=(const SpareEngine&) = delete;

  // Returns the spare and its ownership. If it is being prepared, waits at most kPrepareLimit.
  // Null: there is none, or its staging memory is smaller than `staging_bytes`.
  std::unique_ptr<EngineProcess> Take(uint64_t staging_bytes = 0);
  // Starts to prepare a spare, unless there is one.
  void Refill();
  // Ends the spare; no other one is prepared.
  void Stop();

  // Process of a spare that is ready; 0: there is none.
  int64_t pid() const;

 private:
  void Work();
  // Prepares a spare; returns whether it is ready.
  bool Prepare();
  // Waits until the spare was taken or has ended, or until Stop. Returns false if it has ended.
  bool Watch();
  // Waits after a failure.
  void BackOff();

  const DeviceOptions options_;
  WakeEvent wake_;

  mutable absl::Mutex mu_;
  bool wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool ready_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<EngineProcess> process_ ABSL_GUARDED_BY(mu_);  // It is being prepared, or ready.
  std::chrono::milliseconds wait_ ABSL_GUARDED_BY(mu_){0};       // Wait after the next failure.

  absl::Mutex stop_mu_ ABSL_ACQUIRED_BEFORE(mu_);  // Held while the worker is joined.
  std::thread worker_ ABSL_GUARDED_BY(stop_mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_SPARE_ENGINE_H_
