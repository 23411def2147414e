// The kernels of FusedStep (fused_step.h): one for each part of a step, and one that executes whole
// steps.
//
// That kernel has a block on each SM. Its ninth warp, the loader, reads the records of the parts
// and copies weights into a ring of pages, in units of half a page, without waiting for
// dependencies; a limit keeps only a few units on their way. Eight warps wait for the part before,
// multiply, store and signal. While they wait they have up to four pages of weights in registers.
//
// A page is a matrix of 16 segments of 512 weights: 4 rows of 2,048, or a row of 8,192. Of each
// segment a warp has 64 adjacent weights. Products are mma of bfloat16 with the input as the sum of
// a high and a low part, which are columns of the right side.
#include <cuda_bf16.h>

#include "tests/gpu/fused_step_kernels.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define RESIDENT_HAS_STEP 0
#else
#define RESIDENT_HAS_STEP 1
#endif

namespace resident::testing::fused {
namespace {

using u32 = unsigned int;
using u64 = unsigned long long;
using bf16 = __nv_bfloat16;

constexpr u32 kWarps = kComputeThreads / 32;
constexpr u32 kAllLanes = 0xffffffff;
// Records of parts that the loader may be ahead.
constexpr u32 kRecords = 8;
// Keys that 8 lanes have in registers at the same time.
constexpr u32 kKeyRows = 6;

template <typename T>
__device__ __forceinline__ T* At(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

// --- Numbers ------------------------------------------------------------------------------------

__device__ __forceinline__ float Low(u32 word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float High(u32 word) { return __uint_as_float(word & 0xffff0000u); }
__device__ __forceinline__ void Unpack(uint4 words, float (&x)[8]) {
  const u32 w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = Low(w[i]);
    x[2 * i + 1] = High(w[i]);
  }
}
__device__ __forceinline__ u32 Pack(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const u32*>(&both);
}
// What Pack leaves.
[[maybe_unused]] __device__ __forceinline__ u32 PackRest(float low, float high, u32 packed) {
  return Pack(low - Low(packed), high - High(packed));
}
__device__ __forceinline__ uint4 PackAll(const float (&x)[8]) {
  return make_uint4(Pack(x[0], x[1]), Pack(x[2], x[3]), Pack(x[4], x[5]), Pack(x[6], x[7]));
}
// Not from the L1 cache, because another SM may have written it.
__device__ __forceinline__ void LoadWritten(const float* from, float (&x)[8]) {
  const float4 a = __ldcg(reinterpret_cast<const float4*>(from));
  const float4 b = __ldcg(reinterpret_cast<const float4*>(from) + 1);
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
  x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
__device__ __forceinline__ float Dot(uint4 weights, const float* x) {
  float w[8];
  Unpack(weights, w);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(w[i], x[i], sum);
  return sum;
}
__device__ __forceinline__ float SumOfWarp(float value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(kAllLanes, value, mask);
  return value;
}
__device__ __forceinline__ float Silu(float x) { return x / (1 + __expf(-x)); }
__device__ __forceinline__ float ScaleOf(float sum_of_squares) {
  return rsqrtf(sum_of_squares / kHidden + 1e-5f);
}

// The larger logit, and of equal ones the lower index, is the larger one of these.
__device__ __forceinline__ u64 Candidate(float logit, u32 row) {
  const u32 bits = __float_as_uint(logit);
  return static_cast<u64>(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | ~row;
}
__device__ __forceinline__ void StoreBest(const StepParameters& p, u32 step, u64 best) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    best = max(best, __shfl_xor_sync(kAllLanes, best, mask));
  }
  if (threadIdx.x % 32 == 0 && best != 0) atomicMax(At<u64>(p.best) + step % kKeptSteps, best);
}
// The token with which a step begins.
__device__ __forceinline__ u32 TokenOf(const StepParameters& p, u32 step) {
  if (step == 0) return 1;
  return min(~static_cast<u32>(__ldcg(At<u64>(p.best) + (step - 1) % kKeptSteps)), kVocab - 1);
}

// --- Attention of one head ----------------------------------------------------------------------

__device__ __forceinline__ void ComputeBarrier() {
  asm volatile("barrier.sync 1, %0;" ::"n"(kComputeThreads) : "memory");
}

struct AttentionMemory {
  float2 angles[kHeadDim / 2];
  // Of each warp: weighted values, the sum of the weights, and the largest score.
  float totals[kWarps][kHeadDim];
  float sums[kWarps];
  float largest[kWarps];
};

// 8 lanes have a row of a cache; the block's rows are 32 positions from each other.
struct KeyRows {
  uint4 keys[kKeyRows];
  uint4 values[kKeyRows];

  __device__ __forceinline__ void Load(const bf16* cache, u32 first, u32 end) {
    const u32 lane = threadIdx.x % 8;
#pragma unroll
    for (u32 i = 0; i < kKeyRows; ++i) {
      const u32 row = first + threadIdx.x / 8 + 32 * i;
      keys[i] = values[i] = make_uint4(0, 0, 0, 0);
      if (row >= end) continue;
      const auto* const key = reinterpret_cast<const uint4*>(cache + row * kHeadDim) + lane;
      keys[i] = __ldcg(key);
      values[i] = __ldcg(key + kCapacity * kHeadDim / 8);
    }
  }
};

struct Softmax {
  float largest = -1e30f;
  float sum = 0;
  float total[8] = {};

  __device__ __forceinline__ void Scale(float largest_now) {
    const float factor = __expf(largest - largest_now);
    largest = largest_now;
    sum *= factor;
#pragma unroll
    for (float& each : total) each *= factor;
  }
  __device__ __forceinline__ void Add(float score, uint4 value) {
    const float weight = __expf(score - largest);
    sum += weight;
    float v[8];
    Unpack(value, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) total[i] = fmaf(weight, v[i], total[i]);
  }
};

__device__ __forceinline__ float Score(uint4 key, const float (&q)[8]) {
  float score = Dot(key, q);
#pragma unroll
  for (int mask = 1; mask < 8; mask *= 2) score += __shfl_xor_sync(kAllLanes, score, mask);
  return score;
}

// A lane's 8 elements of a head, rotated: element i goes with i + 32.
__device__ __forceinline__ void LoadRotated(const float* head, const float2* angles,
                                            float (&x)[8]) {
  const u32 lane = threadIdx.x % 8;
  float own[8], other[8];
  LoadWritten(head + lane * 8, own);
  LoadWritten(head + (lane ^ 4) * 8, other);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 angle = angles[lane % 4 * 8 + i];
    x[i] = own[i] * angle.x + (lane < 4 ? -other[i] : other[i]) * angle.y;
  }
}

// Computes a head, and appends its key and value if it is the first one of those that share them.
// `wait` is called behind the loads that need nothing of this step.
template <typename Wait>
__device__ __forceinline__ void Attend(const StepParameters& p, uint64_t layer, u32 position,
                                       u32 head, AttentionMemory& memory, Wait wait) {
  const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 8;
  const u32 kv_head = head / (kHeads / kKvHeads);
  bf16* const cache = At<bf16>(layer) + kv_head * (2 * kCapacity * kHeadDim);
  KeyRows rows;
  rows.Load(cache, 0, position);
  if (thread < kHeadDim / 2) {
    memory.angles[thread] = At<const float2>(p.angles)[position * (kHeadDim / 2) + thread];
  }
  wait();
  const auto* const qkv = At<const float>(p.qkv);
  float q[8];
  LoadRotated(qkv + head * kHeadDim, memory.angles, q);
#pragma unroll
  for (float& each : q) each *= 0.125f;
  uint4 key = {}, value = {};
  if (warp == 0) {
    float x[8];
    LoadRotated(qkv + (kHeads + kv_head) * kHeadDim, memory.angles, x);
    key = PackAll(x);
    LoadWritten(qkv + (kHeads + kKvHeads + kv_head) * kHeadDim + lane * 8, x);
    value = PackAll(x);
  }
  Softmax state;
#pragma unroll 1
  for (u32 first = 0;;) {
    float scores[kKeyRows], largest = state.largest;
#pragma unroll
    for (u32 i = 0; i < kKeyRows; ++i) {
      scores[i] = Score(rows.keys[i], q);
      if (first + thread / 8 + 32 * i >= position) scores[i] = -1e30f;
      largest = fmaxf(largest, scores[i]);
    }
    state.Scale(largest);
#pragma unroll
    for (u32 i = 0; i < kKeyRows; ++i) {
      if (first + thread / 8 + 32 * i < position) state.Add(scores[i], rows.values[i]);
    }
    first += 32 * kKeyRows;
    if (first >= position) break;
    rows.Load(cache, first, position);
  }
  if (warp == 0) {
    const float score = Score(key, q);
    if (thread < 8) {
      state.Scale(fmaxf(state.largest, score));
      state.Add(score, value);
      if (head % (kHeads / kKvHeads) == 0) {
        auto* const to = reinterpret_cast<uint4*>(cache + position * kHeadDim) + lane;
        to[0] = key;
        to[kCapacity * kHeadDim / 8] = value;
      }
    }
  }
  float largest = state.largest;
#pragma unroll
  for (int mask = 8; mask < 32; mask *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, mask));
  }
  state.Scale(largest);
#pragma unroll
  for (int mask = 8; mask < 32; mask *= 2) {
    state.sum += __shfl_xor_sync(kAllLanes, state.sum, mask);
#pragma unroll
    for (float& each : state.total) each += __shfl_xor_sync(kAllLanes, each, mask);
  }
  if (thread % 32 < 8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) memory.totals[warp][lane * 8 + i] = state.total[i];
    if (lane == 0) {
      memory.sums[warp] = state.sum;
      memory.largest[warp] = state.largest;
    }
  }
  ComputeBarrier();
  if (thread >= kHeadDim) return;
  float top = -1e30f, total = 0, sum = 0;
