// Operand: a tensor in a test, of any dtype and layout, with access to its elements.
//
// Everything outside of its elements, and every element of an output before the run, is
// filled with poison: a pattern that no operator generates.
//
// Thread safety: an object belongs to one thread.
#ifndef RESIDENT_TESTS_EXPRESSION_OPERAND_H_
#define RESIDENT_TESTS_EXPRESSION_OPERAND_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/layout/task.h"
#include "kernels/sdk/half.h"

namespace resident::testing {

enum class Layout {
  kDense,
  kShifted,     // Dense, but only aligned to an element.
  kTransposed,  // The last dimension has the largest stride.
  kApart,       // With gaps between its elements.
  kReversed,    // Negative strides; only for inputs.
};

// `value` rounded to the type.
inline double Rounded(DType dtype, double value) {
  const float narrow = static_cast<float>(value);
  if (dtype == DType::kF16) return Half::Widen(Half::Narrow(narrow));
  if (dtype == DType::kBF16) return BFloat16::Widen(BFloat16::Narrow(narrow));
  return narrow;
}

class Operand {
 public:
  Operand(DType dtype, std::vector<int64_t> shape, Layout layout)
      : dtype_(dtype), shape_(std::move(shape)), strides_(shape_.size()) {
    int64_t reach = layout == Layout::kApart ? 3 : 1;
    const auto walk = [&](size_t d) {
      strides_[d] = reach;
      reach *= shape_[d];
    };
    if (layout == Layout::kTransposed) {
      for (size_t d = 0; d < shape_.size(); ++d) walk(d);
    } else {
      for (size_t d = shape_.size(); d-- > 0;) walk(d);
    }
    const int64_t shift = layout == Layout::kShifted ? 1 : 0;
    first_ = kPadding + shift;
    if (layout == Layout::kReversed) {
      for (size_t d = 0; d < shape_.size(); ++d) {
        first_ += (shape_[d] > 0 ? shape_[d] - 1 : 0) * strides_[d];
        strides_[d] = -strides_[d];
      }
    }
    for (const int64_t dim : shape_) size_ *= dim;
    slots_ = reach + 2 * kPadding + shift;
    storage_.resize((slots_ * SizeOf(dtype) + sizeof(Line) - 1) / sizeof(Line));
    Poison();
  }

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::vector<int64_t>& strides() const { return strides_; }
  int64_t size() const { return size_; }
  unsigned char* data() { return Slot(first_); }
  // All of its memory, including poison, and the offset of the first element in it.
  unsigned char* storage() { return Slot(0); }
  size_t storage_bytes() const { return slots_ * SizeOf(dtype_); }
  uint64_t first_byte() const { return static_cast<uint64_t>(first_) * SizeOf(dtype_); }

  void Poison() {
    for (int64_t s = 0; s < slots_; ++s) std::memcpy(Slot(s), PoisonBits(), SizeOf(dtype_));
  }

  // Element i in row-major order of the shape `of`, to which the operand broadcasts.
  double At(int64_t i, const std::vector<int64_t>& of) { return Read(Slot(Offset(i, of))); }
  double At(int64_t i) { return At(i, shape_); }
  void Set(int64_t i, double value) { Write(Slot(Offset(i, shape_)), value); }
  bool Poisoned(int64_t i) {
    return std::memcmp(Slot(Offset(i, shape_)), PoisonBits(), SizeOf(dtype_)) == 0;
  }
  // Number of slots that are not poison.
  int64_t Written() {
    int64_t written = 0;
    for (int64_t s = 0; s < slots_; ++s) {
      written += std::memcmp(Slot(s), PoisonBits(), SizeOf(dtype_)) != 0 ? 1 : 0;
    }
    return written;
  }

 private:
  static constexpr int64_t kPadding = 16;
  struct alignas(64) Line {
    unsigned char bytes[64];
  };

  const void* PoisonBits() const {
    static constexpr uint32_t kWide = 0x7f8badad;
    static constexpr uint16_t kHalf = 0x7cad;  // All are NaNs.
    static constexpr uint16_t kBFloat = 0x7f8d;
    if (dtype_ == DType::kF16) return &kHalf;
    if (dtype_ == DType::kBF16) return &kBFloat;
    return &kWide;
  }
  unsigned char* Slot(int64_t s) { return storage_.data()->bytes + s * SizeOf(dtype_); }
  int64_t Offset(int64_t i, const std::vector<int64_t>& of) const {
    int64_t offset = first_;
    const size_t missing = of.size() - shape_.size();
    for (size_t d = of.size(); d-- > missing;) {
      if (shape_[d - missing] != 1) offset += i % of[d] * strides_[d - missing];
      i /= of[d];
    }
    return offset;
  }
  double Read(const unsigned char* slot) const {
    u16 narrow;
    std::memcpy(&narrow, slot, 2);
    if (dtype_ == DType::kF16) return Half::Widen(narrow);
    if (dtype_ == DType::kBF16) return BFloat16::Widen(narrow);
    float value;
    std::memcpy(&value, slot, 4);
    return value;
  }
  void Write(unsigned char* slot, double value) const {
    const float wide = static_cast<float>(value);
    const u16 narrow = dtype_ == DType::kF16 ? Half::Narrow(wide) : BFloat16::Narrow(wide);
    std::memcpy(slot, dtype_ == DType::kF32 ? static_cast<const void*>(&wide) : &narrow,
                SizeOf(dtype_));
  }

  DType dtype_;
  std::vector<int64_t> shape_;
  std::vector<int64_t> strides_;
  int64_t size_ = 1;
  int64_t first_ = 0;
  int64_t slots_ = 0;
  std::vector<Line> storage_;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_EXPRESSION_OPERAND_H_
