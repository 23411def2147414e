// CudaEngine: the resident kernel on a GPU.
//
// After Start() nothing here calls what waits for a resident kernel (module loading and
// unloading, freeing, unregistering: docs/gpu_facts.md); such work is put off until the
// kernel is parked. The module of a former generation stays loaded until the next park, so
// that a change that fails has something to go back to.
//
// Thread safety: as Engine. What a call beside the others shares with them is guarded by
// staged_mu_ and by mappings_mu_; the latter is held while the kernel is launched, so that
// nothing is unregistered behind a kernel's back.
#ifndef RESIDENT_RUNTIME_ENGINE_CUDA_CUDA_ENGINE_H_
#define RESIDENT_RUNTIME_ENGINE_CUDA_CUDA_ENGINE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/resident/kernel_parameters.h"
#include "runtime/engine/cuda/driver.h"
#include "runtime/engine/engine.h"

namespace resident {

class CudaEngine : public Engine {
 public:
  CudaEngine(const EngineOptions& options, const Driver& driver)
      : options_(options), driver_(driver) {}
  // Leaves the device's memory to the process's end: freeing waits for the kernel.
  ~CudaEngine() override = default;

  absl::StatusOr<EngineInfo> Start(const SharedRegion& region) override;
  absl::Status AwaitPark(std::chrono::nanoseconds most) override;
  absl::Status Resume() override;
  absl::StatusOr<std::vector<OperatorResources>> Stage(
      std::shared_ptr<const Generation> generation) override;
  absl::StatusOr<SwitchTimes> Switch(uint64_t change, bool launch,
                                     std::chrono::nanoseconds most) override;
  absl::StatusOr<uint64_t> MapShared(int fd, uint64_t bytes) override;
  absl::Status UnmapShared(uint64_t address) override;
  absl::Status Health() override;

 private:
  // An image, loaded or to be.
  struct Image {
    uint64_t number = 1;
    // Null: the first generation's, which is part of this program.
    std::shared_ptr<const std::string> bytes;
    std::vector<OperatorResources> operators;
    CUmodule module = nullptr;
    CUfunction kernel = nullptr;
  };

  absl::Status OpenDevice();
  absl::Status LoadFirstImage();
  // Reads what the generation's functions need, and refuses what would not run.
  absl::StatusOr<Image> Inspect(const Generation& generation) const;
  // Loads the image and prepares its kernel. REQUIRES: no kernel on the device.
  absl::Status Load(Image* image);
  absl::Status UnloadRetired();
  // How many blocks to launch, and the stream to launch them on.
  absl::Status ChooseLaunch();
  absl::Status CreateStream(uint32_t sms);
  absl::Status AllocateMemory(const SharedRegion& region);
  absl::Status Launch() ABSL_LOCKS_EXCLUDED(mappings_mu_);
  // Waits until the stream is empty, spinning for `spin` of it. OK, DEADLINE_EXCEEDED, or
  // what ended the kernel. `withdrawn`, if not null, is asked now and then: CANCELLED.
  absl::Status AwaitStream(std::chrono::nanoseconds most, std::chrono::nanoseconds spin,
                           const std::function<bool()>& withdrawn,
                           const std::function<bool()>& hurry);
  void NoteParked() ABSL_LOCKS_EXCLUDED(mappings_mu_);
  absl::Status UnmapDeferred() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mappings_mu_);
  absl::StatusOr<int> Attribute(CUdevice_attribute attribute) const;
  absl::StatusOr<uint64_t> AllocateZeroed(uint64_t bytes, const char* what);

  struct Mapping {
    void* host;
    uint64_t bytes;
  };

  const EngineOptions options_;
  const Driver& driver_;
  const SharedRegion* region_ = nullptr;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  Image image_;                 // On the device.
  CUmodule retired_ = nullptr;  // To be unloaded at the next park.
  int carveout_ = 0;            // Percent of an SM's memory that is shared memory.
  CUstream stream_ = nullptr;
  uint32_t blocks_ = 0;
  KernelParameters parameters_{};
  absl::Mutex staged_mu_;
  std::optional<Image> staged_ ABSL_GUARDED_BY(staged_mu_);
  absl::Mutex mappings_mu_;
  bool resident_ ABSL_GUARDED_BY(mappings_mu_) = false;
  std::map<uint64_t, Mapping> mappings_ ABSL_GUARDED_BY(mappings_mu_);  // By device address.
  std::vector<Mapping> unmap_deferred_ ABSL_GUARDED_BY(mappings_mu_);
  EngineInfo info_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CUDA_CUDA_ENGINE_H_