#pragma unroll
  for (u32 w = 0; w < kWarps; ++w) top = fmaxf(top, memory.largest[w]);
#pragma unroll
  for (u32 w = 0; w < kWarps; ++w) {
    const float factor = __expf(memory.largest[w] - top);
    total += factor * memory.totals[w][thread];
    sum += factor * memory.sums[w];
  }
  __stcg(At<float>(p.attended) + head * kHeadDim + thread, total / sum);
}

// --- A kernel for each part ---------------------------------------------------------------------

// Products of float32. A warp has 8 KiB of weights at a time: two rows of 2,048, or half of a row
// of 8,192. The first ones are requested before the wait.
template <u32 kKind>
__device__ __forceinline__ void RunPhase(const StepParameters& p, const Phase& phase, u32 rows) {
  constexpr u32 kColumns = kKind == kDown ? kInner : kHidden;
  constexpr bool kNormalized = kKind == kQkv || kKind == kUp || kKind == kHead;
  __shared__ __align__(16) float input[kColumns];
  __shared__ float partial[kWarps];
  __shared__ AttentionMemory attention;
  const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
#if RESIDENT_HAS_STEP
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  const auto wait = [&] {
#if RESIDENT_HAS_STEP
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    __syncthreads();
  };
  if constexpr (kKind == kAttention) {
    Attend(p, phase.cache, p.positions + p.first_step, blockIdx.x, attention, wait);
    return;
  }
  const u32 units = kKind == kDown ? rows * 2 : rows / 2;
  const u32 step = gridDim.x * kWarps;
  u32 unit = blockIdx.x * kWarps + warp;
  uint4 w[16];
  const auto load = [&](u32 of) {
    const auto* const from = At<const uint4>(phase.weights);
#pragma unroll
    for (u32 j = 0; j < 16; ++j) {
      // Of gate and up a row each.
      const u64 at = kKind == kUp ? (static_cast<u64>(j / 8) * kInner + of) * 256 + j % 8 * 32
                                  : static_cast<u64>(of) * 512 + j * 32;
      w[j] = __ldcs(from + at + lane);
    }
  };
  if (unit < units) load(unit);
  wait();
  const auto* const row_of_token =
      At<const bf16>(p.table) + static_cast<u64>(TokenOf(p, p.first_step)) * kHidden;
  const bool from_table = phase.layer == 0 && (kKind == kQkv || kKind == kOut);
  float scale = 1;
  if constexpr (kNormalized) {
    float squares = 0;
    for (u32 i = thread; i < kHidden; i += kComputeThreads) {
      const float x =
          from_table ? __bfloat162float(row_of_token[i]) : __ldcg(At<const float>(p.residual) + i);
      squares += x * x;
      input[i] = x * __bfloat162float(At<const bf16>(phase.norm)[i]);
    }
    squares = SumOfWarp(squares);
    if (lane == 0) partial[warp] = squares;
    __syncthreads();
    squares = 0;
#pragma unroll
    for (const float each : partial) squares += each;
    scale = ScaleOf(squares);
  } else {
    const auto* const from = At<const float4>(kKind == kDown ? p.gated : p.attended);
    for (u32 i = thread; i < kColumns / 4; i += kComputeThreads) {
      reinterpret_cast<float4*>(input)[i] = __ldcg(from + i);
    }
    __syncthreads();
  }
  for (; unit < units; unit += step) {
    float sums[2] = {};
#pragma unroll
    for (u32 j = 0; j < 16; ++j) {
      const u32 at =
          kKind == kDown ? unit % 2 * 4096 + (j * 32 + lane) * 8 : (j % 8 * 32 + lane) * 8;
      sums[j / 8] += Dot(w[j], input + at);
    }
    const u32 now = unit;
    if (unit + step < units) load(unit + step);
    float first = SumOfWarp(sums[0]) * scale;
    const float second = SumOfWarp(sums[1]) * scale;
    auto* const residual = At<float>(p.residual);
    if constexpr (kKind == kDown) {
      __syncthreads();
      if (lane == 0) partial[warp] = first + second;
      __syncthreads();
      if (lane == 0 && warp % 2 == 0) residual[now / 2] += partial[warp] + partial[warp + 1];
    } else if (lane == 0) {
      const u32 row = now * 2;
      if constexpr (kKind == kUp) {
        At<float>(p.gated)[now] = Silu(first) * second;
      } else if constexpr (kKind == kOut) {
        const auto added = [&](u32 r) {
          return from_table ? __bfloat162float(row_of_token[r]) : residual[r];
        };
        first += added(row);
        residual[row + 1] = second + added(row + 1);
        residual[row] = first;
      } else {
        float* const to = At<float>(kKind == kQkv ? p.qkv : p.logits);
        to[row] = first;
        to[row + 1] = second;
      }
    }
  }
}

