// This header computes gemv and gemv_silu_mul of one vector and 16-bit weights, whose rows are as
// long as those of a model's layers, and the same with the normalization of the vector in front
// (rmsnorm_gemv, rmsnorm_gemv_silu_mul), also for three matrices (rmsnorm_gemv_qkv).
// vector_products.h and gemv_tensor_cores.h have other products.
//
//   if (resident::MultiplyOneVector</*kNormalized=*/false>(block, args)) return;
//
// A warp has adjacent rows, two at a time: of gemv_silu_mul a row of each matrix. A lane always has
// eight loads of 16 bytes of weights under way, also from two rows to the next two, and the first
// ones start before the vector may be read (Block::await_inputs). So each block has 32 KiB on their
// way. If x leaves room in the block's memory, the 32 KiB behind these are on their way to it, and
// further weights reach the registers through it. More memory for that was tried: it is taken from
// the L1 cache, so that other tasks took 1.2 times as long.
//
// The products are added in float32, so that x is not rounded, and the warps need nothing of each
// other: a row is the work of one warp, and its bits depend neither on the number of chunks nor on
// that of threads.
//
// With a normalization each block computes the mean of the squares of x for itself, which takes
// less time than a node of a graph of its own. It is needed only when the sum of a row is complete:
//
//   out = sum of (x * norm) * w, times 1 / sqrt(mean + eps)
//
// So x is read once. The mean is added by all warps: its bits, and with them those of the rows,
// depend on the number of threads of a block, but not on the number of chunks. The factor is at
// least 2^-64 as long as the mean is in the range of float32: a sum is out of range before the
// multiplication only if it is at least 2^64 after it. An error of the factor, of a few units in
// the last place, is one of all results.
//
// A small product takes as long as its instructions need one after the other. The operands are
// therefore read without what other forms would need.
#ifndef RESIDENT_KERNELS_OPS_GEMV_ONE_VECTOR_H_
#define RESIDENT_KERNELS_OPS_GEMV_ONE_VECTOR_H_

#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/tensor_cores.h"
#include "kernels/ops/warp.h"
#include "kernels/sdk/elementwise.h"
#include "kernels/sdk/operator.h"

namespace resident {

// The argument of a product that is its (first) matrix; the one behind it is the bias or the second
// matrix, and then the result follows. With a normalization, argument 1 has its weights, and the
// last one is eps.
template <bool kNormalized>
inline constexpr u32 kArgumentOfMatrix = kNormalized ? 2 : 1;

// The arguments of rmsnorm_gemv_qkv: three matrices from argument 2 on, then their biases, their
// results, and eps.
inline constexpr u32 kStackedMatrices = 3;
inline constexpr u32 kStackedBias = kArgumentOfMatrix<true> + kStackedMatrices;
inline constexpr u32 kStackedOut = kStackedBias + kStackedMatrices;
inline constexpr u32 kStackedEps = kStackedOut + kStackedMatrices;

#if RESIDENT_WARPS

// The matrices of a product.
enum class ProductForm {
  kPlain,
  // The one of the gates, and as the next argument that of what they are multiplied with.
  kGated,
  // Those of rmsnorm_gemv_qkv: their rows are taken as those of one matrix, one behind the other.
  kStacked,
};

// A lane reads a run of 8 weights at a time. A piece has one run of each lane, a step two pieces of
// two rows. Rows are filled up with zeros to whole steps.
inline constexpr u32 kRunWeights = 8;
inline constexpr u32 kStepRows = 2;
inline constexpr u32 kStepPieces = 2;
inline constexpr u32 kStepRuns = kStepPieces * kWarpThreads;
inline constexpr u32 kPieceBytes = kWarpThreads * sizeof(Bytes16);
// Shorter rows would be filled up by too much; x of longer ones has no space in the memory.
inline constexpr u32 kMinDepth = 1024;
inline constexpr u32 kMaxDepth = kBlockMemoryBytes / sizeof(float);
static_assert(kMaxDepth % (kStepRuns * kRunWeights) == 0, "");

// Weights of a step, of which a lane has a run of each piece of each row.
struct StepWeights {
  Bytes16 runs[kStepRows][kStepPieces];
};

// Reads a run of weights. Those of a model are read once in a step, and would replace code and
// activations in the L2 cache, which are used again soon: `policy` is LastUse().
RESIDENT_DEVICE Bytes16 LoadRun(u64 from, [[maybe_unused]] u64 policy) {
#if RESIDENT_GPU
  Bytes16 run;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(run.words[0]), "=r"(run.words[1]), "=r"(run.words[2]), "=r"(run.words[3])
               : "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from))), "l"(policy));
  return run;
#else
  return *reinterpret_cast<const Bytes16*>(from);
#endif
}

// Where the rows of one matrix are.
struct AdjacentRows {
  // From the end of a step's last row to the next step's first row: `at` is behind the lane's last
  // run. The second row of a step stays as far from the first one as it is.
  template <u32 kRows>
  RESIDENT_DEVICE void Advance(u64& at, u64&, u32, u32 runs, u32 padded) {
    at += (u64{kRows} * runs - padded) * sizeof(Bytes16);
  }
};

// Where the rows of the matrices of rmsnorm_gemv_qkv are.
class StackedRows {
 public:
  // A row of one of the matrices.
  struct Place {
    u32 matrix;
    u32 row;
  };

