// The frame of PTX that tests of the rewriter and of the verifier share.
#ifndef RESIDENT_RUNTIME_COMPILE_PTX_PTX_FRAME_FOR_TEST_H_
#define RESIDENT_RUNTIME_COMPILE_PTX_PTX_FRAME_FOR_TEST_H_

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/compile/ptx/ptx_rewriter.h"
#include "runtime/compile/ptx/ptx_verifier.h"

namespace resident {

// A unit with one entry. `before`: other functions and variables.
inline std::string FramePtx(const std::string& body, const std::string& before = "") {
  return absl::StrCat(".version 9.0\n.target sm_90\n.address_size 64\n", before,
                      ".visible .func resident_op_1(.param .b64 state) .abi_preserve 2\n{\n"
                      ".reg .pred %p<4>;\n.reg .b16 %rs<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<4>;\n",
                      body, "\nret;\n}\n");
}

// The unit rewritten. Expects that the verifier accepts it.
inline RewrittenPtx RewriteAccepted(const std::string& unit) {
  auto rewritten = RewritePtx(unit, 90);
  EXPECT_TRUE(rewritten.ok()) << rewritten.status() << "\n" << unit;
  if (!rewritten.ok()) return {};
  const absl::Status verified = VerifyPtx(rewritten->text, 90);
  EXPECT_TRUE(verified.ok()) << verified << "\n" << rewritten->text;
  return *std::move(rewritten);
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_PTX_PTX_FRAME_FOR_TEST_H_
