// The text output of `residentctl ops`.
#ifndef RESIDENT_CLIENT_COMMANDS_OPS_TEXT_H_
#define RESIDENT_CLIENT_COMMANDS_OPS_TEXT_H_

#include <string>
#include <vector>

#include "resident/v1/operators.pb.h"

namespace resident::cli {

// A table of all operators.
std::string OperatorsText(const std::vector<v1::Operator>& operators);
// All information about one operator.
std::string OperatorText(const v1::Operator& op);

// How far each version of an operator is isolated, why, and what that took.
std::string IsolationText(const v1::Operator& op);

// A table of the versions in the kernel, and the digest.
std::string SummaryText(const v1::SummaryResponse& summary);

// One line for a state of an installation: "compiled    412 ms  compile sm_90 398 ms".
std::string ProgressText(const v1::InstallResponse& progress);

// A table of events. `header` is false for the later parts of a stream.
std::string EventsText(const std::vector<v1::OperatorEvent>& events, bool header);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_OPS_TEXT_H_
