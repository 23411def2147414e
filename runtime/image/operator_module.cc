#include "runtime/image/operator_module.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/image/link.h"

namespace resident {
namespace {

// The version and target of the oldest GPU that has an image (cuda_image.bzl).
constexpr char kPtxHeader[] = ".version 9.0\n.target sm_80\n.address_size 64\n";

bool IsPtx(const std::string& unit) {
  return !absl::StartsWith(unit,
                           "\x7f"
                           "ELF");
}

}  // namespace

absl::StatusOr<std::string> LinkOperatorModule(const std::vector<std::string>& symbols,
                                               const std::string& unit, int architecture) {
  std::string entries = kPtxHeader;
  // The linker keeps what a kernel reaches. If a function is reached through a variable only, the
  // linker drops the functions that it calls, and leaves calls of address 0. Therefore there is a
  // kernel, which is never launched.
  std::string kernel = absl::StrCat(".visible .entry resident_reaches(.param .b64 x) {\n",
                                    "  .reg .b64 %x;\n  ld.param.b64 %x, [x];\n");
  for (const std::string& symbol : symbols) {
    absl::StrAppend(&entries, ".extern .func ", symbol,
                    "(.param .b64 state) .abi_preserve 2;\n.visible .global .align 8 .u64 ", symbol,
                    kEntrySuffix, " = ", symbol, ";\n");
    absl::StrAppend(&kernel, "  { .param .b64 state; st.param.b64 [state], %x;\n", "  call ",
                    symbol, ", (state); }\n");
  }
  absl::StrAppend(&entries, kernel, "  ret;\n}\n");
  return LinkImage({{"unit", unit, IsPtx(unit)}, {"entries", entries, /*is_ptx=*/true}},
                   architecture);
}

}  // namespace resident