  // `next`: the first row of the next step.
  RESIDENT_DEVICE StackedRows(const Args& args, u32 next) : args_(&args), next_(next) {}

  static RESIDENT_DEVICE u64 Count(const Args& args) {
    u64 rows = 0;
    for (u32 m = 0; m < kStackedMatrices; ++m) {
      rows += static_cast<u64>(args.described(kArgumentOfMatrix<true> + m).shape[0]);
    }
    return rows;
  }
  // A row behind the last one is one behind the last matrix.
  static RESIDENT_DEVICE Place Find(const Args& args, u32 row) {
    const u32 first = static_cast<u32>(args.described(kArgumentOfMatrix<true>).shape[0]);
    const u32 second = static_cast<u32>(args.described(kArgumentOfMatrix<true> + 1).shape[0]);
    if (row < first) return {0, row};
    if (row - first < second) return {1, row - first};
    return {2, row - first - second};
  }

  // The lane's first run of the next step's first row, and the distance of its second row.
  RESIDENT_DEVICE void Locate(u64& at, u64& second, u32 lane, u32 runs) const {
    const u64 first = AddressOfRow(next_, runs);
    second = AddressOfRow(next_ + 1, runs) - first;
    at = first + u64{lane} * sizeof(Bytes16);
  }
  template <u32 kRows>
  RESIDENT_DEVICE void Advance(u64& at, u64& second, u32 lane, u32 runs, u32) {
    next_ += kRows;
    Locate(at, second, lane, runs);
  }

 private:
  RESIDENT_DEVICE u64 AddressOfRow(u32 row, u32 runs) const {
    const Place place = Find(*args_, row);
    return args_->described(kArgumentOfMatrix<true> + place.matrix).address +
           u64{place.row} * runs * sizeof(Bytes16);
  }

  const Args* args_;
  u32 next_;
};

// The weights of a warp's rows, step by step.
template <typename Rows>
struct WeightStepsOf {
  u64 policy;
  u64 at;   // The lane's run of the first row in the next step,
  u32 run;  // and its index in the row.
  u32 lane;
  u32 runs;    // Of a row: those that exist,
  u32 padded;  // and those with which it is filled up.
  u32 rows;    // Of the result, that are left.
  u64 second;  // From the first row of a step to the second one, in bytes.
  Rows places = {};

  // kRows: of the result, of a step.
  template <u32 kRows>
  RESIDENT_DEVICE void Load(StepWeights& to) {
    for (u32 k = 0; k < kStepPieces; ++k) {
      TakePiece<kRows>(k, [&](u32 r, u64 from, bool exists) {
        to.runs[r][k] = {{0, 0, 0, 0}};
        if (exists) to.runs[r][k] = LoadRun(from, policy);
      });
    }
    Advance<kRows>();
  }

  // Starts copies of the lane's runs of a piece. `to`: where that of the first piece and row is to
  // be; the next ones are behind those of the other lanes.
  template <u32 kRows>
  RESIDENT_DEVICE void Copy(u32 piece, MemoryAddress to) const {
    TakePiece<kRows>(piece, [&](u32 r, u64 from, bool exists) {
      CopyAsyncFor(policy, to + (r * kStepPieces + piece) * kPieceBytes, from,
                   exists ? sizeof(Bytes16) : 0);
    });
  }

  // Calls take(row, address, exists) for the lane's runs of a piece of the next step.
  template <u32 kRows, typename F>
  RESIDENT_DEVICE void TakePiece(u32 piece, F take) const {
    const bool exists = (rows > 0) & (run + piece * kWarpThreads < runs);
    const u64 from = at + piece * kPieceBytes;
    take(0, from, exists);
    take(1, from + second, exists & ((kRows == 1) | (rows > 1)));
  }

