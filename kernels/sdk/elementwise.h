// elementwise: out[i] = f(in[0][i], in[1][i] ...) for general tensors: f32, f16 and bf16 may be
// mixed, tensors may be strided, and inputs broadcast to the output.
//
//   // "x: in strided f32|f16|bf16[*S~], y: in strided f32|f16|bf16[*S~],
//   //  out: out strided f32|f16|bf16[*S], a: scalar f32", split "out 32768"
//   RESIDENT_OPERATOR(axpy)(resident::Block& block, const resident::Args& args) {
//     const float a = args.scalar<float>(3);
//     resident::elementwise<2>(block, args, [=](const float* v) { return a * v[0] + v[1]; });
//   }
//
// Arguments 0 to kInputs - 1 are the inputs, argument kInputs is the output. f computes in
// float. Dense tensors are read 16 bytes at a time. It uses the beginning of the block's memory,
// and writes the chunk's share of the output.
//
// Every thread of the block must call it (collective). It reads and writes through data(),
// which the checked build does not check.
#ifndef RESIDENT_KERNELS_SDK_ELEMENTWISE_H_
#define RESIDENT_KERNELS_SDK_ELEMENTWISE_H_

#include "kernels/sdk/block.h"
#include "kernels/sdk/element.h"
#include "kernels/sdk/half.h"
#include "kernels/sdk/index_map.h"
#include "kernels/sdk/map.h"

namespace resident {
RESIDENT_SDK_BEGIN

// The operands of a task: inputs, then the output.
template <i32 kOperands>
struct ElementwiseOperands {
  IndexMap<kOperands> map;
  u64 addresses[kOperands];
  DType dtypes[kOperands];
  bool float32;  // Whether all operands are float32.

  RESIDENT_DEVICE void Read(const Args& args) {
    map.Start(args.tensor<const Any>(kOperands - 1));
    float32 = true;
    RESIDENT_UNROLL(1)
    for (i32 k = 0; k < kOperands; ++k) {
      const Tensor<const Any> operand = args.tensor<const Any>(k);
      map.Add(k, operand);
      addresses[k] = reinterpret_cast<u64>(operand.data());
      dtypes[k] = operand.dtype();
      float32 = float32 && operand.dtype() == DType::kF32;
    }
    map.Finish();
  }
};

// Whether the first kTensors arguments are dense tensors of one shape; sets their addresses and
// dtypes, and their size. A small task takes as long as the instructions in front of its first
// load: these are few, and the same in all threads. REQUIRES: the task is not in compact form.
template <i32 kTensors>
RESIDENT_DEVICE bool HaveOneDenseShape(const Args& args, u64 (&addresses)[kTensors],
                                       DType (&dtypes)[kTensors], i64& size) {
  const u32 rank = args.described(kTensors - 1).rank;
  bool same = true;
  for (i32 k = 0; k < kTensors; ++k) {
    const TensorArgument& tensor = args.described(static_cast<u32>(k));
    addresses[k] = tensor.address;
    dtypes[k] = tensor.dtype;
    same = same & (tensor.rank == rank);
  }
  size = 1;
  if (!same) return false;
  RESIDENT_UNROLL(1)
  for (u32 d = rank; d-- > 0;) {
    const i64 extent = args.described(kTensors - 1).shape[d];
    for (i32 k = 0; k < kTensors; ++k) {
      const TensorArgument& tensor = args.described(static_cast<u32>(k));
      same = same & (tensor.shape[d] == extent) & ((tensor.strides[d] == size) | (extent == 1));
    }
    size *= extent;
  }
  return same;
}

template <typename T>
RESIDENT_DEVICE T* ElementAt(u64 address, i64 offset) {
  T* const data = reinterpret_cast<T*>(address);
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(data));
#endif
  return data + offset;
}

RESIDENT_DEVICE float LoadFloat(u64 address, DType dtype, i64 offset) {
  switch (dtype) {
    case DType::kF16:
      return *ElementAt<const Half>(address, offset);
    case DType::kBF16:
      return *ElementAt<const BFloat16>(address, offset);
    default:
      return *ElementAt<const float>(address, offset);
  }
}

RESIDENT_DEVICE void StoreFloat(u64 address, DType dtype, i64 offset, float value) {
  switch (dtype) {
    case DType::kF16:
      *ElementAt<Half>(address, offset) = Half(value);
      break;
    case DType::kBF16:
      *ElementAt<BFloat16>(address, offset) = BFloat16(value);
      break;
    default:
      *ElementAt<float>(address, offset) = value;
  }
}

#if RESIDENT_GPU

