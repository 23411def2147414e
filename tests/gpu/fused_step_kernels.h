// What the kernels of FusedStep (fused_step.h) and the host share.
#ifndef RESIDENT_TESTS_GPU_FUSED_STEP_KERNELS_H_
#define RESIDENT_TESTS_GPU_FUSED_STEP_KERNELS_H_

#include <cstdint>

namespace resident::testing::fused {

// Llama-3.2-1B. The table of embeddings is the head.
inline constexpr uint32_t kLayers = 16;
inline constexpr uint32_t kHidden = 2048;
inline constexpr uint32_t kInner = 8192;
inline constexpr uint32_t kVocab = 128256;
inline constexpr uint32_t kHeads = 32;
inline constexpr uint32_t kKvHeads = 8;
inline constexpr uint32_t kHeadDim = 64;
inline constexpr uint32_t kQkvRows = (kHeads + 2 * kKvHeads) * kHeadDim;
// Positions of the cache.
inline constexpr uint32_t kCapacity = 768;

// Weights are copied in units, and used in pages: a page is 16 segments of 1 KiB.
inline constexpr uint32_t kPageBytes = 16384;
inline constexpr uint32_t kUnitBytes = 8192;
inline constexpr uint32_t kPages = 10;
// Units that are on their way to a block at the same time, and the same while it waits.
inline constexpr uint32_t kUnitsInFlight = 5;
inline constexpr uint32_t kUnitsInFlightWaiting = 3;

inline constexpr uint32_t kComputeThreads = 256;
inline constexpr uint32_t kStepThreads = kComputeThreads + 32;
// Steps of a measurement; tokens and records of so many are kept.
inline constexpr uint32_t kKeptSteps = 1024;
// Words between two counters.
inline constexpr uint32_t kCounterWords = 32;
inline constexpr uint32_t kCounters = 128;
inline constexpr uint32_t kStepCounter = kCounters - 1;

// The parts of a step.
enum Kind : uint32_t { kQkv, kAttention, kOut, kUp, kDown, kHead };
inline constexpr uint32_t kKinds = 6;
inline constexpr uint32_t kPhases = 5 * kLayers + 1;

// A part of a step, as a block reads it from device memory.
struct alignas(64) Phase {
  uint64_t weights;
  uint64_t norm;
  uint64_t cache;  // Of the layer.
  uint32_t kind;
  uint32_t pages;  // Of each block, and how many of the blocks have one more.
  uint32_t more;
  uint32_t rotation;  // Which block is the first one of these.
  uint32_t wait;      // Counter, and what it is increased by in a step.
  uint32_t arrivals;
  uint32_t signal;
  uint32_t layer;
  uint32_t unused[2];
};
static_assert(sizeof(Phase) == 64);

// What all kernels get. Addresses of device memory.
struct StepParameters {
  uint64_t phases;
  uint64_t counters;
  uint64_t table;   // kVocab x kHidden.
  uint64_t angles;  // kCapacity x kHeadDim / 2, a cosine and a sine each.
  // Vectors of float32.
  uint64_t residual;
  uint64_t qkv;
  uint64_t attended;
  uint64_t gated;
  uint64_t logits;
  // Of each step: the largest logit and its index (u64), and what the host reads (16 bytes).
  uint64_t best;
  uint64_t records;
  uint32_t steps;       // Of the launch.
  uint32_t positions;   // In the cache before the first step.
  uint32_t first_step;  // Of a graph's launch: its step.
  uint32_t unused;
};

}  // namespace resident::testing::fused

#endif  // RESIDENT_TESTS_GPU_FUSED_STEP_KERNELS_H_
