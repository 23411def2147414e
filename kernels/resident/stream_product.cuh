// This header multiplies a vector with matrices of bfloat16 whose pages are in the ring
// (stream_ring.cuh). It computes what gemv, gemv_silu_mul, rmsnorm_gemv, rmsnorm_gemv_silu_mul and
// rmsnorm_gemv_qkv compute (kernels/ops/gemv_one_vector.h), for nodes that have a stream
// (kernels/graph/graph_stream.h).
//
// A page has 16 segments of 512 weights: four rows of 2,048, or one of 8,192. It is the left
// operand of a matrix product on tensor cores, 16 rows of 512, of which each warp has 64 columns.
// The columns of the right operand are the parts of the vector that the segments are multiplied by,
// each as the sum of a high and a low bfloat16, which leave at most 2^-17 of an element. The sums
// of a row over the lanes and the warps are added in an order that depends on nothing but its
// length.
//
// A node is executed as a *turn*. The warps take the first two pages into registers, wait for the
// nodes before, whose counters one warp polls, multiply, store, and increment the node's counter:
// the control warp, which prepares the next node meanwhile, is not in the way between two turns.
#ifndef RESIDENT_KERNELS_RESIDENT_STREAM_PRODUCT_CUH_
#define RESIDENT_KERNELS_RESIDENT_STREAM_PRODUCT_CUH_

#include "kernels/ops/gemv_one_vector.h"
#include "kernels/resident/stream_ring.cuh"

namespace resident {
namespace {

constexpr u32 kSegmentWeights = 512;
static_assert(kMaxStreamWaits == kWarp, "each lane waits for one node");

// A tensor of a turn. Address 0: there is none.
struct TurnTensor {
  u64 address;
  DType dtype;
};

// What a turn needs of its node, so that the block's arguments are free for the next one.
struct StreamTurn {
  u32 columns;
  StreamForm form;
  u32 normalized;
  // Pages of the member, the first one among all, and the distance to the next one.
  u32 count;
  u32 first;
  u32 pitch;
  // Pages that the member has taken before in the quantum.
  u32 sequence;
  u32 waits;
  u32 signals;
  // How the wait for the nodes before has ended.
  InputState inputs;
  // See GangWalk.
  u32* signal;
  const u32* leave;
  TurnTensor x;
  u64 norm;
  float eps;
  // kStacked: the rows of the first matrix, and of the first two.
  u32 ends[2];
  TurnTensor bias[3];
  TurnTensor out[3];
  const u32* counters[kMaxStreamWaits];
  u32 targets[kMaxStreamWaits];
};
// By the parity of the command (graph_kernel.cu).
__shared__ StreamTurn turns[2];
// The parity of the turn that the block executes.
__shared__ volatile u32 turn_place;

__device__ __forceinline__ void OperatorBarrier() {
  asm volatile("barrier.sync 1, %0;" ::"n"(Block::kMaxThreads) : "memory");
}

// Polls after which a wait looks whether the member leaves.
constexpr u32 kPollsUntilLook = 16;

// (all that run operators) Waits for the nodes before. False: the member leaves.
__device__ __forceinline__ bool AwaitNodesBefore(StreamTurn& turn) {
  if (threadIdx.x < kWarp) {
    const u32 lane = LaneId();
    bool reached = lane >= turn.waits || turn.counters[lane] == nullptr;
    const u32* const counter = reached ? nullptr : turn.counters[lane];
    const u32 target = reached ? 0 : turn.targets[lane];
    InputState inputs = InputState::kReady;
    for (u32 polls = 1;; ++polls) {
      // Different signs: the counter has not reached the target.
      if (!reached) reached = static_cast<i32>(AcquireDevice(counter) - target) >= 0;
      if (__all_sync(kAllLanes, reached)) break;
      if (polls % kPollsUntilLook == 0 && __any_sync(kAllLanes, LoadDevice(turn.leave) != 0)) {
        inputs = InputState::kCancelled;
        break;
      }
    }
    if (lane == 0) *static_cast<volatile InputState*>(&turn.inputs) = inputs;
  }
  OperatorBarrier();
  return *static_cast<volatile InputState*>(&turn.inputs) == InputState::kReady;
}

// Reads the pages one after the other. Of each segment a thread has two runs of 8 weights, 64 bytes
// from each other; lanes of odd segments read them in the other order, so that those of a quarter
// of a warp are in different banks.
class PageReader {
 public:
  __device__ __forceinline__ explicit PageReader(u32 sequence) : sequence_(sequence) {
    const u32 lane = LaneId();
    const u32 segment = lane / 4;
    const u32 from = ring.pages + segment * kSegmentBytes + threadIdx.x / kWarp * 2 * kRunsBytes +
                     lane % 4 * sizeof(Bytes16);
    barriers_ = InRegister(SharedAddress(&ring));
    first_ = InRegister(from + segment % 2 * kRunsBytes);
    second_ = InRegister(from + (1 - segment % 2) * kRunsBytes);
  }