// With up to this many inputs, four elements of each fit in a thread's registers.
inline constexpr i32 kMaxInputsInRegisters = 4;

// For more inputs: maps one element at a time, and keeps the operands' data in memory.
template <i32 kInputs, typename F>
RESIDENT_DEVICE void MapManyInputs(Block& block, const Args& args, F& f) {
  constexpr i32 kOperands = kInputs + 1;
  using Operands = ElementwiseOperands<kOperands>;
  static_assert(sizeof(Operands) <= kBlockMemoryBytes, "");
  Operands& operands = *block.memory<Operands>();
  if (block.thread() == 0) operands.Read(args);
  block.barrier();
  const Range range = block.share(operands.map.size());
  RESIDENT_UNROLL(1)
  for (i64 i = range.begin + block.thread(); i < range.end; i += block.threads()) {
    i64 offsets[kOperands];
    operands.map.Offsets(i, offsets);
    float v[kOperands];
    RESIDENT_UNROLL(1)
    for (i32 k = 0; k < kInputs; ++k) {
      v[k] = LoadFloat(operands.addresses[k], operands.dtypes[k], offsets[k]);
    }
    StoreFloat(operands.addresses[kInputs], operands.dtypes[kInputs], offsets[kInputs], f(v));
  }
}

// Loads four adjacent elements in one access. REQUIRES: aligned to four elements.
RESIDENT_DEVICE void LoadQuad(u64 address, DType dtype, i64 offset, float (&v)[4]) {
  if (dtype == DType::kF32) {
    const float4 q = *reinterpret_cast<const float4*>(ElementAt<const float>(address, offset));
    v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
    return;
  }
  const ushort4 q = *reinterpret_cast<const ushort4*>(ElementAt<const u16>(address, offset));
  if (dtype == DType::kF16) {
    v[0] = Half::Widen(q.x), v[1] = Half::Widen(q.y);
    v[2] = Half::Widen(q.z), v[3] = Half::Widen(q.w);
  } else {
    v[0] = BFloat16::Widen(q.x), v[1] = BFloat16::Widen(q.y);
    v[2] = BFloat16::Widen(q.z), v[3] = BFloat16::Widen(q.w);
  }
}

RESIDENT_DEVICE void StoreQuad(u64 address, DType dtype, i64 offset, const float (&v)[4]) {
  if (dtype == DType::kF32) {
    *reinterpret_cast<float4*>(ElementAt<float>(address, offset)) =
        make_float4(v[0], v[1], v[2], v[3]);
    return;
  }
  const ushort4 q = dtype == DType::kF16
                        ? make_ushort4(Half::Narrow(v[0]), Half::Narrow(v[1]), Half::Narrow(v[2]),
                                       Half::Narrow(v[3]))
                        : make_ushort4(BFloat16::Narrow(v[0]), BFloat16::Narrow(v[1]),
                                       BFloat16::Narrow(v[2]), BFloat16::Narrow(v[3]));
  *reinterpret_cast<ushort4*>(ElementAt<u16>(address, offset)) = q;
}

// Whether four adjacent elements of each operand can be accessed at once.
template <i32 kOperands>
RESIDENT_DEVICE bool QuadsAreAligned(const u64 (&addresses)[kOperands],
                                     const DType (&dtypes)[kOperands]) {
  u64 misaligned = 0;
#pragma unroll
  for (i32 k = 0; k < kOperands; ++k) {
    misaligned |= addresses[k] & (dtypes[k] == DType::kF32 ? 15 : 7);
  }
  return misaligned == 0;
}

// Maps dense operands four elements at a time; returns where the rest of the range begins.
// REQUIRES: QuadsAreAligned.
template <i32 kOperands, typename F>
RESIDENT_DEVICE i64 MapQuads(const Block& block, Range range, const u64 (&addresses)[kOperands],
                             const DType (&dtypes)[kOperands], F& f) {
  constexpr i32 kInputs = kOperands - 1;
  const i64 end = range.begin + range.size() / 4 * 4;
  RESIDENT_UNROLL(1)
  for (i64 i = range.begin + i64{4} * block.thread(); i < end; i += i64{4} * block.threads()) {
    float loaded[kOperands][4];
#pragma unroll
    for (i32 k = 0; k < kInputs; ++k) LoadQuad(addresses[k], dtypes[k], i, loaded[k]);
    float result[4];
#pragma unroll
    for (i32 e = 0; e < 4; ++e) {
      float v[kOperands];
#pragma unroll
      for (i32 k = 0; k < kInputs; ++k) v[k] = loaded[k][e];
      result[e] = f(v);
    }
    StoreQuad(addresses[kInputs], dtypes[kInputs], i, result);
  }
  return end;
}