// --- The kernel of whole steps ------------------------------------------------------------------

#if RESIDENT_HAS_STEP

extern __shared__ __align__(1024) unsigned char ring[];

// The pages of a block: start, start + blocks and so on.
struct Share {
  u32 start;
  u32 count;
};

struct StepMemory {
  u64 full[2 * kPages];  // Barriers: a unit has arrived, a page may be overwritten.
  u64 empty[kPages];
  u64 record_full[kRecords];
  u64 record_empty[kRecords];
  Phase records[kRecords];
  Share shares[kRecords];
  union {
    alignas(16) float sums[2][128][kWarps];  // Of rows, by warp.
    AttentionMemory attention;
  };
  float squares[2][kWarps];
  u32 waiting;
};
__shared__ StepMemory memory;

__device__ __forceinline__ u32 SharedAddress(const void* at) {
  return static_cast<u32>(__cvta_generic_to_shared(at));
}
__device__ __forceinline__ void Initialize(u64* barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals));
}
__device__ __forceinline__ void Await(u64* barrier, u32 parity) {
  u32 done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  } while (done == 0);
}
__device__ __forceinline__ void Arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
}
__device__ __forceinline__ u32* CounterOf(const StepParameters& p, u32 index) {
  return At<u32>(p.counters) + index * kCounterWords;
}
__device__ __forceinline__ void AwaitCounter(const u32* counter, u32 target) {
  u32 value;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  } while (value < target);
}
__device__ __forceinline__ void Signal(u32* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ void SetWaiting(u32 waiting) {
  *static_cast<volatile u32*>(&memory.waiting) = waiting;
}
__device__ __forceinline__ void AwaitAll(const u32* counter, u32 target) {
  if (threadIdx.x == 0) {
    SetWaiting(1);
    AwaitCounter(counter, target);
  }
  ComputeBarrier();
}

// (one lane) Copies all weights of the launch, step by step.
class Loader {
 public:
  __device__ explicit Loader(const StepParameters& p) : p_(p) {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy_));
  }

  __device__ __forceinline__ void Load(const Phase& phase, const Share& share) {
    const bool gated = phase.kind == kUp;
    for (u32 i = 0; i < share.count; ++i) {
      const u64 page = static_cast<u64>(share.start) + static_cast<u64>(i) * gridDim.x;
      // Gate and up are two matrices: a page has two rows of each.
      const u64 first = phase.weights + page * (gated ? kUnitBytes : kPageBytes);
      const u64 second = first + (gated ? 2ull * kInner * kHidden : kUnitBytes);
      if (lap_ > 0) Await(memory.empty + slot_, (lap_ - 1) & 1);
      LoadUnit(0, first);
      LoadUnit(1, second);
      if (++slot_ == kPages) {
        slot_ = 0;
        ++lap_;
      }
    }
  }

 private:
  __device__ __forceinline__ void LoadUnit(u32 half, u64 from) {
    const u32 limit =
        *static_cast<volatile u32*>(&memory.waiting) != 0 ? kUnitsInFlightWaiting : kUnitsInFlight;
    if (units_ >= limit) {
      const u32 old = units_ - limit;
      Await(memory.full + old / 2 % kPages * 2 + old % 2, old / 2 / kPages & 1);
    }
    ++units_;
    u64* const full = memory.full + 2 * slot_ + half;
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(full)),
        "r"(kUnitBytes)
        : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1], %2, [%3], %4;" ::"r"(SharedAddress(ring + slot_ * kPageBytes + half * kUnitBytes)),
        "l"(from), "r"(kUnitBytes), "r"(SharedAddress(full)), "l"(policy_)
        : "memory");
  }

  const StepParameters& p_;
  u64 policy_;
  u32 slot_ = 0;
  u32 lap_ = 0;
  u32 units_ = 0;
};