  // (warp) Takes the next two pages, or `left` of them if that is less.
  __device__ __forceinline__ void Take(u32 left, Bytes16 (&pages)[2][4]) {
    if (left == 0) return;
    Load(sequence_, pages[0]);
    if (left > 1) Load(sequence_ + 1, pages[1]);
    __syncwarp();
    const bool leader = LaneId() == 0;
    Free(sequence_, leader);
    Free(sequence_ + 1, leader & (left > 1));
    sequence_ += left > 1 ? 2 : 1;
  }

 private:
  static constexpr u32 kSegmentBytes = kSegmentWeights * 2;
  static constexpr u32 kRunsBytes = 4 * sizeof(Bytes16);  // Adjacent runs of four lanes.
  static constexpr u32 kHalfBytes = kStreamPageBytes / 2;

  static __device__ __forceinline__ void LoadShared(u32 from, Bytes16& to) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.words[0]), "=r"(to.words[1]), "=r"(to.words[2]), "=r"(to.words[3])
                 : "r"(from)
                 : "memory");
  }
  // Runs of the segments s and s + 8, then their other runs.
  __device__ __forceinline__ void Load(u32 page, Bytes16 (&runs)[4]) const {
    AwaitPhase(FullBarrier(barriers_, page), ParityOf(page));
    const u32 offset = page % kRingPages * kStreamPageBytes;
    LoadShared(first_ + offset, runs[0]);
    LoadShared(first_ + offset + kHalfBytes, runs[1]);
    LoadShared(second_ + offset, runs[2]);
    LoadShared(second_ + offset + kHalfBytes, runs[3]);
  }
  // Without a branch.
  __device__ __forceinline__ void Free(u32 page, bool arrives) const {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 state;\n"
        "setp.ne.u32 p, %1, 0;\n"
        "@p mbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(EmptyBarrier(barriers_, page)),
        "r"(static_cast<u32>(arrives))
        : "memory");
  }

  u32 barriers_;
  u32 first_;
  u32 second_;
  u32 sequence_;
};

// The elements of a pair of bfloat16.
__device__ __forceinline__ float Low(u32 w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float High(u32 w) { return __uint_as_float(w & 0xffff0000u); }
// Both values rounded to bfloat16, and below what that leaves of them.
__device__ __forceinline__ u32 PackHigh(float x, float y) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(y), "f"(x));
  return packed;
}
__device__ __forceinline__ u32 PackLow(float x, float y, u32 high) {
  return PackHigh(x - Low(high), y - High(high));
}
// (warp) Adds the product of 16 x 16 weights and 8 columns.
__device__ __forceinline__ void MultiplyTile(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                                             u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Reads 16 bytes that another block may have written.
__device__ __forceinline__ Bytes16 LoadFresh(u64 from) {
  Bytes16 w;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.words[0]), "=r"(w.words[1]), "=r"(w.words[2]), "=r"(w.words[3])
               : "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from)))
               : "memory");
  return w;
}
// An element that another block may have written.
__device__ __forceinline__ float LoadFresh(const TurnTensor& tensor, u32 index) {
  const u64 at = static_cast<u64>(__cvta_generic_to_global(
      reinterpret_cast<const void*>(tensor.address + u64{index} * SizeOf(tensor.dtype))));
  if (tensor.dtype == DType::kF32) {
    float value;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(at) : "memory");
    return value;
  }
  u16 bits;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(bits) : "l"(at) : "memory");
  return tensor.dtype == DType::kF16 ? Half::Widen(bits) : BFloat16::Widen(bits);
}
// The elements from `at` on of a vector of float32 or bfloat16.
__device__ __forceinline__ void LoadEight(u64 vector, DType dtype, u32 at, float (&x)[8]) {
  if (dtype == DType::kF32) {
    const Bytes16 a = LoadFresh(vector + at * 4), b = LoadFresh(vector + at * 4 + 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = __uint_as_float(a.words[i]);
      x[i + 4] = __uint_as_float(b.words[i]);
    }
  } else {
    const Bytes16 a = LoadFresh(vector + at * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = Low(a.words[i]);
      x[2 * i + 1] = High(a.words[i]);
    }
  }
}

