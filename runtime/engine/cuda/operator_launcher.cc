#include "runtime/engine/cuda/operator_launcher.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/resident/kernel_parameters.h"
#include "runtime/base/status_macros.h"
#include "runtime/engine/cuda/driver.h"
#include "runtime/image/first_generation.h"

namespace resident {
namespace {

#define RETURN_IF_CUDA_ERROR(call_name, ...) \
  RETURN_IF_ERROR(driver_.Check(driver_.call_name(__VA_ARGS__), #call_name))

// Makes a context current; at the end of its life, the previous one again.
class CurrentContext {
 public:
  CurrentContext(const Driver& driver, CUcontext context)
      : driver_(driver),
        status_(driver.Check(driver.cuCtxPushCurrent(context), "cuCtxPushCurrent")) {}
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  ~CurrentContext() {
    CUcontext popped = nullptr;
    if (status_.ok()) driver_.cuCtxPopCurrent(&popped);
  }
  const absl::Status& status() const { return status_; }

 private:
  const Driver& driver_;
  const absl::Status status_;
};

class CudaLauncher : public OperatorLauncher {
 public:
  explicit CudaLauncher(const Driver& driver) : driver_(driver) {}

  ~CudaLauncher() override {
    if (context_ == nullptr) return;
    {
      // After an error of the context these calls fail, and the process has to end anyway.
      const CurrentContext current(driver_, context_);
      if (scratch_ != 0) driver_.cuMemFree(scratch_);
      if (task_memory_ != 0) driver_.cuMemFree(task_memory_);
      if (outcome_ != nullptr) driver_.cuMemFreeHost(outcome_);
      if (module_ != nullptr) driver_.cuModuleUnload(module_);
    }
    driver_.cuDevicePrimaryCtxRelease(device_);
  }

  absl::Status Open(int ordinal, uint32_t max_blocks) {
    int count = 0;
    RETURN_IF_CUDA_ERROR(cuDeviceGetCount, &count);
    if (ordinal >= count) {
      return absl::UnavailableError(
          absl::StrCat("there is no GPU ", ordinal, ": the driver reports ", count));
    }
    RETURN_IF_CUDA_ERROR(cuDeviceGet, &device_, ordinal);
    RETURN_IF_CUDA_ERROR(cuDevicePrimaryCtxRetain, &context_, device_);
    const CurrentContext current(driver_, context_);
    RETURN_IF_ERROR(current.status());
    RETURN_IF_ERROR(RaiseStackLimit());
    RETURN_IF_ERROR(LoadKernel());
    return TakeMemory(max_blocks);
  }

  absl::Status Launch(OperatorLaunch& launch, void* stream) override {
    launch.outcome = device_outcome_;
    launch.scratch = std::bit_cast<unsigned char*>(scratch_);
    const CurrentContext current(driver_, context_);
    RETURN_IF_ERROR(current.status());
    void* arguments[] = {&launch};
    const auto blocks = static_cast<unsigned>(std::min<uint64_t>(launch.chunks, blocks_));
    // A chunk must not wait for one of a block that does not run yet.
    launch.task_memory =
        launch.chunks > blocks ? nullptr : std::bit_cast<TaskMemory*>(task_memory_);
    RETURN_IF_CUDA_ERROR(cuLaunchKernel, kernel_, blocks, 1, 1,
                         kMaxComputeThreads + kControlThreads, 1, 1, 0,
                         static_cast<CUstream>(stream), arguments, nullptr);
    return absl::OkStatus();
  }

  LaunchOutcome* outcome() override { return outcome_; }

 private:
  absl::StatusOr<int> Attribute(CUdevice_attribute attribute) const {
    int value = 0;
    RETURN_IF_CUDA_ERROR(cuDeviceGetAttribute, &value, attribute, device_);
    return value;
  }

  // The kernel calls operators through pointers, so that the driver cannot compute the stack.
  absl::Status RaiseStackLimit() {
    size_t bytes = 0;
    RETURN_IF_CUDA_ERROR(cuCtxGetLimit, &bytes, CU_LIMIT_STACK_SIZE);
    if (bytes >= kThreadStackBytes) return absl::OkStatus();
    RETURN_IF_CUDA_ERROR(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, kThreadStackBytes);
    return absl::OkStatus();
  }

  absl::Status LoadKernel() {
    ASSIGN_OR_RETURN(const int major, Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
    ASSIGN_OR_RETURN(const int minor, Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
    ASSIGN_OR_RETURN(const std::string image, FirstGenerationImage(major, minor));
    RETURN_IF_CUDA_ERROR(cuModuleLoadData, &module_, image.data());
    RETURN_IF_CUDA_ERROR(cuModuleGetFunction, &kernel_, module_, kOperatorLaunchName);
    return absl::OkStatus();
  }

  absl::Status TakeMemory(uint32_t max_blocks) {
    int per_sm = 0;
    RETURN_IF_CUDA_ERROR(cuOccupancyMaxActiveBlocksPerMultiprocessor, &per_sm, kernel_,
                         static_cast<int>(kMaxComputeThreads + kControlThreads), 0);
    ASSIGN_OR_RETURN(const int sms, Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    blocks_ = static_cast<uint32_t>(std::max(1, per_sm * sms));
    if (max_blocks != 0) blocks_ = std::min(blocks_, max_blocks);
    RETURN_IF_CUDA_ERROR(cuMemAlloc, &scratch_, blocks_ * kScratchBytes);
    RETURN_IF_CUDA_ERROR(cuMemAlloc, &task_memory_, sizeof(TaskMemory));
    RETURN_IF_CUDA_ERROR(cuMemsetD8Async, task_memory_, 0, sizeof(TaskMemory), nullptr);
    // Waits for it: launches are on other streams.
    u32 arrived = 0;
    RETURN_IF_CUDA_ERROR(cuMemcpyDtoH, &arrived, task_memory_, sizeof(arrived));
    void* host = nullptr;
    RETURN_IF_CUDA_ERROR(cuMemHostAlloc, &host, sizeof(LaunchOutcome), CU_MEMHOSTALLOC_DEVICEMAP);
    std::memset(host, 0, sizeof(LaunchOutcome));
    outcome_ = static_cast<LaunchOutcome*>(host);
    CUdeviceptr address = 0;
    RETURN_IF_CUDA_ERROR(cuMemHostGetDevicePointer, &address, host, 0);
    device_outcome_ = std::bit_cast<LaunchOutcome*>(address);
    return absl::OkStatus();
  }

  const Driver& driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction kernel_ = nullptr;
  uint32_t blocks_ = 0;
  CUdeviceptr scratch_ = 0;
  CUdeviceptr task_memory_ = 0;
  LaunchOutcome* outcome_ = nullptr;
  LaunchOutcome* device_outcome_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<OperatorLauncher>> OperatorLauncher::Create(int ordinal,
                                                                           uint32_t max_blocks) {
  ASSIGN_OR_RETURN(const Driver* const driver, Driver::Get());
  auto launcher = std::make_unique<CudaLauncher>(*driver);
  RETURN_IF_ERROR(launcher->Open(ordinal, max_blocks));
  return launcher;
}

}  // namespace resident