// The place of the warps that multiply in the ring.
struct Cursor {
  u32 slot = 0;
  u32 lap = 0;

  // Takes the thread's 64 bytes of the next page. Odd rows are taken in another order, which keeps
  // the reads free of bank conflicts.
  __device__ __forceinline__ void Take(uint4 (&w)[4]) {
    const u32 lane = threadIdx.x % 32, row = lane / 4, odd = row & 1;
    Await(memory.full + 2 * slot, lap & 1);
    Await(memory.full + 2 * slot + 1, lap & 1);
    const auto* const from = reinterpret_cast<const uint4*>(ring + slot * kPageBytes) + row * 64 +
                             threadIdx.x / 32 * 8 + lane % 4;
    w[0] = from[odd * 4];
    w[1] = from[512 + odd * 4];
    w[2] = from[4 - odd * 4];
    w[3] = from[516 - odd * 4];
    __syncwarp();
    if (lane == 0) Arrive(memory.empty + slot);
    if (++slot < kPages) return;
    slot = 0;
    ++lap;
  }
};

__device__ __forceinline__ void MultiplyAdd(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                                            u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// One block ends the step before: it takes the token, sends its record, looks it up, and begins the
// step for all.
__device__ __forceinline__ void BeginStep(const StepParameters& p, const Phase& phase, u32 step,
                                          u32 target) {
  u32* const begun = CounterOf(p, kStepCounter);
  if (blockIdx.x != 0) return AwaitAll(begun, step + 1);
  AwaitAll(CounterOf(p, phase.wait), target);
  const u32 token = TokenOf(p, step);
  float x[8];
  Unpack(At<const uint4>(p.table)[static_cast<u64>(token) * (kHidden / 8) + threadIdx.x], x);
  auto* const to = At<float4>(p.residual) + threadIdx.x * 2;
  __stcg(to, make_float4(x[0], x[1], x[2], x[3]));
  __stcg(to + 1, make_float4(x[4], x[5], x[6], x[7]));
  if (threadIdx.x == 0) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(At<uint4>(p.records) +
                                                                              step % kKeptSteps),
                 "r"(token), "r"(step), "r"(0u), "r"(step + 1)
                 : "memory");
  }
  ComputeBarrier();
  if (threadIdx.x == 0) Signal(begun);
}