// Pages that a warp takes at once, the first ones before it waits.
constexpr u32 kAheadPages = 2;
// Pages whose rows are stored together, and their rows.
constexpr u32 kRoundPages = 32;
constexpr u32 kRoundRows = 4 * kRoundPages;
static_assert(kRoundRows <= kMaxComputeThreads, "each thread stores one row");

// In the block's memory.
struct alignas(16) ProductMemory {
  // By round in turn, and row: the sums of each warp's columns.
  float sums[2][kRoundRows][kPageWarps];
  // By warp: the mean of the squares of its columns of the vector, divided by their share.
  float squares[kPageWarps];
};
static_assert(sizeof(ProductMemory) <= kBlockMemoryBytes, "");
constexpr u32 kSumsOfRow = kPageWarps * sizeof(float);
constexpr u32 kSumsOfRound = kRoundRows * kSumsOfRow;

// The second value if the mask has all bits, the first one if it has none; and a value or 0.
__device__ __forceinline__ float Select(float a, float b, u32 mask) {
  return __uint_as_float((__float_as_uint(b) & mask) | (__float_as_uint(a) & ~mask));
}
__device__ __forceinline__ float Masked(float a, u32 mask) {
  return __uint_as_float(__float_as_uint(a) & mask);
}
__device__ __forceinline__ float AddOther(float keep, float give, u32 distance) {
  return keep + __shfl_xor_sync(kAllLanes, give, distance);
}
__device__ __forceinline__ void StoreShared(u32 to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

// A row of the result, and of which matrix.
struct ResultRow {
  u32 matrix;
  u32 row;
};

// (all that run operators) Executes a turn. kWide: the rows have kStreamWideColumns weights,
// otherwise kStreamColumns. Lane 4 g + q of a warp has runs of the segments g and g + 8, which are
// the rows of the matrix product. With short rows column c of its right operand is the high part of
// a quarter c of the vector, and c + 4 the low part; with wide ones they are those of all 16
// segments, in two products for each part.
template <bool kWide>
__device__ __forceinline__ void MultiplyPages(u32 place) {
  constexpr u32 kRows = kWide ? 1 : 4;  // Of a page.
  static_assert(kRows * (kWide ? kStreamWideColumns : kStreamColumns) * 2 == kStreamPageBytes, "");
  const u32 t = threadIdx.x, warp = t / kWarp, lane = t % kWarp, g = lane >> 2, tq = lane & 3,
            odd = g & 1;
  auto& memory = *reinterpret_cast<ProductMemory*>(own.state.memory);
  StreamTurn& posted = turns[place];
  const u32 count = posted.count;
  PageReader reader(posted.sequence);
  Bytes16 a[kAheadPages][4];
#pragma unroll
  for (u32 k = 0; k < kAheadPages; ++k) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) a[k][i] = {{0, 0, 0, 0}};
  }
  reader.Take(count, a);
  const bool normalized = !kWide && posted.normalized != 0;
  const u32 column = (g & 3) * kSegmentWeights + warp * 64 + tq * 8;
  Bytes16 norms[2] = {};
  if (normalized) {
    const u64 norm = posted.norm;
#pragma unroll
    for (u32 j = 0; j < 2; ++j) norms[j] = LoadFresh(norm + (column + 32 * (j ^ odd)) * 2);
  }
  const u64 x_address = posted.x.address;
  const DType x_dtype = posted.x.dtype;
  if (!AwaitNodesBefore(posted)) return;
  // The wait has emptied the L1 cache: this one is read from shared memory.
  StreamTurn& turn = turns[turn_place];
  const auto result = [&](u32 index) {  // Of the member's rows.
    const u32 page = turn.first + index / kRows * turn.pitch;
    u32 row = page * kRows + index % kRows;
    u32 matrix = 0;
    if (turn.form == StreamForm::kStacked && row >= turn.ends[0]) {
      matrix = row >= turn.ends[1] ? 2 : 1;
      row -= turn.ends[matrix - 1];
    }
    return ResultRow{matrix, row};
  };
  float squares = 0;
  u32 b[kWide ? 8 : 2][4];
  // The bias of the first turn's rows is requested with the vector: it may be the residual.
  float bias = 0;
  const bool gated = turn.form == StreamForm::kGated;
  const auto load_bias = [&](u32 index) {
    const ResultRow to = result(index);
    const TurnTensor& from = turn.bias[to.matrix];
    if (from.address != 0) bias = LoadFresh(from, to.row);
  };
  if constexpr (kWide) {
    // In two halves, for which there are registers.
#pragma unroll
    for (u32 s = 0; s < 2; ++s) {
      float x[2][8];
#pragma unroll
      for (u32 j = 0; j < 2; ++j) {
        LoadEight(x_address, x_dtype,
                  (g + 8 * s) * kSegmentWeights + warp * 64 + (tq + 4 * (j ^ odd)) * 8, x[j]);
      }
      if (s == 0 && t < count * kRows && t < kRoundPages * kRows) load_bias(t);
#pragma unroll
      for (u32 j = 0; j < 2; ++j) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
          const float x0 = x[j][2 * i], x1 = x[j][2 * i + 1];
          u32& high = b[s * 4 + j][i];
          high = PackHigh(x0, x1);
          b[s * 4 + j + 2][i] = PackLow(x0, x1, high);
        }
      }
    }
  } else {
    float x[2][8];
#pragma unroll
    for (u32 j = 0; j < 2; ++j) LoadEight(x_address, x_dtype, column + 32 * (j ^ odd), x[j]);
    if (!gated && t < count * kRows && t < kRoundPages * kRows) load_bias(t);
#pragma unroll
    for (u32 j = 0; j < 2; ++j) {
      if (normalized) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
          squares = fmaf(x[j][2 * i], x[j][2 * i], squares);
          squares = fmaf(x[j][2 * i + 1], x[j][2 * i + 1], squares);
          x[j][2 * i] *= Low(norms[j].words[i]);
          x[j][2 * i + 1] *= High(norms[j].words[i]);
        }
      }
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const u32 high = PackHigh(x[j][2 * i], x[j][2 * i + 1]);
        b[j][i] = g < 4 ? high : PackLow(x[j][2 * i], x[j][2 * i + 1], high);
      }
    }
    squares = g < 4 ? squares : 0;
  }
  // All bits, if the lane has what the condition says.
  const auto mask_if = [](bool condition) { return InRegister(condition ? ~0u : 0u); };
  const u32 odd_mask = mask_if(odd != 0);
  const u32 mine = mask_if(kWide ? tq == g >> 1 : (g >> 1 & 1) == (tq & 1));
  // Lanes whose value is the second of two: of the rows of a page, and of the pages.
  const u32 second_half = mask_if(lane & 8);
  const u32 second_page = mask_if(lane & (kWide ? 16 : 4));
  const u32 row_of_pair = kWide ? lane >> 4 : (lane & 8 ? 2 : 0) + (lane >> 4) + (lane & 4 ? 4 : 0);
  // Several lanes have the same sum.
  const u32 sums_at = InRegister(SharedAddress(memory.sums) + row_of_pair * kSumsOfRow + warp * 4);
  u32 round = 0;
