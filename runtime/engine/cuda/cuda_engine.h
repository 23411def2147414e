// CudaEngine: the resident kernel on a GPU.
//
// After Start() nothing here calls what waits for a resident kernel (module loading,
// freeing, unregistering: docs/gpu_facts.md); such work is put off until the kernel is
// parked.
//
// Thread safety: as Engine.
#ifndef RESIDENT_RUNTIME_ENGINE_CUDA_CUDA_ENGINE_H_
#define RESIDENT_RUNTIME_ENGINE_CUDA_CUDA_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

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
      std::shared_ptr<const Generation> generation) override {
    return absl::UnimplementedError("Stage");
  }
  absl::StatusOr<SwitchTimes> Switch(uint64_t change, bool launch,
                                     std::chrono::nanoseconds most) override {
    return absl::UnimplementedError("Switch");
  }
  absl::StatusOr<uint64_t> MapShared(int fd, uint64_t bytes) override;
  absl::Status UnmapShared(uint64_t address) override;
  absl::Status Health() override;

 private:
  absl::Status OpenDevice();
  absl::Status LoadImage();
  // How many blocks to launch, and the stream to launch them on.
  absl::Status ChooseLaunch();
  absl::Status CreateStream(uint32_t sms);
  absl::Status AllocateMemory(const SharedRegion& region);
  absl::Status Launch();
  absl::Status UnmapDeferred();
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
  CUfunction kernel_ = nullptr;
  CUstream stream_ = nullptr;
  uint32_t blocks_ = 0;
  KernelParameters parameters_{};
  std::atomic<bool> resident_{false};
  std::map<uint64_t, Mapping> mappings_;  // By device address.
  std::vector<Mapping> unmap_deferred_;
  EngineInfo info_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CUDA_CUDA_ENGINE_H_