// The sums of a page's rows over the lanes of a warp, of which few lanes have what belongs to a
// row. kAtOnce pages at the same time.
template <bool kWide, u32 kAtOnce>
struct PageSums {
  // Adds the first `count` pages, whose rows begin at `row`, to the sums of the warp.
  static __device__ __forceinline__ void Store(const uint4 (&a)[kAtOnce][4],
                                               const u32 (&b)[kWide ? 8 : 2][4], u32 page,
                                               u32 count, u32 buffer) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, tq = lane % 4;
    const bool odd = g & 1, u16 = lane & 16, u8 = lane & 8, u4 = lane & 4, u2 = lane & 2;
    float values[kAtOnce];
#pragma unroll
    for (u32 k = 0; k < kAtOnce; ++k) {
      float c[4] = {}, d[4] = {};
      if constexpr (kWide) {
        // Two tiles for the high parts and two for the low ones, of segments 0 to 7 and 8 to 15.
#pragma unroll
        for (u32 part = 0; part < 4; part += 2) {
#pragma unroll
          for (u32 j = 0; j < 2; ++j) {
            const uint4 w0 = a[k][2 * j], w1 = a[k][2 * j + 1];
            const u32(&low)[4] = b[part + j];
            const u32(&high)[4] = b[4 + part + j];
            MultiplyAdd(c, w0.x, w1.x, w0.y, w1.y, low[0], low[1]);
            MultiplyAdd(d, w0.x, w1.x, w0.y, w1.y, high[0], high[1]);
            MultiplyAdd(c, w0.z, w1.z, w0.w, w1.w, low[2], low[3]);
            MultiplyAdd(d, w0.z, w1.z, w0.w, w1.w, high[2], high[3]);
          }
        }
        values[k] = tq == g / 2 ? (odd ? c[1] + d[3] : c[0] + d[2]) : 0;
      } else {
        const bool mine = (g / 2 & 1) == (tq & 1);
#pragma unroll
        for (u32 j = 0; j < 2; ++j) {
          const uint4 w0 = a[k][2 * j], w1 = a[k][2 * j + 1];
          MultiplyAdd(c, w0.x, w1.x, w0.y, w1.y, b[j][0], b[j][1]);
          MultiplyAdd(d, w0.z, w1.z, w0.w, w1.w, b[j][2], b[j][3]);
        }
        const float v0 = mine ? (odd ? c[1] + d[1] : c[0] + d[0]) : 0;
        const float v1 = mine ? (odd ? c[3] + d[3] : c[2] + d[2]) : 0;
        values[k] = (u8 ? v1 : v0) + __shfl_xor_sync(kAllLanes, u8 ? v0 : v1, 8);
      }
    }
    // Combines the pages too, so that each exchange has two sums less.
    const auto halves = [&](bool upper, float low, float high, u32 mask) {
      return (upper ? high : low) + __shfl_xor_sync(kAllLanes, upper ? low : high, mask);
    };
    float sum;
    u32 row;
    bool stores;
    if constexpr (kWide) {
      static_assert(kAtOnce == 2);
      sum = halves(u16, values[0], values[1], 16);
#pragma unroll
      for (int mask = 8; mask > 0; mask /= 2) sum += __shfl_xor_sync(kAllLanes, sum, mask);
      row = page + (u16 ? 1 : 0);
      stores = lane % 16 == 0 && row < count;
    } else {
      static_assert(kAtOnce == 4);
      sum = halves(u2, halves(u4, values[0], values[1], 4), halves(u4, values[2], values[3], 4), 2);
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      row = page * 4 + 4 * ((u4 ? 1 : 0) + (u2 ? 2 : 0)) + (u8 ? 2 : 0) + lane / 16;
      stores = lane % 2 == 0 && row < count * 4;
    }
    if (stores) memory.sums[buffer][row][warp] = sum;
  }
};

