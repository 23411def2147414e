// gather: elements at computed indices along one dimension.
#include "kernels/ops/numbers.h"
#include "kernels/sdk/operator.h"

namespace resident {
namespace {

// Details of INVALID_ARGUMENT.
constexpr u16 kOutside = 1;
constexpr u16 kTwoTypes = 2;
constexpr u16 kBadShape = 3;

// x without its axis, in the shape of the output.
struct WithoutAxis {
  const Tensor<const Any>& x;
  const Tensor<const Any>& out;
  u32 axis;

  RESIDENT_DEVICE u32 rank() const { return out.rank(); }
  RESIDENT_DEVICE i64 shape(u32 d) const { return out.shape(d); }
  RESIDENT_DEVICE i64 stride(u32 d) const { return d == axis ? 0 : x.stride(d); }
};

// Copies the elements of this chunk. T: any type with the size of an element.
template <typename T>
RESIDENT_NOINLINE void Gather(Block block, Args args, u32 axis) {
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> indices = args.tensor<const Any>(1);
  const Tensor<const Any> out = args.tensor<const Any>(2);
  auto& map = *block.memory<IndexMap<3>>();
  if (block.thread() == 0) {
    map.Start(out);
    map.Add(0, WithoutAxis{x, out, axis});
    map.Add(1, indices);
    map.Add(2, out);
    map.Finish();
  }
  block.barrier();
  const bool narrow = indices.dtype() == DType::kI32;
  const i64 limit = x.shape(axis);
  const i64 stride = x.stride(axis);
  u32 outside = 0;
  block.for_each(block.share(out.size(), kMapStep), [&](i64 i) {
    i64 offsets[3];
    map.Offsets(i, offsets);
    i64 index = narrow ? i64{*ElementAt<const i32>(AddressOf(indices), offsets[1])}
                       : *ElementAt<const i64>(AddressOf(indices), offsets[1]);
    if (index < 0) index += limit;
    if (index < 0 || index >= limit) {
      outside = 1;
      return;
    }
    *ElementAt<T>(AddressOf(out), offsets[2]) =
        *ElementAt<const T>(AddressOf(x), offsets[0] + index * stride);
  });
  if (outside != 0) block.fail(CompletionStatus::kInvalidArgument, kOutside);
}

}  // namespace

RESIDENT_OPERATOR(gather)(Block& block, const Args& args) {
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> out = args.tensor<const Any>(2);
  const i32 given = args.scalar<i32>(3);
  const u32 axis = static_cast<u32>(given);
  bool fits = given >= 0 && axis < out.rank() && x.rank() == out.rank();
  RESIDENT_UNROLL(1)
  for (u32 d = 0; fits && d < out.rank(); ++d) {
    fits = d == axis || x.shape(d) == out.shape(d);
  }
  if (!fits || x.dtype() != out.dtype()) {
    block.fail(CompletionStatus::kInvalidArgument, fits ? kTwoTypes : kBadShape);
    return;
  }
  switch (SizeOf(x.dtype())) {
    case 1:
      return Gather<u8>(block, args, axis);
    case 2:
      return Gather<u16>(block, args, axis);
    case 4:
      return Gather<u32>(block, args, axis);
    default:
      return Gather<u64>(block, args, axis);
  }
}

}  // namespace resident