#endif

// Whether arguments may be read without Args::tensor. The checked build must see each access.
#if RESIDENT_CHECKED
inline constexpr bool kReadsDirectly = false;
#else
inline constexpr bool kReadsDirectly = true;
#endif

template <i32 kInputs, i32 kInFlight, typename F>
RESIDENT_DEVICE void MapFewInputs(Block& block, const Args& args, F& f) {
  constexpr i32 kOperands = kInputs + 1;
  using Operands = ElementwiseOperands<kOperands>;
  static_assert(sizeof(Operands) <= kBlockMemoryBytes, "");

  Operands* const operands = block.memory<Operands>();
  u64 addresses[kOperands];
  DType dtypes[kOperands];
  const bool compact = kOperands <= i32{kCompactArguments} && args.compact();
  bool dense = true;
  bool float32 = true;
  i64 size = 0;
  if (compact) {
    for (i32 k = 0; k < kOperands; ++k) {
      const Tensor<float> operand = args.tensor<float>(k);
      addresses[k] = reinterpret_cast<u64>(operand.data());
      dtypes[k] = DType::kF32;
      size = operand.size();
    }
  } else if (kReadsDirectly && HaveOneDenseShape(args, addresses, dtypes, size)) {
    for (i32 k = 0; k < kOperands; ++k) float32 = float32 && dtypes[k] == DType::kF32;
  } else {
    if (block.thread() == 0) operands->Read(args);
    block.barrier();
    for (i32 k = 0; k < kOperands; ++k) {
      addresses[k] = operands->addresses[k];
      dtypes[k] = operands->dtypes[k];
    }
    dense = operands->map.dense();
    float32 = operands->float32;
    size = operands->map.size();
  }

  Range range = block.share(size, kMapStep);
#if RESIDENT_GPU
  if (dense && QuadsAreAligned(addresses, dtypes)) {
    if constexpr (kInFlight > 1) {
      if (float32) {
        const float* in[kOperands];
        for (i32 k = 0; k < kOperands; ++k) in[k] = ElementAt<const float>(addresses[k], 0);
        float* const out = ElementAt<float>(addresses[kInputs], 0);
        const i64 mine = PositionInTile<kInFlight>(block);
        const i64 tile = TileSize<kInFlight>(block);
        RESIDENT_UNROLL(1)
        for (; range.begin + tile <= range.end; range.begin += tile) {
          MapTile<kInFlight, kInputs>(out, in, range.begin + mine, f);
        }
      }
    }
    range.begin = MapQuads(block, range, addresses, dtypes, f);
  }
#else
  if (dense && float32) {
    // A separate loop, which compilers vectorize.
    const float* in[kOperands];
    for (i32 k = 0; k < kOperands; ++k) in[k] = ElementAt<const float>(addresses[k], 0);
    float* const out = ElementAt<float>(addresses[kInputs], 0);
    block.for_each(range, [&](i64 i) {
      float v[kOperands];
      for (i32 k = 0; k < kInputs; ++k) v[k] = in[k][i];
      out[i] = f(v);
    });
    return;
  }
#endif
  RESIDENT_UNROLL(1)
  for (i64 i = range.begin + block.thread(); i < range.end; i += block.threads()) {
    i64 offsets[kOperands];
    if (dense) {
      for (i32 k = 0; k < kOperands; ++k) offsets[k] = i;
    } else {
      operands->map.Offsets(i, offsets);
    }
    float v[kOperands];
    for (i32 k = 0; k < kInputs; ++k) v[k] = LoadFloat(addresses[k], dtypes[k], offsets[k]);
    StoreFloat(addresses[kInputs], dtypes[kInputs], offsets[kInputs], f(v));
  }
}

// `kInFlight`: number of 16-byte loads of each input that a GPU's thread has in flight if all
// operands are dense float32. Cheap functions need more. f is inlined 4 * kInFlight + 5 times, or
// 5 times if kInFlight is 1, so use 1 for a large f.
template <i32 kInputs, i32 kInFlight = 4, typename F>
RESIDENT_DEVICE void elementwise(Block& block, const Args& args, F f) {
#if RESIDENT_GPU
  if constexpr (kInputs > kMaxInputsInRegisters) {
    MapManyInputs<kInputs>(block, args, f);
  } else {
    MapFewInputs<kInputs, kInFlight>(block, args, f);
  }
#else
  MapFewInputs<kInputs, kInFlight>(block, args, f);
#endif
}

RESIDENT_SDK_END
}  // namespace resident

#endif  // RESIDENT_KERNELS_SDK_ELEMENTWISE_H_
