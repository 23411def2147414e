// The family "attention": embeddings, rotary positions, the cache of keys and values, attention.
#include "kernels/ops/numbers.h"
#include "kernels/sdk/operator.h"

namespace math = resident::math;

using resident::Any;
using resident::Args;
using resident::bit_cast;
using resident::Block;
using resident::CompletionStatus;
using resident::DType;
using resident::ElementAt;
using resident::i32;
using resident::i64;
using resident::Larger;
using resident::LoadFloat;
using resident::Range;
using resident::StoreFloat;
using resident::Tensor;
using resident::u16;
using resident::u32;
using resident::u64;
using resident::u8;

namespace {

RESIDENT_DEVICE i64 AtMost(i64 value, i64 limit) { return value < limit ? value : limit; }

RESIDENT_DEVICE void Refuse(const Block& block, u16 detail) {
  block.fail(CompletionStatus::kInvalidArgument, detail);
}

// A tensor of four dimensions.
struct Operand {
  u64 address;
  i64 strides[4];
  DType dtype;

  RESIDENT_DEVICE void Read(const Tensor<const Any>& tensor) {
    address = reinterpret_cast<u64>(tensor.data());
    dtype = tensor.dtype();
    RESIDENT_UNROLL(1)
    for (i32 d = 0; d < 4; ++d) strides[d] = tensor.stride(d);
  }
};

// Calls f(start(row), column) for each row of the range and each column, distributed over the
// block's threads: adjacent threads have adjacent columns. `start` computes what the elements of a
// row have in common.
template <typename Start, typename F>
RESIDENT_DEVICE void ForEachInRows(const Block& block, Range rows, i64 columns, Start start, F f) {
  if (columns <= 0) return;
  if constexpr (Block::kMaxThreads == 1) {
    for (i64 row = rows.begin; row < rows.end; ++row) {
      const auto common = start(row);
      for (i64 column = 0; column < columns; ++column) f(common, column);
    }
  } else {
    const i64 row_step = block.threads() / columns;
    const i64 column_step = block.threads() % columns;
    i64 row = rows.begin + block.thread() / columns;
    i64 column = block.thread() % columns;
    RESIDENT_UNROLL(1)
    while (row < rows.end) {
      f(start(row), column);
      row += row_step;
      column += column_step;
      if (column >= columns) {
        column -= columns;
        ++row;
      }
    }
  }
}

// --- Copies of rows -----------------------------------------------------------------------------

// Where a row begins in its tensors, in elements.
struct RowCopy {
  i64 from;
  i64 to;
};

// The operands of CopyRows. The columns of a row have these strides.
struct RowOperand {
  u64 address;
  DType dtype;
  i64 stride;
};

// 16 bytes, which a thread copies at once.
struct alignas(16) Quad {
  u32 words[4];
};

// Copies rows of equal types without a conversion. A T has 2^shift elements.
template <typename T, typename Start>
RESIDENT_DEVICE void CopyWords(const Block& block, Range rows, i64 columns, const RowOperand& from,
                               const RowOperand& to, i32 shift, Start start) {
  const T* const in = ElementAt<const T>(from.address, 0);
  T* const out = ElementAt<T>(to.address, 0);
  const i64 in_stride = from.stride;
  const i64 out_stride = to.stride;
  const auto copy = [=](RowCopy at, i64 c) {
    out[(at.to >> shift) + c * out_stride] = in[(at.from >> shift) + c * in_stride];
  };
  ForEachInRows(block, rows, columns >> shift, start, copy);
}

// Copies rows and converts between float32, float16 and bfloat16. `row_bytes`: the bits of all
// distances between rows, in bytes.
template <typename Start>
RESIDENT_DEVICE void CopyRows(const Block& block, Range rows, i64 columns, const RowOperand& from,
                              const RowOperand& to, u64 row_bytes, Start start) {
  if (from.dtype != to.dtype) {
    ForEachInRows(block, rows, columns, start, [&](RowCopy at, i64 c) {
      StoreFloat(to.address, to.dtype, at.to + c * to.stride,
                 LoadFloat(from.address, from.dtype, at.from + c * from.stride));
    });
    return;
  }
  const i64 bytes = SizeOf(from.dtype);
  const u64 unaligned = from.address | to.address | row_bytes | static_cast<u64>(columns * bytes);
  if (from.stride == 1 && to.stride == 1 && unaligned % sizeof(Quad) == 0) {
    CopyWords<Quad>(block, rows, columns, from, to, bytes == 4 ? 2 : 3, start);
  } else if (bytes == 4) {
    CopyWords<u32>(block, rows, columns, from, to, 0, start);
  } else {
    CopyWords<u16>(block, rows, columns, from, to, 0, start);
  }
}

}  // namespace