// kWide: rows of kInner, else of kHidden.
template <bool kWide>
__device__ __forceinline__ Cursor Multiply(const StepParameters& p, const Phase& phase,
                                           const Share& share, Cursor cursor, u32 step, bool first,
                                           u32 target) {
  constexpr u32 kAtOnce = kWide ? 2 : 4;
  constexpr u32 kRows = kWide ? 1 : 4;  // Of a page.
  // Pages between two barriers.
  constexpr u32 kTurn = 32;
  const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4;
  const u32 tq = lane % 4, odd = g & 1, kind = phase.kind;
  const bool normalized = !kWide && kind != kOut;
  const u32 column = g % 4 * 512 + warp * 64 + tq * 8;
  uint4 norms[2] = {};
  if (normalized) {
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      norms[j] = *At<const uint4>(phase.norm + (column + 32 * (j ^ odd)) * sizeof(bf16));
    }
  }
  uint4 a[kAtOnce][4] = {};
  const u32 ahead = min(kAtOnce, share.count);
#pragma unroll
  for (u32 k = 0; k < kAtOnce; ++k) {
    if (k < share.count) cursor.Take(a[k]);
  }
  if (first) {
    BeginStep(p, phase, step, target);
  } else {
    AwaitAll(CounterOf(p, phase.wait), target);
  }
  const auto row_of = [&](u32 page, u32 i) {
    return (share.start + (page + i / kRows) * gridDim.x) * kRows + i % kRows;
  };
  float residual = 0;
  if ((kind == kOut || kind == kDown) && thread < share.count * kRows) {
    residual = __ldcg(At<const float>(p.residual) + row_of(0, thread));
  }
  // Columns of the right side are parts of the input: with rows of 2,048 a quarter's high part
  // each, then the low ones; with rows of 8,192 a segment's each, in two tiles for either part.
  u32 b[kWide ? 8 : 2][4];
  float squares = 0;
  if constexpr (kWide) {
#pragma unroll
    for (u32 s = 0; s < 2; ++s) {
#pragma unroll
      for (u32 j = 0; j < 2; ++j) {
        float x[8];
        LoadWritten(
            At<const float>(p.gated) + (g + 8 * s) * 512 + warp * 64 + (tq + 4 * (j ^ odd)) * 8, x);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
          u32& high = b[s * 4 + j][i];
          high = Pack(x[2 * i], x[2 * i + 1]);
          b[s * 4 + j + 2][i] = PackRest(x[2 * i], x[2 * i + 1], high);
        }
      }
    }
  } else {
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      float x[8];
      LoadWritten(At<const float>(kind == kOut ? p.attended : p.residual) + column + 32 * (j ^ odd),
                  x);
      if (normalized) {
        float n[8];
        Unpack(norms[j], n);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          squares = fmaf(x[i], x[i], squares);
          x[i] *= n[i];
        }
      }
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const u32 high = Pack(x[2 * i], x[2 * i + 1]);
        b[j][i] = g < 4 ? high : PackRest(x[2 * i], x[2 * i + 1], high);
      }
    }
    if (normalized) squares = SumOfWarp(g < 4 ? squares : 0);
  }
  if (thread == 0) SetWaiting(0);
  u64 best = 0;
  u32 buffer = 0;
