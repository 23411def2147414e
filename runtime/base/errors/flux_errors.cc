#include "runtime/base/errors/flux_errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::StrCat;

absl::Status FluxOffsets(const std::string& what) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms.offsets: ", what,
                                           ". Fix: send programs + 1 ascending values, the last at "
                                           "most bytecode's size; or none for one program"));
}

absl::Status FluxCount(uint64_t count, uint64_t programs) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms.count is ", count, " for ", programs,
                                           " programs without program_index. Fix: send count 0 or ",
                                           programs, ", or a program_index for each run"));
}

absl::Status FluxIndex(uint64_t run, uint64_t program, uint64_t programs) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms.program_index: run ", run,
                                           " names program ", program, " of ", programs,
                                           ". Fix: send indices below ", programs));
}

absl::Status FluxIndexLength(uint64_t got, uint64_t count) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms.program_index has ", got, " values for ",
                                           count, " runs. Fix: send none or ", count));
}

absl::Status FluxInitial(uint64_t got, uint64_t width, uint64_t count) {
  return absl::InvalidArgumentError(
      StrCat("FluxPrograms.initial has ", got, " bytes with initial_width ", width, ". Fix: send ",
             count * width * 4, " (all runs) or ", width * 4, " (shared by all)"));
}

absl::Status FluxInitialWidth(uint64_t width) {
  return absl::InvalidArgumentError(
      StrCat("FluxPrograms.initial_width is ", width, ". Fix: send 0 to 16"));
}

absl::Status FluxWanted(const std::string& what) {
  return absl::InvalidArgumentError(
      StrCat("FluxPrograms.wanted: ", what, ". Fix: send at most 16 registers, each 0 to 15"));
}

absl::Status FluxOperatorAndPrograms(const std::string& name) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms has both the operator ", Quote(name),
                                           " and its own programs. Fix: send either operator, or "
                                           "bytecode with offsets and program_index"));
}

absl::Status FluxVersionAlone(uint32_t version) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms.version is ", version,
                                           " but operator is not set. Fix: set operator to the "
                                           "installed program, or leave out version"));
}

absl::Status FluxCycles(uint64_t cycles, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms.max_cycles is ", cycles,
                                           ", over the limit of ", limit,
                                           ". Fix: send less or raise --flux_max_cycles"));
}

absl::Status FluxCyclesInTime(uint64_t cycles, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat(
      "FluxPrograms.max_cycles is ", cycles, ", but on this device a run of more than ", limit,
      " might take longer than --task_time_limit, which ends the engine. Fix: send less, or "
      "raise --task_time_limit"));
}

absl::Status FluxTooMuchWork(uint64_t runs, uint64_t cycles, uint64_t tasks, uint64_t limit) {
  return absl::InvalidArgumentError(
      StrCat(runs, " runs of up to ", cycles, " cycles need ", tasks,
             " tasks, because the time of one task is limited. This is over the limit of ", limit,
             " tasks. Fix: send fewer runs in a batch, or a lower max_cycles"));
}

}  // namespace resident::errors
