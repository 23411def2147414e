#include "runtime/device/arguments_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace resident {
namespace {

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kF64:
      return "f64";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
    case DType::kI8:
      return "i8";
    case DType::kU32:
      return "u32";
    case DType::kInvalid:
      break;
  }
  return nullptr;
}

std::string Text(const Argument& argument) {
  const TensorArgument& tensor = argument.tensor;
  // An argument with a scalar has zeros in all other fields.
  const char* const dtype = Name(tensor.dtype);
  if (dtype == nullptr) return absl::StrCat("0x", absl::Hex(argument.scalar_bits));
  std::string text = absl::StrCat(dtype, "[");
  for (uint32_t i = 0; i < std::min<uint32_t>(tensor.rank, kMaxRank); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", tensor.shape[i]);
  }
  return absl::StrCat(text, "] at 0x", absl::Hex(tensor.address));
}

}  // namespace

std::string ArgumentsText(const RunningTask& task) {
  std::string text;
  if (task.task.flags & kTaskCompact) {
    text = absl::StrCat("n=", task.task.elements());
    for (uint32_t i = 1; i < kTaskWords; ++i) {
      absl::StrAppend(&text, ", 0x", absl::Hex(task.task.compact_argument(i - 1)));
    }
    return text;
  }
  for (const Argument& argument : task.arguments) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", Text(argument));
  }
  return text;
}

}  // namespace resident
