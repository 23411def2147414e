#include "runtime/engine/cuda/launch_shape.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/layout/ring_layout.h"
#include "kernels/resident/kernel_parameters.h"

namespace resident {
namespace {

constexpr uint32_t kWarpThreads = 32;
// The registers of an SM are divided among its schedulers, and so are the warps of a block.
constexpr uint32_t kSchedulers = 4;
// Blocks are added up to this many threads that run operators: more of them share the
// registers and L1 that a wide task's loads in flight need.
constexpr uint32_t kThreadsPerSm = kLargestBlocksPerSm * kMaxComputeThreads;
// Each block has a breadcrumb, and a place in each quarter of the device ring.
constexpr uint32_t kMaxBlocks = std::min(kMaxWorkers, kDeviceRingSlots / kDeviceRingQuarters);

}  // namespace

absl::StatusOr<uint32_t> ComputeThreads(uint32_t setting) {
  if (setting == 0) return kMaxComputeThreads;
  if (setting < kMinComputeThreads || setting > kMaxComputeThreads || setting % kWarpThreads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--threads_per_block=", setting, " is not a multiple of ", kWarpThreads, " from ",
        kMinComputeThreads, " to ", kMaxComputeThreads, " (the kernel is compiled for blocks of ",
        kMaxComputeThreads, " with ", kMaxRegisters,
        " registers each). Fix: set it to one of these, or to 0 for the most"));
  }
  return setting;
}

absl::StatusOr<uint32_t> BlocksPerSm(uint32_t setting, uint32_t fit, const BlockFootprint& block,
                                     const SmResources& sm) {
  if (setting > fit || fit == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--blocks_per_sm=", setting, " does not fit: a block takes ", block.threads, " threads, ",
        block.registers, " registers a thread and ", block.shared_bytes, " + ",
        kReservedSharedBytes, " bytes of shared memory; an SM has ", sm.threads, " threads, ",
        sm.registers, " registers, ", sm.shared_bytes, " bytes and room for ", sm.blocks,
        " blocks of any kind, which is ", fit, " such blocks. Fix: ",
        fit == 0 ? "" : absl::StrCat("set --blocks_per_sm to at most ", fit, ", or "),
        "set --threads_per_block lower"));
  }
  if (setting != 0) return setting;
  const uint32_t compute_threads = block.threads - kControlThreads;
  return std::min(fit, std::max(kThreadsPerSm / compute_threads, 1u));
}

absl::Status CheckSmsFree(uint32_t setting, uint32_t sms) {
  if (setting < sms) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--sms_free=", setting, " leaves none of the ",
                                                 sms, " SMs. Fix: leave at most ", sms - 1,
                                                 " free"));
}

absl::StatusOr<uint32_t> CountBlocks(uint32_t sms, uint32_t per_sm, uint32_t max_blocks) {
  uint32_t blocks = std::min(sms * per_sm, kMaxBlocks);
  if (max_blocks != 0) blocks = std::min(blocks, max_blocks);
  if (blocks < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the kernel needs two blocks, one that polls and one that works, and has ", blocks, " (",
        sms, " SMs with ", per_sm, " each). Fix: raise --blocks_per_sm or lower --sms_free"));
  }
  return blocks;
}

uint32_t GraphBlocks(uint32_t blocks, uint32_t per_sm) {
  if (blocks < 3) return 0;
  return std::min({(blocks - 1 + per_sm - 1) / per_sm, blocks / 2, kMaxGraphWorkers});
}

uint32_t AllocatedRegisters(uint32_t registers) {
  constexpr uint32_t kUnit = 8;
  return (registers + kUnit - 1) / kUnit * kUnit;
}

bool FitsBeside(const BlockFootprint& graph_block, const BlockFootprint& block, uint32_t per_sm,
                const SmResources& sm) {
  const uint64_t others = per_sm - 1;
  // Each warp goes to the scheduler behind that of the warp before it.
  uint64_t registers[kSchedulers] = {};
  uint64_t warps = 0;
  const auto place = [&](const BlockFootprint& of) {
    const uint32_t of_thread = AllocatedRegisters(of.registers);
    for (uint32_t i = 0; i < of.threads / kWarpThreads; ++i) {
      registers[warps++ % kSchedulers] += uint64_t{of_thread} * kWarpThreads;
    }
  };
  place(graph_block);
  for (uint64_t i = 0; i < others; ++i) place(block);
  return graph_block.threads + others * block.threads <= sm.threads &&
         *std::max_element(registers, registers + kSchedulers) <= sm.registers / kSchedulers &&
         graph_block.shared_bytes + others * block.shared_bytes + per_sm * kReservedSharedBytes <=
             sm.shared_bytes;
}

uint32_t SharedMemoryPercent(uint32_t per_sm, const BlockFootprint& block, const SmResources& sm) {
  return SharedMemoryPercentBeside(block, block, per_sm, sm);
}

uint32_t SharedMemoryPercentBeside(const BlockFootprint& graph_block, const BlockFootprint& block,
                                   uint32_t per_sm, const SmResources& sm) {
  const uint64_t bytes = graph_block.shared_bytes + uint64_t{per_sm - 1} * block.shared_bytes +
                         uint64_t{per_sm} * kReservedSharedBytes;
  return static_cast<uint32_t>(
      std::min<uint64_t>((bytes * 100 + sm.shared_bytes - 1) / sm.shared_bytes, 100));
}

}  // namespace resident