#pragma unroll 1
  for (u32 page = 0; page < share.count; page += kTurn) {
    const u32 count = min(kTurn, share.count - page);
#pragma unroll 1
    for (u32 i = 0; i < count; i += kAtOnce) {
      if (page + i >= ahead) {
#pragma unroll
        for (u32 k = 0; k < kAtOnce; ++k) {
          if (i + k < count) cursor.Take(a[k]);
        }
      }
      PageSums<kWide, kAtOnce>::Store(a, b, i, count, buffer);
    }
    if (normalized && lane == 0) memory.squares[buffer][warp] = squares;
    ComputeBarrier();
    float scale = 1;
    if (normalized) {
      float all = 0;
#pragma unroll
      for (u32 w = 0; w < kWarps; ++w) all += memory.squares[buffer][w];
      scale = ScaleOf(all);
    }
    if (thread < count * kRows) {
      const auto* const of_warps = reinterpret_cast<const float4*>(memory.sums[buffer][thread]);
      const float4 x = of_warps[0], y = of_warps[1];
      const float sum = ((x.x + x.y) + (x.z + x.w) + ((y.x + y.y) + (y.z + y.w))) * scale;
      const u32 row = row_of(page, thread);
      if (kind == kQkv) {
        __stcg(At<float>(p.qkv) + row, sum);
      } else if (kind == kOut || kind == kDown) {
        __stcg(At<float>(p.residual) + row, sum + residual);
      } else if (kind == kHead) {
        __stcg(At<float>(p.logits) + row, sum);
        best = max(best, Candidate(sum, row));
      } else {
        const float up = __shfl_down_sync(__activemask(), sum, 2);
        if (thread % 4 < 2) __stcg(At<float>(p.gated) + row / 4 * 2 + thread % 4, Silu(sum) * up);
      }
    }
    buffer ^= 1;
  }
  if (kind == kHead) StoreBest(p, step, best);
  return cursor;
}

__device__ __forceinline__ void LoadSteps(const StepParameters& p) {
  const u32 lane = threadIdx.x % 32;
  constexpr u32 kWords = sizeof(Phase) / sizeof(u32);
  const auto* const words = At<const u32>(p.phases);
  Loader loader(p);
  u32 phase = 0;
  u32 word = lane < kWords ? words[lane] : 0;
  for (u32 i = 0; i < p.steps * kPhases; ++i) {
    const u32 r = i % kRecords;
    if (i >= kRecords) Await(memory.record_empty + r, (i / kRecords - 1) & 1);
    if (lane < kWords) reinterpret_cast<u32*>(&memory.records[r])[lane] = word;
    if (++phase == kPhases) phase = 0;
    // Needed for the next part only: on its way while copies are started.
    if (lane < kWords) word = words[phase * kWords + lane];
    __syncwarp();
    if (lane == 0) {
      const Phase& record = memory.records[r];
      const u32 block = (blockIdx.x + record.rotation) % gridDim.x;
      memory.shares[r] = {block, record.pages + (block < record.more ? 1 : 0)};
      Arrive(memory.record_full + r);
      loader.Load(record, memory.shares[r]);
    }
    __syncwarp();
  }
}

