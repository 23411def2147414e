// flux check: runs test vectors in a daemon (for their format see runtime/flux/vectors.h).
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/cli/output.h"
#include "client/cli/progress.h"
#include "client/commands/command.h"
#include "runtime/base/status_macros.h"
#include "runtime/flux/vectors.h"

namespace resident::cli {
namespace {

// One batch stays well below the server's limits on tasks and message size.
constexpr size_t kMaxBatchVectors = 16384;
constexpr size_t kMaxBatchBytes = 16u << 20;

// Vectors with equal cycle limit and equal handling of unknown opcodes can share a batch.
using GroupKey = std::pair<uint64_t, bool>;
using Group = std::vector<const flux::Vector*>;

struct Failure {
  const flux::Vector* vector;
  std::string difference;
};

// Runs `group[first, last)` as one batch and appends the differences.
absl::Status CheckBatch(client::Client& client, const GroupKey& key,
                        std::span<const flux::Vector* const> group, std::optional<uint32_t> device,
                        std::vector<Failure>& failures) {
  client::FluxBatch batch;
  std::vector<int32_t> initial;
  for (const flux::Vector* vector : group) {
    batch.Program(vector->bytecode);
    initial.insert(initial.end(), vector->options.initial.begin(), vector->options.initial.end());
  }
  batch.Runs(static_cast<uint32_t>(group.size())).Inputs(initial, 16).MaxCycles(key.first);
  if (key.second) batch.UnknownOpcodeIsNop();
  batch.Wanted({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  if (device.has_value()) batch.set_device(*device);
  ASSIGN_OR_RETURN(client::Result result, client.Run(batch));
  if (!result.ok()) return result.status();
  if (result.registers().size() != group.size() * 16 || result.cycles().size() != group.size()) {
    return absl::InternalError(absl::StrCat("the server returned results of ",
                                            result.cycles().size(), " of ", group.size(),
                                            " programs"));
  }
  for (size_t i = 0; i < group.size(); ++i) {
    flux::RunResult actual;
    std::ranges::copy(result.registers().subspan(i * 16, 16), actual.registers.begin());
    actual.error = result.flux_errors().empty() ? 0 : result.flux_errors()[i];
    actual.cycles = result.cycles()[i];
    std::string difference = flux::Difference(*group[i], actual);
    if (!difference.empty()) failures.push_back({group[i], std::move(difference)});
  }
  return absl::OkStatus();
}

// Prints each difference, and finally the counts.
int CheckVectors(const std::string& path, std::optional<uint32_t> device) {
  std::string text;
  if (absl::Status status = ReadFile(path, &text); !status.ok()) return UsageError(status);
  absl::StatusOr<std::vector<flux::Vector>> vectors = flux::ParseVectors(text);
  if (!vectors.ok()) {
    return UsageError(
        absl::InvalidArgumentError(absl::StrCat(path, ": ", vectors.status().message())));
  }
  std::vector<Failure> failures;
  std::map<GroupKey, Group> groups;
  for (const flux::Vector& vector : *vectors) {
    groups[{vector.options.max_cycles, vector.options.unknown_nop}].push_back(&vector);
  }
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  Progress progress("checking", vectors->size());
  for (const auto& [key, group] : groups) {
    for (size_t first = 0; first < group.size();) {
      size_t last = first;
      size_t bytes = 0;
      while (last < group.size() && last - first < kMaxBatchVectors &&
             (last == first || bytes + group[last]->bytecode.size() <= kMaxBatchBytes)) {
        bytes += group[last++]->bytecode.size();
      }
      absl::Status status = CheckBatch(**client, key, std::span(group).subspan(first, last - first),
                                       device, failures);
      if (!status.ok()) return CallError(status);
      progress.Advance(last - first);
      first = last;
    }
  }
  std::ranges::sort(failures, {}, [](const Failure& failure) { return failure.vector->line; });
  const size_t passed = vectors->size() - failures.size();
  if (Common().json) {
    Json list = Json::array();
    for (const Failure& failure : failures) {
      list.push_back({{"line", failure.vector->line},
                      {"name", failure.vector->name},
                      {"difference", failure.difference}});
    }
    PrintJson({{"passed", passed}, {"failed", failures.size()}, {"failures", list}});
  } else {
    for (const Failure& failure : failures) {
      Print(absl::StrCat("FAILED line ", failure.vector->line, " ", failure.vector->name, ": ",
                         failure.difference, "\n"));
    }
    Print(absl::StrCat(passed, " passed, ", failures.size(), " failed\n"));
  }
  return failures.empty() ? kExitOk : kExitFailed;
}

}  // namespace

void AddFluxCheck(Command& flux) {
  Command& check = flux.Add("check", "run test vectors in the daemon");
  auto device = std::make_shared<std::optional<uint32_t>>();
  AddDeviceFlag(check, device.get());
  check.Run("FILE", [device](const Words& words) { return CheckVectors(words[0], *device); });
}

}  // namespace resident::cli
