// SplitRule: how a wide task is split into chunks, "parameter[/1] grain [limit][, parameter
// grain]".
//
// A task has one chunk for every `grain` elements of that parameter, or with "/1" for
// every `grain` indices of its first dimension, and at most `limit` chunks, which are then larger.
// Behind a comma is another parameter, and the number of its elements for a chunk: the rule that
// makes more chunks decides. "" never splits.
//
// Thread safety: a plain value.
//
//   ASSIGN_OR_RETURN(SplitRule rule, ParseSplit("out 32768", signature));
//   rule.Chunks([&](int parameter) -> absl::Span<const int64_t> { return shapes[parameter]; });
#ifndef RESIDENT_RUNTIME_MODEL_SPLIT_RULE_H_
#define RESIDENT_RUNTIME_MODEL_SPLIT_RULE_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/model/signature.h"

namespace resident {

struct SplitRule {
  // Index of the parameter that determines the number of chunks; -1: never split.
  int parameter = -1;
  // Whether indices of the first dimension are counted instead of elements.
  bool by_first_dim = false;
  uint64_t grain = 0;
  // 1 to kMaxTaskChunks (kernels/layout/task.h).
  uint64_t limit = kMaxTaskChunks;
  // Another parameter, if its grain is not 0.
  int other_parameter = -1;
  uint32_t other_grain = 0;

  using ShapeOf = absl::FunctionRef<absl::Span<const int64_t>(int parameter)>;

  // Number of chunks of a task whose arguments have these shapes: 1 to `limit`. If there is a
  // limit, the chunks of a large task are equal, and more of them than kChunksOfWorker
  // (kernels/graph/chunk_rule.h) for each of the device's `workers` but one, which on a GPU finds
  // tasks, only cost time: then there are not more. 0: unknown.
  uint64_t Chunks(ShapeOf shape_of, uint64_t workers = 0) const;
  // The same if `parameter` alone decides.
  uint64_t Chunks(absl::Span<const int64_t> shape, uint64_t workers = 0) const;
};

// INVALID_ARGUMENT: the text is malformed, or does not match the signature.
absl::StatusOr<SplitRule> ParseSplit(const std::string& text, const Signature& signature);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_SPLIT_RULE_H_