__device__ __forceinline__ void ComputeSteps(const StepParameters& p) {
  const u32 thread = threadIdx.x;
  Cursor cursor;
  u32 i = 0;
#pragma unroll 1
  for (u32 step = 0; step < p.steps; ++step) {
#pragma unroll 1
    for (u32 index = 0; index < kPhases; ++index, ++i) {
      const u32 r = i % kRecords;
      Await(memory.record_full + r, i / kRecords & 1);
      const Phase& phase = memory.records[r];
      const Share share = memory.shares[r];
      const u32 target = (step + (index > 0 ? 1 : 0)) * phase.arrivals;
      bool takes_part = true, one_warp = false;
      if (phase.kind == kAttention) {
        takes_part = blockIdx.x < kHeads;
        if (takes_part) {
          Attend(p, phase.cache, p.positions + step, blockIdx.x, memory.attention, [&] {
            AwaitAll(CounterOf(p, phase.wait), target);
            if (thread == 0) SetWaiting(0);
          });
        }
      } else if (phase.kind == kDown) {
        cursor = Multiply<true>(p, phase, share, cursor, step, false, target);
        one_warp = share.count <= 32;
      } else {
        cursor = Multiply<false>(p, phase, share, cursor, step, index == 0, target);
        // Then the first warp has stored everything.
        one_warp = (phase.kind == kQkv || phase.kind == kOut) && share.count <= 8;
      }
      if (takes_part) {
        if (one_warp) {
          __syncwarp();
        } else {
          ComputeBarrier();
        }
        if (thread == 0) Signal(CounterOf(p, phase.signal));
      }
      __syncwarp();
      if (thread % 32 == 0) Arrive(memory.record_empty + r);
    }
  }
}

#endif  // RESIDENT_HAS_STEP

}  // namespace
}  // namespace resident::testing::fused

using resident::testing::fused::Phase;
using resident::testing::fused::StepParameters;

#define RESIDENT_PHASE_KERNEL(name, kind)                                                 \
  extern "C" __global__ void __launch_bounds__(256)                                       \
      name(const __grid_constant__ StepParameters p, const __grid_constant__ Phase phase, \
           unsigned rows) {                                                               \
    resident::testing::fused::RunPhase<resident::testing::fused::kind>(p, phase, rows);   \
  }
RESIDENT_PHASE_KERNEL(fused_qkv, kQkv)
RESIDENT_PHASE_KERNEL(fused_attention, kAttention)
RESIDENT_PHASE_KERNEL(fused_out, kOut)
RESIDENT_PHASE_KERNEL(fused_up, kUp)
RESIDENT_PHASE_KERNEL(fused_down, kDown)
RESIDENT_PHASE_KERNEL(fused_head, kHead)

extern "C" __global__ void __launch_bounds__(1024)
    fused_argmax(const __grid_constant__ StepParameters p) {
  using namespace resident::testing::fused;
#if RESIDENT_HAS_STEP
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  unsigned long long best = 0;
  for (unsigned row = blockIdx.x * 1024 + threadIdx.x; row < kVocab; row += gridDim.x * 1024) {
    best = max(best, Candidate(At<const float>(p.logits)[row], row));
  }
  StoreBest(p, p.first_step, best);
}

extern "C" __global__ void __maxnreg__(128) fused_steps(const __grid_constant__ StepParameters p) {
#if RESIDENT_HAS_STEP
  using namespace resident::testing::fused;
  if (threadIdx.x == 0) {
    memory.waiting = 0;
    for (unsigned i = 0; i < kPages; ++i) {
      Initialize(memory.full + 2 * i, 1);
      Initialize(memory.full + 2 * i + 1, 1);
      Initialize(memory.empty + i, kWarps);
    }
    for (unsigned i = 0; i < kRecords; ++i) {
      Initialize(memory.record_full + i, 1);
      Initialize(memory.record_empty + i, kWarps);
    }
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
  if (threadIdx.x >= kComputeThreads) {
    LoadSteps(p);
  } else {
    ComputeSteps(p);
  }
#endif
}

// Values of all bits from a hash of their index: a uniform distribution of this width, around
// `middle`.
extern "C" __global__ void fused_fill(__nv_bfloat16* to, unsigned long long count, float width,
                                      float middle, unsigned seed) {
  const unsigned long long step = gridDim.x * 256ull;
  for (unsigned long long i = blockIdx.x * 256ull + threadIdx.x; i < count; i += step) {
    unsigned long long h = (i + 1) * 0x9e3779b97f4a7c15ull + seed;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9ull;
    h ^= h >> 32;
    to[i] = __float2bfloat16((static_cast<float>(h & 0xffffff) / 8388608.0f - 1) * width + middle);
  }
}