RESIDENT_OPERATOR(embedding)(Block& block, const Args& args) {
  const auto ids = args.tensor<const Any>(0);
  const auto table = args.tensor<const Any>(1);
  const auto out = args.tensor<const Any>(2);
  const i64 count = ids.size();
  const i64 vocabulary = table.shape(0);
  const i64 columns = table.shape(1);
  const u64 address = reinterpret_cast<u64>(ids.data());
  const bool narrow = ids.dtype() == DType::kI32;
  const auto id = [=](i64 i) {
    return narrow ? i64{*ElementAt<const i32>(address, i)} : *ElementAt<const i64>(address, i);
  };

  // Every chunk that writes checks all ids, so that no chunk writes if one is out of range. With at
  // most one such chunk for each column, all chunks together read no more ids than they write
  // elements.
  const i64 chunks = AtMost(block.chunk_count(), columns > 1 ? columns : 1);
  if (block.chunk() >= chunks) return;
  u32 outside = 0;
  block.for_each({0, count}, [&](i64 i) {
    const i64 value = id(i);
    outside |= value < 0 || value >= vocabulary ? 1 : 0;
  });
  outside = block.reduce(outside, [](u32 a, u32 b) { return a | b; });
  if (outside != 0) {
    Refuse(block, 1);
    return;
  }

  const i64 base = count / chunks;
  const i64 more = count % chunks;
  const i64 begin = block.chunk() * base + AtMost(block.chunk(), more);
  const Range rows = {begin, begin + base + (block.chunk() < more ? 1 : 0)};
  CopyRows(block, rows, columns, {reinterpret_cast<u64>(table.data()), table.dtype(), 1},
           {reinterpret_cast<u64>(out.data()), out.dtype(), 1}, 0, [=](i64 row) {
             return RowCopy{id(row) * columns, row * columns};
           });
}

RESIDENT_OPERATOR(kv_append)(Block& block, const Args& args) {
  const auto from = args.tensor<const Any>(0);
  const auto cache = args.tensor<const Any>(1);
  const i64 pos = args.scalar<i64>(2);
  const i64 length = from.shape(2);
  if (pos < 0 || pos > cache.shape(2) - length) {
    Refuse(block, 1);
    return;
  }
  // The rows of `from`, and the strides of the cache.
  struct Rows {
    const Tensor<const Any>& shape_of;
    const Tensor<const Any>& strides_of;
    RESIDENT_DEVICE u32 rank() const { return 3; }
    RESIDENT_DEVICE i64 shape(u32 d) const { return shape_of.shape(d); }
    RESIDENT_DEVICE i64 stride(u32 d) const { return strides_of.stride(d); }
  };
  auto& map = *block.memory<resident::IndexMap<2>>();
  if (block.thread() == 0) {
    map.Start(Rows{from, from});
    map.Add(0, Rows{from, from});
    map.Add(1, Rows{from, cache});
    map.Finish();
  }
  block.barrier();
  const i64 bytes = SizeOf(from.dtype());
  u64 distances = static_cast<u64>(pos * cache.stride(2));
  RESIDENT_UNROLL(1)
  for (u32 d = 0; d < 3; ++d) distances |= static_cast<u64>(from.stride(d) | cache.stride(d));
  const i64 first = pos * cache.stride(2);
  CopyRows(block, block.share(map.size()), from.shape(3),
           {reinterpret_cast<u64>(from.data()), from.dtype(), from.stride(3)},
           {reinterpret_cast<u64>(cache.data()), cache.dtype(), cache.stride(3)},
           distances * static_cast<u64>(bytes), [&](i64 row) {
             i64 offsets[2];
             map.Offsets(row, offsets);
             return RowCopy{offsets[0], first + offsets[1]};
           });
}

// --- Rotary positions ---------------------------------------------------------------------------

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

struct Rotation {
  float cosine;
  float sine;
};
RESIDENT_NOINLINE Rotation RotationBy(float angle) { return {math::cos(angle), math::sin(angle)}; }

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

}  // namespace

RESIDENT_OPERATOR(rope_freqs)(Block& block, const Args& args) {
  const auto out = args.tensor<float>(0);
  const i64 half = out.shape(1);
  const double plain_base = args.scalar<float>(1);
  const double alpha = args.scalar<float>(2);
  if (half == 1) {
    Refuse(block, 1);
    return;
  }
  if (out.size() == 0) return;
  const double dim = 2.0 * static_cast<double>(half);
  const double base = plain_base * Power(alpha, dim / (dim - 2.0));
  // Also if one is NaN. base - base is not 0 if it is infinite or NaN.
  if (!(plain_base > 0.0) || !(alpha > 0.0) || !(base > 0.0) || base - base != 0.0) {
    Refuse(block, 2);
    return;
  }
  double* const frequencies = block.memory<double>(0, kFrequencies);
  float* const angles = out.data();
  const Range positions = block.share(out.shape(0));
  for (i64 first = 0; first < half; first += kFrequencies) {
    const i64 count = AtMost(half - first, kFrequencies);
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
    Refuse(block, 1);
    return;
  }
  if (offset < 0 || offset > freqs.shape(0) - length) {
    Refuse(block, 2);
    return;
  }
  if (layout != 0 && layout != 1) {
    Refuse(block, 3);
    return;
  }
  if (x.size() == 0) return;

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
      const i64 count = AtMost(half - first, kFrequencies);
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
