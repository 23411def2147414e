// Of the family "attention": rotary positions.
#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/operand.h"
#include "kernels/ops/rotation.h"
#include "kernels/sdk/operator.h"

namespace resident {
namespace {

// Frequencies, or angles, that fit in the block's memory at once.
constexpr i64 kFrequencies = 1024;

RESIDENT_NOINLINE double Power(double x, double y) {
#if RESIDENT_GPU
  return ::pow(x, y);
#else
  return __builtin_pow(x, y);
#endif
}

// The tensors of a rope, and one position's heads in them.
struct RopeTask {
  Operand x;
  Operand out;
  i64 heads;
  i64 half;
  bool interleaved;
};

// Rotates pairs [first, first + count) of each head at offsets `x` and `out`. float32 with
// adjacent elements: compilers vectorize it.
template <bool kInterleaved>
RESIDENT_DEVICE void RotateDense(const Block& block, const RopeTask& task, i64 first, i64 count,
                                 i64 x, i64 out, const float* cosines, const float* sines) {
  struct Head {
    const float* x;
    float* out;
  };
  constexpr i64 kStep = kInterleaved ? 2 : 1;
  const i64 gap = kInterleaved ? 1 : task.half;
  ForEachInRows(
      block, {0, task.heads}, count,
      [&](i64 n) {
        return Head{
            ElementAt<const float>(task.x.address, x + n * task.x.strides[2] + first * kStep),
            ElementAt<float>(task.out.address, out + n * task.out.strides[2] + first * kStep)};
      },
      [=](const Head& head, i64 i) {
        const float a = head.x[i * kStep];
        const float b = head.x[i * kStep + gap];
        head.out[i * kStep] = a * cosines[i] - b * sines[i];
        head.out[i * kStep + gap] = a * sines[i] + b * cosines[i];
      });
}

// The same for all types and strides.
RESIDENT_DEVICE void Rotate(const Block& block, const RopeTask& task, i64 first, i64 count, i64 x,
                            i64 out, const float* cosines, const float* sines) {
  struct Head {
    i64 x;
    i64 out;
  };
  ForEachInRows(
      block, {0, task.heads}, count,
      [&](i64 n) {
        return Head{x + n * task.x.strides[2], out + n * task.out.strides[2]};
      },
      [&](const Head& head, i64 i) {
        const i64 low = task.interleaved ? 2 * (first + i) : first + i;
        const i64 high = task.interleaved ? low + 1 : low + task.half;
        const float a = LoadFloat(task.x.address, task.x.dtype, head.x + low * task.x.strides[3]);
        const float b = LoadFloat(task.x.address, task.x.dtype, head.x + high * task.x.strides[3]);
        StoreFloat(task.out.address, task.out.dtype, head.out + low * task.out.strides[3],
                   a * cosines[i] - b * sines[i]);
        StoreFloat(task.out.address, task.out.dtype, head.out + high * task.out.strides[3],
                   a * sines[i] + b * cosines[i]);
      });
}

// float32 with adjacent elements, of which each thread has the same pair of several heads: so it
// needs only the angle of this pair. A single position takes as long as the instructions in front
// of the first load. False: the tensors have another form.
RESIDENT_NOINLINE bool RotatePairs(Block block, Args args, i64 offset, bool interleaved) {
  if (!kReadsDirectly) return false;
  const TensorArgument& x = args.described(0);
  const TensorArgument& freqs = args.described(1);
  const TensorArgument& out = args.described(2);
  const u32 threads = block.threads();
  if (freqs.shape[1] < 1 || freqs.shape[1] > i64{threads}) return false;
  const u32 half = static_cast<u32>(freqs.shape[1]);
  bool fits = (x.dtype == DType::kF32) & (out.dtype == DType::kF32) & (x.strides[3] == 1) &
              (out.strides[3] == 1) & (x.shape[2] >> 31 == 0);
  if (!fits || threads % half != 0) return false;
  const u32 pair = block.thread() % half;
  const u32 first_head = block.thread() / half;
  const u32 heads = static_cast<u32>(x.shape[2]);
  const u32 heads_at_once = threads / half;
  const i64 low = interleaved ? 2 * pair : pair;
  const i64 gap = interleaved ? 1 : half;
  const i64 length = x.shape[1];
  const Range rows = block.share(x.shape[0] * length);
  if (!block.await_inputs()) return true;
  RESIDENT_UNROLL(1)
  for (i64 row = rows.begin; row < rows.end; ++row) {
    const i64 b = length == 1 ? row : Quotient(row, length);
    const i64 s = row - b * length;
    const float* const from =
        ElementAt<const float>(x.address, b * x.strides[0] + s * x.strides[1] + low);
    float* const to = ElementAt<float>(out.address, b * out.strides[0] + s * out.strides[1] + low);
    const Rotation by =
        RotationBy(*ElementAt<const float>(freqs.address, (offset + s) * half + pair));
    RESIDENT_UNROLL(4)
    for (u32 n = first_head; n < heads; n += heads_at_once) {
      const float* const head = from + n * x.strides[2];
      float* const rotated = to + n * out.strides[2];
      const float x_low = head[0];
      const float x_high = head[gap];
      rotated[0] = x_low * by.cosine - x_high * by.sine;
      rotated[gap] = x_low * by.sine + x_high * by.cosine;
    }
  }
  return true;
}

}  // namespace

RESIDENT_OPERATOR(rope_freqs)(Block& block, const Args& args) {
  const auto out = args.tensor<float>(0);
  const i64 half = out.shape(1);
  const double plain_base = args.scalar<float>(1);
  const double alpha = args.scalar<float>(2);
  if (half == 1) {
    block.fail(CompletionStatus::kInvalidArgument, 1);
    return;
  }
  if (out.size() == 0) return;
  const double dim = 2.0 * static_cast<double>(half);
  const double base = plain_base * Power(alpha, dim / (dim - 2.0));
  // Also if one is NaN. base - base is not 0 if it is infinite or NaN.
  if (!(plain_base > 0.0) || !(alpha > 0.0) || !(base > 0.0) || base - base != 0.0) {
    block.fail(CompletionStatus::kInvalidArgument, 2);
    return;
  }
  double* const frequencies = block.memory<double>(0, kFrequencies);
  float* const angles = out.data();
  const Range positions = block.share(out.shape(0));
  for (i64 first = 0; first < half; first += kFrequencies) {
    const i64 count = Smallest(half - first, kFrequencies);
    block.for_each({0, count}, [&](i64 i) {
      frequencies[i] = Power(base, -2.0 * static_cast<double>(first + i) / dim);
    });
    block.barrier();
    ForEachInRows(
        block, positions, count, [](i64 pos) { return pos; },
        [=](i64 pos, i64 i) {
          angles[pos * half + first + i] =
              static_cast<float>(static_cast<double>(pos) * frequencies[i]);
        });
    block.barrier();
  }
}

RESIDENT_OPERATOR(rope)(Block& block, const Args& args) {
  const auto x = args.tensor<const Any>(0);
  const auto freqs = args.tensor<const float>(1);
  const i64 offset = args.scalar<i64>(3);
  const i32 layout = args.scalar<i32>(4);
  const i64 length = x.shape(1);
  const i64 half = freqs.shape(1);
  if (x.shape(3) != 2 * half) {
    block.fail(CompletionStatus::kInvalidArgument, 1);
    return;
  }
  if (offset < 0 || offset > freqs.shape(0) - length) {
    block.fail(CompletionStatus::kInvalidArgument, 2);
    return;
  }
  if (layout != 0 && layout != 1) {
    block.fail(CompletionStatus::kInvalidArgument, 3);
    return;
  }
  if (x.size() == 0) return;
  if (RotatePairs(block, args, offset, layout == 0) || !block.await_inputs()) return;

  auto& task = *block.memory<RopeTask>();
  float* const cosines = block.memory<float>(sizeof(RopeTask), 2 * kFrequencies);
  float* const sines = cosines + kFrequencies;
  if (block.thread() == 0) {
    task.x.Read(x);
    task.out.Read(args.tensor<const Any>(2));
    task.heads = x.shape(2);
    task.half = half;
    task.interleaved = layout == 0;
  }
  block.barrier();
  const bool dense = task.x.dtype == DType::kF32 && task.out.dtype == DType::kF32 &&
                     task.x.strides[3] == 1 && task.out.strides[3] == 1;
  const Range rows = block.share(x.shape(0) * length);
  RESIDENT_UNROLL(1)
  for (i64 row = rows.begin; row < rows.end; ++row) {
    const i64 b = row / length;
    const i64 s = row % length;
    const i64 from = b * task.x.strides[0] + s * task.x.strides[1];
    const i64 to = b * task.out.strides[0] + s * task.out.strides[1];
    RESIDENT_UNROLL(1)
    for (i64 first = 0; first < half; first += kFrequencies) {
      const i64 count = Smallest(half - first, kFrequencies);
      const float* const angles = freqs.data() + (offset + s) * half + first;
      block.for_each({0, count}, [&](i64 i) {
        const Rotation rotation = RotationBy(angles[i]);
        cosines[i] = rotation.cosine;
        sines[i] = rotation.sine;
      });
      block.barrier();
      if (!dense) {
        Rotate(block, task, first, count, from, to, cosines, sines);
      } else if (task.interleaved) {
        RotateDense<true>(block, task, first, count, from, to, cosines, sines);
      } else {
        RotateDense<false>(block, task, first, count, from, to, cosines, sines);
      }
      block.barrier();
    }
  }
}

}  // namespace resident