#pragma unroll 1
  for (u32 base = 0; base < count; base += kRoundPages) {
    const u32 n = min(kRoundPages, count - base);
    u32 to = sums_at + round * kSumsOfRound;
#pragma unroll 1
    for (u32 i = 0; i < n; i += kAheadPages, to += kAheadPages * kRows * kSumsOfRow) {
      const u32 next = base + i + kAheadPages;
      const u32 left = next < count ? count - next : 0;
      if constexpr (kWide) {
        float v[2];
#pragma unroll
        for (u32 k = 0; k < 2; ++k) {
          float c[4] = {}, d[4] = {};
#pragma unroll
          for (u32 j = 0; j < 2; ++j) {
            const u32(&w0)[4] = a[k][2 * j].words;
            const u32(&w1)[4] = a[k][2 * j + 1].words;
            MultiplyTile(c, w0[0], w1[0], w0[1], w1[1], b[j][0], b[j][1]);
            MultiplyTile(d, w0[0], w1[0], w0[1], w1[1], b[4 + j][0], b[4 + j][1]);
            MultiplyTile(c, w0[0], w1[0], w0[1], w1[1], b[2 + j][0], b[2 + j][1]);
            MultiplyTile(d, w0[0], w1[0], w0[1], w1[1], b[6 + j][0], b[6 + j][1]);
            MultiplyTile(c, w0[2], w1[2], w0[3], w1[3], b[j][2], b[j][3]);
            MultiplyTile(d, w0[2], w1[2], w0[3], w1[3], b[4 + j][2], b[4 + j][3]);
            MultiplyTile(c, w0[2], w1[2], w0[3], w1[3], b[2 + j][2], b[2 + j][3]);
            MultiplyTile(d, w0[2], w1[2], w0[3], w1[3], b[6 + j][2], b[6 + j][3]);
          }
          v[k] = Masked(Select(c[0] + d[2], c[1] + d[3], odd_mask), mine);
        }
        reader.Take(left, a);
        float s = AddOther(Select(v[0], v[1], second_page), Select(v[1], v[0], second_page), 16);
        s = AddOther(s, s, 8);
        s = AddOther(s, s, 4);
        s = AddOther(s, s, 2);
        s = AddOther(s, s, 1);
        StoreShared(to, s);
      } else {
        float c[2][4] = {}, d[2][4] = {};
#pragma unroll
        for (u32 k = 0; k < 2; ++k) {
          const Bytes16(&w)[4] = a[k];
          MultiplyTile(c[k], w[0].words[0], w[1].words[0], w[0].words[1], w[1].words[1], b[0][0],
                       b[0][1]);
          MultiplyTile(d[k], w[0].words[2], w[1].words[2], w[0].words[3], w[1].words[3], b[0][2],
                       b[0][3]);
        }
#pragma unroll
        for (u32 k = 0; k < 2; ++k) {
          const Bytes16(&w)[4] = a[k];
          MultiplyTile(c[k], w[2].words[0], w[3].words[0], w[2].words[1], w[3].words[1], b[1][0],
                       b[1][1]);
          MultiplyTile(d[k], w[2].words[2], w[3].words[2], w[2].words[3], w[3].words[3], b[1][2],
                       b[1][3]);
        }
        reader.Take(left, a);
        float u[2];
#pragma unroll
        for (u32 k = 0; k < 2; ++k) {
          const float v0 = Masked(Select(c[k][0] + d[k][0], c[k][1] + d[k][1], odd_mask), mine);
          const float v1 = Masked(Select(c[k][2] + d[k][2], c[k][3] + d[k][3], odd_mask), mine);
          u[k] = AddOther(Select(v0, v1, second_half), Select(v1, v0, second_half), 8);
        }
        float s = AddOther(Select(u[0], u[1], second_page), Select(u[1], u[0], second_page), 4);
        s = AddOther(s, s, 2);
        s = AddOther(s, s, 1);
        StoreShared(to, s);
      }
    }
    if (normalized && base == 0) {
      squares *= 1.0f / kStreamColumns;
#pragma unroll
      for (u32 distance = kWarp / 2; distance > 0; distance /= 2) {
        squares = AddOther(squares, squares, distance);
      }
      if (lane == 0) memory.squares[warp] = squares;
    }
    OperatorBarrier();
    if (t < n * kRows) {
      float scale = 1;
      if (normalized) {
        const float4 p = *reinterpret_cast<const float4*>(memory.squares);
        const float4 q = *reinterpret_cast<const float4*>(memory.squares + 4);
        const float mean = (p.x + p.y) + (p.z + p.w) + ((q.x + q.y) + (q.z + q.w));
        scale = math::rsqrt(mean + turn.eps);
      }
      const float4 p = *reinterpret_cast<const float4*>(&memory.sums[round][t][0]);
      const float4 q = *reinterpret_cast<const float4*>(&memory.sums[round][t][4]);
      const float v = ((p.x + p.y) + (p.z + p.w) + ((q.x + q.y) + (q.z + q.w))) * scale;
      if (gated) {
        const float up = __shfl_down_sync(__activemask(), v, 2);
        if (t % 4 < 2) {
          const u32 page = turn.first + (base + t / 4) * turn.pitch;
          StoreFloat(turn.out[0].address, turn.out[0].dtype, page * 2 + t % 4,
                     math::silu_mul(v, up));
        }
      } else {
        if (base != 0) load_bias(base * kRows + t);
        const ResultRow to = result(base * kRows + t);
        const TurnTensor& out = turn.out[to.matrix];
        StoreFloat(out.address, out.dtype, to.row, v + bias);
      }
    }
    round ^= 1;
  }
  // One warp has stored everything, if there are so few rows.
  if (count * kRows <= kWarp) {
    __syncwarp();
  } else {
    OperatorBarrier();
  }
  if (t == 0 && turn.signals) AddReleaseDevice(turn.signal, 1);
}

// (all that run operators) Executes the turn at this place of `turns`.
__device__ __forceinline__ void RunTurn(u32 place) {
  if (threadIdx.x == 0) turn_place = place;
  if (turns[place].columns == kStreamWideColumns) {
    MultiplyPages<true>(place);
  } else {
    MultiplyPages<false>(place);
  }
}

}  // namespace
}  // namespace resident

#endif  // RESIDENT_KERNELS_RESIDENT_STREAM_PRODUCT_CUH_