  // The pieces of the next step have been taken.
  template <u32 kRows>
  RESIDENT_DEVICE void Advance() {
    at += kStepRuns * sizeof(Bytes16);
    run += kStepRuns;
    if (run < padded) return;
    run = lane;
    places.template Advance<kRows>(at, second, lane, runs, padded);
    rows = rows > kRows ? rows - kRows : 0;
  }
};
using WeightSteps = WeightStepsOf<AdjacentRows>;

// A warp's steps that are on their way to the block's memory for them. Each lane reads what it has
// copied itself, so that no thread waits for another one.
class StepRing {
 public:
  static constexpr u32 kSteps = 2;

  // The block's memory is used from `begin` on, a multiple of 16.
  RESIDENT_DEVICE StepRing(const Block& block, u32 begin) {
    const u32 warps = block.threads() / kWarpThreads;
    exists_ = begin + warps * kRingBytes <= kBlockMemoryBytes;
    first_ = AddressInMemory(block.memory<unsigned char>()) + begin + WarpOf(block) * kRingBytes +
             LaneOf(block) * static_cast<u32>(sizeof(Bytes16));
  }

  RESIDENT_DEVICE bool exists() const { return exists_; }

  // Requests as many steps as there are places.
  template <u32 kRows, typename Steps>
  RESIDENT_DEVICE void Fill(Steps& weights) {
    for (u32 step = 0; step < kSteps; ++step) {
      for (u32 k = 0; k < kStepPieces; ++k) {
        weights.template Copy<kRows>(k, first_ + step * kStepBytes);
      }
      weights.template Advance<kRows>();
      CommitCopies();
    }
  }

  // Takes the oldest step, and requests another one in its place.
  template <u32 kRows, typename Steps>
  RESIDENT_DEVICE void Exchange(Steps& weights, StepWeights& to) {
    Await();
    for (u32 k = 0; k < kStepPieces; ++k) ExchangePiece<kRows>(weights, k, to);
    Advance<kRows>(weights);
  }

  // The same in parts: Await, all pieces, and Advance.
  RESIDENT_DEVICE void Await() const { WaitForCopies<kSteps - 1>(); }
  template <u32 kRows, typename Steps>
  RESIDENT_DEVICE void ExchangePiece(const Steps& weights, u32 piece, StepWeights& to) const {
    const MemoryAddress place = first_ + place_;
    for (u32 r = 0; r < kStepRows; ++r) {
      to.runs[r][piece] =
          *PointerInMemory<const Bytes16>(place + (r * kStepPieces + piece) * kPieceBytes);
    }
    weights.template Copy<kRows>(piece, place);
  }
  template <u32 kRows, typename Steps>
  RESIDENT_DEVICE void Advance(Steps& weights) {
    weights.template Advance<kRows>();
    CommitCopies();
    place_ = (place_ + kStepBytes) % kRingBytes;
  }

  // No copy is on its way afterwards.
  RESIDENT_DEVICE void Drain() { WaitForCopies<0>(); }

 private:
  static constexpr u32 kStepBytes = kStepRows * kStepPieces * kPieceBytes;
  static constexpr u32 kRingBytes = kSteps * kStepBytes;

  MemoryAddress first_;  // The lane's first run.
  u32 place_ = 0;        // Of the oldest step.
  bool exists_;
};

// The rows of a warp: its share among the warps of all chunks.
struct WarpRows {
  u32 first;
  u32 count;

