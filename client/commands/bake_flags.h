// The flags of changes that operators and models have in common: percentages, and the bake of a
// version that begins to serve.
//
// Thread safety: plain values.
#ifndef RESIDENT_CLIENT_COMMANDS_BAKE_FLAGS_H_
#define RESIDENT_CLIENT_COMMANDS_BAKE_FLAGS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "resident/v1/operators.pb.h"
#include "runtime/base/command_line.h"
#include "runtime/base/share.h"

namespace resident::cli {

// A percentage such as "5%", "5" or "0.5%".
struct PercentFlag {
  double percent = 0;
};
bool AbslParseFlag(absl::string_view text, PercentFlag* flag, std::string* error);
std::string AbslUnparseFlag(const PercentFlag& flag);

struct BakeFlags {
  absl::Duration bake = absl::ZeroDuration();
  std::string on_regression;
  Share max_error_rate;
  double max_latency_ratio = 0;
  Share max_mismatch_rate;
  uint64_t min_tasks = 0;
};
// `shadows`: whether outputs are compared, so that there is --max_mismatch_rate.
void AddBakeFlags(Command& command, bool shadows, BakeFlags& flags);
v1::BakeOptions ToMessage(const BakeFlags& flags);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_BAKE_FLAGS_H_
