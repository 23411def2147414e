#include "runtime/model/strided_view.h"

#include <algorithm>
#include <cassert>

#include "absl/container/inlined_vector.h"

namespace resident {
namespace {

struct Dim {
  __int128 stride;  // In bytes, positive.
  int64_t size;     // Above 1.
};

// A tensor as the bytes that it starts with and the dimensions over which they repeat, the largest
// stride first.
struct View {
  __int128 begin = 0;
  int64_t element = 0;
  absl::InlinedVector<Dim, kMaxRank> dims;

  __int128 bytes() const {
    __int128 total = element;
    for (const Dim& dim : dims) total += dim.stride * (dim.size - 1);
    return total;
  }
};

View MakeView(const TensorArgument& tensor) {
  View view;
  view.begin = tensor.address;
  view.element = SizeOf(tensor.dtype);
  for (uint32_t d = 0; d < tensor.rank; ++d) {
    if (tensor.shape[d] <= 1 || tensor.strides[d] == 0) continue;
    __int128 stride = __int128{tensor.strides[d]} * view.element;
    if (stride < 0) {
      view.begin += stride * (tensor.shape[d] - 1);
      stride = -stride;
    }
    view.dims.push_back({stride, tensor.shape[d]});
  }
  std::sort(view.dims.begin(), view.dims.end(),
            [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
  assert(view.begin >= 0 && view.begin + view.bytes() <= __int128{1} << 64);
  return view;
}

View WithoutStride(const View& view, __int128 stride) {
  View rest = view;
  const auto found = std::find_if(rest.dims.begin(), rest.dims.end(),
                                  [&](const Dim& dim) { return dim.stride == stride; });
  if (found != rest.dims.end()) rest.dims.erase(found);
  return rest;
}

bool ViewsMayOverlap(const View& a, const View& b) {
  if (a.begin + a.bytes() <= b.begin || b.begin + b.bytes() <= a.begin) return false;
  // The largest stride of both is a period: elements of a and b can only share bytes in the same
  // one, if what remains of a and b without this stride lies within one period.
  __int128 period = 0;
  if (!a.dims.empty()) period = a.dims[0].stride;
  if (!b.dims.empty()) period = std::max(period, b.dims[0].stride);
  if (period == 0) return true;
  View rest_a = WithoutStride(a, period);
  View rest_b = WithoutStride(b, period);
  // A period may begin where a begins, or where b begins.
  for (int order = 0; order < 2; ++order, std::swap(rest_a, rest_b)) {
    __int128 distance = (rest_b.begin - rest_a.begin) % period;
    if (distance < 0) distance += period;
    if (rest_a.bytes() > period || distance + rest_b.bytes() > period) continue;
    rest_b.begin = rest_a.begin + distance;
    return ViewsMayOverlap(rest_a, rest_b);
  }
  return true;
}

}  // namespace

bool IsDense(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides) {
  int64_t expected = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

bool IsInjective(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides) {
  absl::InlinedVector<size_t, kMaxRank> order;
  for (size_t d = 0; d < shape.size(); ++d) {
    assert(strides[d] >= 0);
    if (shape[d] > 1) order.push_back(d);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  __int128 reach = 0;
  for (const size_t d : order) {
    if (strides[d] <= reach) return false;
    reach += __int128{shape[d] - 1} * strides[d];
  }
  return true;
}

ByteExtent FindExtent(DType dtype, absl::Span<const int64_t> shape,
                      absl::Span<const int64_t> strides) {
  // At most 8 products of 2^60, 2^60 and 8: they fit 128 bits.
  __int128 before = 0;
  __int128 from = SizeOf(dtype);
  for (size_t d = 0; d < shape.size(); ++d) {
    assert(shape[d] > 0 && shape[d] <= int64_t{1} << 60);
    assert(strides[d] >= -(int64_t{1} << 60) && strides[d] <= int64_t{1} << 60);
    const __int128 reach =
        __int128{shape[d] - 1} * strides[d] * static_cast<int64_t>(SizeOf(dtype));
    (reach < 0 ? before : from) += reach < 0 ? -reach : reach;
  }
  return {static_cast<uint64_t>(std::min<__int128>(before, kMaxExtent)),
          static_cast<uint64_t>(std::min<__int128>(from, kMaxExtent))};
}

bool MayOverlap(const TensorArgument& a, const TensorArgument& b) {
  return ViewsMayOverlap(MakeView(a), MakeView(b));
}

}  // namespace resident