  RESIDENT_DEVICE WarpRows(const Block& block, u32 all_rows) {
    const u32 warps = block.threads() / kWarpThreads;
    const u32 all_warps = static_cast<u32>(block.chunk_count()) * warps;
    const u32 warp = static_cast<u32>(block.chunk()) * warps + WarpOf(block);
    const u32 each = all_rows / all_warps;
    const u32 more = all_rows - each * all_warps;
    first = warp * each + (warp < more ? warp : more);
    count = each + (warp < more ? 1 : 0);
  }
};

// (warp) The sums of a step's rows over all lanes: in lanes below 16 that of the first row, in the
// others that of the second one.
RESIDENT_DEVICE float SumOverLanes(const float (&sums)[kStepRows], bool second) {
  float sum = ShuffleXor(second ? sums[0] : sums[1], kWarpThreads / 2);
  sum += second ? sums[1] : sums[0];
  return CombineLanes(
      sum, [](float a, float b) { return a + b; }, kWarpThreads / 2);
}

// Four elements of a vector of `depth` elements, which is filled up with zeros.
template <typename X>
RESIDENT_DEVICE Quad<X> LoadQuad(u64 vector, u32 quad, u32 depth) {
  Quad<X> stored;
  if (quad * 4 < depth) {
    stored = *ElementAt<const Quad<X>>(vector, quad);
  } else {
    for (u32 k = 0; k < 4; ++k) stored.v[k] = X(0.0f);
  }
  return stored;
}

// Whether MultiplyOneVectorBy can multiply x and w. All members are read at the same time.
RESIDENT_DEVICE bool CanMultiplyOneVector(const TensorArgument& x, const TensorArgument& w,
                                          const TensorArgument& out) {
  const u64 rows = static_cast<u64>(w.shape[0]);
  const u64 depth = static_cast<u64>(w.shape[1]);
  const u64 quad = x.dtype == DType::kF32 ? 16 : 8;
  return (depth >= kMinDepth) & (depth <= kMaxDepth) & (depth % kRunWeights == 0) &
         (rows >> 31 == 0) & (w.dtype != DType::kF32) & (w.address % sizeof(Bytes16) == 0) &
         (x.address % quad == 0) & ((out.rank == 1) | ((out.rank == 2) & (out.shape[0] == 1)));
}

// kNormalized: with the normalization of x, whose weights have the type T.
template <typename X, typename T, ProductForm kForm, bool kNormalized>
RESIDENT_DEVICE void MultiplyOneVectorBy(const Block& block, const Args& args) {
  constexpr bool kGated = kForm == ProductForm::kGated;
  constexpr bool kStacked = kForm == ProductForm::kStacked;
  constexpr u32 kRows = kGated ? 1 : kStepRows;
  constexpr u32 kMatrix = kArgumentOfMatrix<kNormalized>;
  const u32 lane = LaneOf(block);
  const TensorArgument& w = args.described(kMatrix);
  u32 all_rows = static_cast<u32>(w.shape[0]);
  if constexpr (kStacked) all_rows = static_cast<u32>(StackedRows::Count(args));
  const WarpRows own(block, all_rows);
  u32 row = own.first;

  const u32 depth = static_cast<u32>(w.shape[1]);
  const u32 runs = depth / kRunWeights;
  const u32 steps = (runs + kStepRuns - 1) / kStepRuns;
  const u32 padded = steps * kStepRuns;

  const auto steps_of = [&](auto rows) {
    WeightStepsOf<decltype(rows)> of_rows = {LastUse(), 0,         lane, lane, runs,
                                             padded,    own.count, 0,    rows};
    if constexpr (kStacked) {
      rows.Locate(of_rows.at, of_rows.second, lane, runs);
    } else {
      of_rows.at = w.address + (u64{row} * runs + lane) * sizeof(Bytes16);
      of_rows.second =
          kGated ? args.described(kMatrix + 1).address - w.address : u64{runs} * sizeof(Bytes16);
    }
    return of_rows;
  };
  auto weights = [&] {
    if constexpr (kStacked) {
      return steps_of(StackedRows(args, row));
    } else {
      return steps_of(AdjacentRows{});
    }
  }();
  // The division needs registers that ahead[] has later.
  [[maybe_unused]] const float per_column = 1.0f / static_cast<float>(depth);
  StepWeights ahead[2];
  weights.template Load<kRows>(ahead[0]);
  weights.template Load<kRows>(ahead[1]);
  StepRing ring(block, 2 * padded * static_cast<u32>(sizeof(Quad<float>)));
  if (ring.exists()) ring.template Fill<kRows>(weights);
  // Quads of x that a thread requests before it stores the first of them. There may be more.
  constexpr u32 kFirst = 2;
  [[maybe_unused]] const u64 norm_address = args.described(1).address;
  Quad<T> first_norms[kFirst];
  if constexpr (kNormalized) {
    for (u32 k = 0; k < kFirst; ++k) {
      first_norms[k] = LoadQuad<T>(norm_address, block.thread() + k * block.threads(), depth);
    }
  }
  if (!block.await_inputs()) {
    ring.Drain();
    return;
  }

  const u64 x_address = args.described(0).address;
  Quad<X> first_quads[kFirst];
  for (u32 k = 0; k < kFirst; ++k) {
    first_quads[k] = LoadQuad<X>(x_address, block.thread() + k * block.threads(), depth);
  }

  // The first quads of all runs, then the second ones, so that adjacent lanes read adjacent quads.
  auto* const x = reinterpret_cast<Quad<float>*>(block.memory<float>(0, kMaxDepth));
  [[maybe_unused]] float mean = 0.0f;  // The thread's share of it.
  const auto store = [&](u32 quad, const Quad<X>& stored, [[maybe_unused]] const Quad<T>& norm) {
    Quad<float> values;
    for (u32 k = 0; k < 4; ++k) values.v[k] = stored.v[k];
    if constexpr (kNormalized) {
      float partial = 0.0f;
      for (u32 k = 0; k < 4; ++k) partial += values.v[k] * values.v[k];
      mean += partial * per_column;
      for (u32 k = 0; k < 4; ++k) values.v[k] *= norm.v[k];
    }
    if (quad < 2 * padded) x[quad % 2 * padded + quad / 2] = values;
  };
  for (u32 k = 0; k < kFirst; ++k) {
    store(block.thread() + k * block.threads(), first_quads[k], first_norms[k]);
  }
  RESIDENT_UNROLL(2)
  for (u32 quad = block.thread() + kFirst * block.threads(); quad < 2 * padded;
       quad += block.threads()) {
    Quad<T> norm;
    if constexpr (kNormalized) norm = LoadQuad<T>(norm_address, quad, depth);
    store(quad, LoadQuad<X>(x_address, quad, depth), norm);
  }
  [[maybe_unused]] float scale = 1.0f;
  if constexpr (kNormalized) {
    // Its barriers are behind the stores.
    const float eps = args.scalar<float>(kStacked ? kStackedEps : kMatrix + 3);
    scale = math::rsqrt(block.reduce_sum(mean) + eps);
  } else {
    block.barrier();
  }

  [[maybe_unused]] const TensorArgument& bias = args.described(kMatrix + 1);
  const TensorArgument& out = args.described(kMatrix + 2);
  const Quad<float>* at = x + lane;
  float sums[kStepRows] = {};
  u32 step_of_rows = 0;
  u32 left = own.count;
  const auto add = [&](StepWeights& next) {
    const StepWeights step = next;
    if (ring.exists()) {
      ring.template Exchange<kRows>(weights, next);
    } else {
      weights.template Load<kRows>(next);
    }
    for (u32 k = 0; k < kStepPieces; ++k) {
      const Quad<float> low = at[k * kWarpThreads];
      const Quad<float> high = at[padded + k * kWarpThreads];
      float partial[kStepRows] = {};
      for (u32 i = 0; i < kRunWeights; ++i) {
        for (u32 r = 0; r < kStepRows; ++r) {
          const u32 word = step.runs[r][k].words[i / 2];
          const float weight = T::Widen(static_cast<u16>(i % 2 == 0 ? word : word >> 16));
          partial[r] += weight * (i < 4 ? low.v[i % 4] : high.v[i % 4]);
        }
      }
      for (u32 r = 0; r < kStepRows; ++r) sums[r] += partial[r];
    }
    at += kStepRuns;
    if (++step_of_rows < steps) return;
    step_of_rows = 0;
    at = x + lane;
    // Lanes below 16 have the sum of the first row, the others that of the second one.
    const bool second = lane >= kWarpThreads / 2;
    float sum = SumOverLanes(sums, second);
    if constexpr (kNormalized) sum *= scale;
    if constexpr (kGated) {
      const float up = ShuffleXor(sum, kWarpThreads / 2);
      if (lane == 0) StoreFloat(out.address, out.dtype, row, math::silu_mul(sum, up));
    } else if (lane % (kWarpThreads / 2) == 0 && u32{second} < left) {
      u32 own_row = row + u32{second};
      const auto store_row = [&](const TensorArgument& bias_of_row, const TensorArgument& to) {
        if (bias_of_row.shape[0] != 0) {
          sum += LoadFloat(bias_of_row.address, bias_of_row.dtype, own_row);
        }
        StoreFloat(to.address, to.dtype, own_row, sum);
      };
      if constexpr (kStacked) {
        const StackedRows::Place place = StackedRows::Find(args, own_row);
        own_row = place.row;
        store_row(args.described(kStackedBias + place.matrix),
                  args.described(kStackedOut + place.matrix));
      } else {
        store_row(bias, out);
      }
    }
    sums[0] = sums[1] = 0.0f;
    row += kRows;
    left = left > kRows ? left - kRows : 0;
  };
  RESIDENT_UNROLL(1)
  while (left > 0) {
    add(ahead[0]);
    if (left == 0) break;
    add(ahead[1]);
  }
  ring.Drain();
}

// Whether a bias of one vector's product is none, or has the shape of the result or of a row of it.
// All members are read at the same time.
RESIDENT_DEVICE bool FitsOneVector(const TensorArgument& bias, const TensorArgument& w,
                                   const TensorArgument& out) {
  return ((bias.rank == 1) & ((bias.shape[0] == 0) | (bias.shape[0] == w.shape[0]))) |
         ((bias.rank == 2) & (out.rank == 2) & (bias.shape[0] == 1) &
          (bias.shape[1] == w.shape[0]));
}

template <ProductForm kForm, bool kNormalized>
RESIDENT_DEVICE bool MultiplyOneVectorOf(const Block& block, const Args& args) {
  if (!kReadsDirectly || block.chunk_count() >> 24 != 0) return false;
  constexpr u32 kMatrix = kArgumentOfMatrix<kNormalized>;
  const TensorArgument& x = args.described(0);
  const TensorArgument& w = args.described(kMatrix);
  const TensorArgument& next = args.described(kMatrix + 1);
  bool can = true;
  if constexpr (kForm == ProductForm::kStacked) {
    for (u32 m = 0; m < kStackedMatrices; ++m) {
      const TensorArgument& matrix = args.described(kMatrix + m);
      const TensorArgument& out = args.described(kStackedOut + m);
      can = can & CanMultiplyOneVector(x, matrix, out) & (matrix.dtype == w.dtype) &
            FitsOneVector(args.described(kStackedBias + m), matrix, out);
    }
    can = can & (StackedRows::Count(args) >> 31 == 0);
  } else {
    const TensorArgument& out = args.described(kMatrix + 2);
    can = CanMultiplyOneVector(x, w, out);
    if constexpr (kForm == ProductForm::kGated) {
      can = can & (next.dtype == w.dtype) & (next.address % sizeof(Bytes16) == 0);
    } else {
      can = can & FitsOneVector(next, w, out);
    }
  }
  if constexpr (kNormalized) {
    // As in a model: other types would need as much code again.
    const TensorArgument& norm = args.described(1);
    can = can & (x.dtype == DType::kF32) & (norm.dtype == w.dtype) &
          (norm.address % sizeof(Bytes8) == 0);
  }
  if (!can) return false;
  const auto multiply = [&](auto element) {
    using X = decltype(element);
    if (w.dtype == DType::kF16) {
      MultiplyOneVectorBy<X, Half, kForm, kNormalized>(block, args);
    } else {
      MultiplyOneVectorBy<X, BFloat16, kForm, kNormalized>(block, args);
    }
  };
  if constexpr (kNormalized) {
    multiply(float{});
  } else {
    VisitFloat(x.dtype, multiply);
  }
  return true;
}

#endif  // RESIDENT_WARPS

// (collective) The operator gemv, with kNormalized rmsnorm_gemv, which awaits its inputs. False:
// the operands have another form, or must be refused, and nothing was awaited.
template <bool kNormalized>
RESIDENT_DEVICE bool MultiplyOneVector([[maybe_unused]] const Block& block,
                                       [[maybe_unused]] const Args& args) {
#if RESIDENT_WARPS
  return MultiplyOneVectorOf<ProductForm::kPlain, kNormalized>(block, args);
#else
  return false;
#endif
}

// (collective) The same for gemv_silu_mul and rmsnorm_gemv_silu_mul.
template <bool kNormalized>
RESIDENT_DEVICE bool GateOneVector([[maybe_unused]] const Block& block,
                                   [[maybe_unused]] const Args& args) {
#if RESIDENT_WARPS
  return MultiplyOneVectorOf<ProductForm::kGated, kNormalized>(block, args);
#else
  return false;
#endif
}

// (collective) The same for rmsnorm_gemv_qkv.
RESIDENT_DEVICE bool MultiplyStacked([[maybe_unused]] const Block& block,
                                     [[maybe_unused]] const Args& args) {
#if RESIDENT_WARPS
  return MultiplyOneVectorOf<ProductForm::kStacked, /*kNormalized=*/true>(block, args);
#else
  return false;
#endif
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_GEMV_ONE_VECTOR_H_
