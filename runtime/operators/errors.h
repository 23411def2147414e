// Errors of operators: their installs, examples, validation and changes.
//
// Thread safety: functions without state.
#ifndef RESIDENT_RUNTIME_OPERATORS_ERRORS_H_
#define RESIDENT_RUNTIME_OPERATORS_ERRORS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/model/errors.h"
#include "runtime/model/version_spec.h"

namespace resident::errors {

// Examples and their values are counted from 0 here and from 1 in messages.
absl::Status ExampleTolerance(size_t example);
absl::Status ExampleTooLarge(size_t example, size_t value, uint64_t limit);
absl::Status ExampleTooManyValues(size_t example, size_t values, size_t limit);
absl::Status ExampleDType(size_t example, size_t value, int dtype);
absl::Status ExampleRank(size_t example, size_t value, size_t rank, size_t limit);
absl::Status ExampleSize(size_t example, size_t value, uint64_t got, uint64_t wanted);
absl::Status TooManyExamples(uint64_t count, uint64_t limit);
// Returns `why` with the example's number (from 0; messages count from 1) as a prefix.
absl::Status InExample(size_t example, const absl::Status& why);
// `takes`: "12 bytes", "0 or 12 bytes (the expected values)".
absl::Status ExampleData(const ArgumentRef& place, uint64_t got, const std::string& takes);
absl::Status ExampleScalarShape(const ArgumentRef& place, const std::string& shape);
absl::Status ExampleExpectations(const std::string& with, const std::string& without);
absl::Status ExampleTolerance(double relative, double absolute);
absl::Status ExampleTooLarge(uint64_t bytes, uint64_t limit);

absl::Status ExpressionSignature(const std::string& given, const std::string& derived);
absl::Status ObjectsNotAllowed();
absl::Status TaskTimeAboveLimit(std::chrono::milliseconds asked, std::chrono::milliseconds limit);
// Errors of bytecode. `example` counts from 1; 0: the run without an example.
absl::Status BytecodeSize(size_t bytes, size_t limit);
absl::Status BytecodeExample(size_t example);
absl::Status BytecodeError(size_t example, uint32_t error, uint32_t cycles);
absl::Status BytecodeResult(size_t example, size_t reg, int32_t got, int32_t expected);

// `nearest` may be empty.
absl::Status UnknownOperator(const std::string& name, const std::string& nearest);
// `active` 0: there is no active version.
absl::Status UnknownVersion(const std::string& name, uint32_t version, uint32_t active);
absl::Status BadOperatorName(const std::string& name);
absl::Status BuiltinName(const std::string& name);
absl::Status NameOfModel(const std::string& name);
absl::Status BuiltinOperator(const std::string& name);
absl::Status CalledWithTasks(const std::string& name);     // The operator is bytecode.
absl::Status CalledWithPrograms(const std::string& name);  // The operator is native.
// `standby` 0: there is none; `quarantine_reason` empty: it is not quarantined.
absl::Status NoActiveVersion(const std::string& name, uint32_t standby,
                             const std::string& quarantine_reason);
absl::Status VersionQuarantined(const std::string& name, uint32_t version,
                                const std::string& reason);
absl::Status StaleRevision(const std::string& name, uint64_t expected, uint64_t revision);
// Claims of names for a plan.
absl::Status ClaimHeld(const std::string& set, const std::string& plan, const std::string& holder,
                       absl::Duration age);
absl::Status NameClaimed(const std::string& name, const std::string& set, const std::string& plan,
                         const std::string& holder, absl::Duration age);
absl::Status ClaimLost(const std::string& plan);
// `set`: that of --operators_dir.
absl::Status ListedInFolder(const std::string& name, const std::string& set);
absl::Status OtherKind(const std::string& name, bool bytecode);
absl::Status OtherSignature(const std::string& name, const std::string& signature,
                            const std::string& installed);
absl::Status OnTrial(const std::string& name, uint32_t version);
// A version that requests can name. Messages do not contain its content hash, which only admins
// see.
struct VersionInKernel {
  uint32_t version;
  std::string state;
  std::string label;  // Empty: none.
};
// `version` has a content hash or a label.
absl::Status UnknownVersionName(const std::string& name, const VersionRef& version,
                                const std::vector<VersionInKernel>& present);
absl::Status AmbiguousContentHash(const std::string& name, const std::string& digits);
absl::Status BadContentHash(const std::string& digits);
absl::Status BadVersionLabel(const std::string& label);
absl::Status SeveralVersionNames(const std::string& name);
absl::Status TooManyOperators(uint64_t limit, bool bytecode);
absl::Status NoFreeSlot(uint64_t slots);
absl::Status AlreadyActive(const std::string& name, uint32_t version);
// `version` 0: the standby version, whatever its number; `active` 0: there is no active version.
absl::Status NoStandby(const std::string& name, uint32_t version, uint32_t active);
absl::Status NotInSlot(const std::string& name, uint32_t version, uint32_t standby);
absl::Status NoPrevious(const std::string& name, uint32_t standby);
absl::Status NoActiveVersionToCompare(const std::string& name, uint32_t standby);
absl::Status DuplicateVersionRole(const std::string& name, uint32_t version);
absl::Status PromoteShare(const std::string& field, double percent);

// Where a validation found something: "swish, example 2 (in 3 chunks; x [9], y [9]): ".
struct ValidationContext {
  const std::string& operator_name;
  size_t example;      // From 0; messages count from 1.
  bool generated;      // Whether it was made from the signature.
  std::string run;     // "checked build", "in 3 chunks".
  std::string shapes;  // Shapes of the tensors: "x [1000], out [1000]".
};
absl::Status ValidationUnavailable(const absl::Status& why);
// The version's code cannot be loaded, or ends the engine when it is loaded.
absl::Status ValidationLoad(const std::string& operator_name, const std::string& why);
// `cause`: how the engine ended, if known.
absl::Status ValidationFault(const ValidationContext& place, const std::string& cause);
absl::Status ValidationNeverReturned(const ValidationContext& place, int64_t limit_ms);
// The task reported a failure.
absl::Status ValidationTaskFailed(const ValidationContext& place, const std::string& status,
                                  uint32_t detail);
// `what`: the access that the checked build refused, such as "touched element 8 of 'y', which has
// 8 elements".
absl::Status ValidationOutOfBounds(const ValidationContext& place, const std::string& what);
// A byte outside of all tensors was written. `where`: "past the end of".
absl::Status ValidationRedZone(const ValidationContext& place, const std::string& parameter,
                               const std::string& where, uint64_t distance);
absl::Status ValidationInputWritten(const ValidationContext& place, const std::string& parameter,
                                    uint64_t element);
absl::Status ValidationUnwritten(const ValidationContext& place, const std::string& parameter,
                                 uint64_t first, uint64_t unwritten, uint64_t elements);
// The elements of an output that differ from the expected values.
struct ValidationDifference {
  const std::string& parameter;
  std::string against;  // "what the example expects", "the active version".
  uint64_t first;
  std::string got;
  std::string wanted;
  uint64_t differing;
  uint64_t elements;
  double max_error;
};
absl::Status ValidationDiffers(const ValidationContext& place,
                               const ValidationDifference& difference);
// The active version, whose outputs are the expected values, fails the example.
absl::Status ValidationNoReference(const ValidationContext& place, const absl::Status& why);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_OPERATORS_ERRORS_H_
