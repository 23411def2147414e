// The errors a client can meet: one named function for each.
//
// Every message says what was wrong, with the values, and ends with "Fix: ..." and
// what to do. Text that a client sent is quoted, shortened and made printable.
//
//   if (count == 0) return errors::NoTasks();
#ifndef RESIDENT_RUNTIME_ERRORS_H_
#define RESIDENT_RUNTIME_ERRORS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace resident::errors {

// 'text', at most 64 bytes of it, with what is not printable escaped.
std::string Quote(std::string_view text);

// --- Operators and their arguments ----------------------------------------------

// Which argument of which operator: "argument 2 'y' of add".
struct ArgumentPlace {
  const std::string& operator_name;
  size_t index;  // From 0; messages count from 1.
  const std::string& parameter;
};

absl::Status BadSignature(const std::string& text, size_t position, const std::string& what);
absl::Status BadSplit(const std::string& text, const std::string& what);
// `nearest` may be empty.
absl::Status UnknownOperator(const std::string& name, const std::string& nearest);
// `active` 0: none is.
absl::Status UnknownVersion(const std::string& name, uint32_t version, uint32_t active);
absl::Status InternalOperator(const std::string& name);
// `names` of all `most` parameters, of which `least` are required.
absl::Status ArgumentCount(const std::string& operator_name, size_t got, size_t least, size_t most,
                           const std::string& names);
// `is`: "an input"; `takes`: "a buffer column or an inline column".
absl::Status ArgumentKind(const ArgumentPlace& place, const std::string& is, const std::string& got,
                          const std::string& takes);
absl::Status ArgumentDType(const ArgumentPlace& place, const std::string& got,
                           const std::string& taken);
absl::Status ArgumentRank(const ArgumentPlace& place, const std::string& shape, uint32_t min_rank,
                          uint32_t max_rank);
absl::Status ArgumentFixedDim(const ArgumentPlace& place, const std::string& shape, size_t dim,
                              int64_t wanted);
absl::Status ArgumentShape(const ArgumentPlace& place, const std::string& shape,
                           const std::string& variable, const std::string& bound,
                           const std::string& binder);
absl::Status ArgumentBroadcast(const ArgumentPlace& place, const std::string& shape,
                               const std::string& variable, const std::string& bound,
                               const std::string& binder);
absl::Status ArgumentStrided(const ArgumentPlace& place);
// `what` is wrong at bytes [position, position + width) of the expression; `fix` may be
// empty.
absl::Status BadExpression(std::string_view text, size_t position, size_t width,
                           const std::string& what, const std::string& fix);

// --- Operators that change --------------------------------------------------------

absl::Status BadOperatorName(const std::string& name);
absl::Status BuiltinName(const std::string& name);
absl::Status BuiltinOperator(const std::string& name);
absl::Status CalledWithTasks(const std::string& name);     // It is bytecode.
absl::Status CalledWithPrograms(const std::string& name);  // It is native.
// `standby` 0: there is none; `quarantine_reason` empty: it is not quarantined.
absl::Status NoActiveVersion(const std::string& name, uint32_t standby,
                             const std::string& quarantine_reason);
absl::Status VersionQuarantined(const std::string& name, uint32_t version,
                                const std::string& reason);
absl::Status StaleRevision(const std::string& name, uint64_t expected, uint64_t revision);
absl::Status OtherKind(const std::string& name, bool bytecode);
absl::Status OtherSignature(const std::string& name, const std::string& signature,
                            const std::string& installed);
absl::Status OnTrial(const std::string& name, uint32_t version);
absl::Status TooManyOperators(uint64_t limit, bool bytecode);
absl::Status NoFreeSlot(uint64_t slots);
absl::Status AlreadyActive(const std::string& name, uint32_t version);
// `version` 0: whichever is standby; `active` 0: none is.
absl::Status NoStandby(const std::string& name, uint32_t version, uint32_t active);
absl::Status NotInSlot(const std::string& name, uint32_t version, uint32_t standby);
absl::Status NoPrevious(const std::string& name, uint32_t standby);
absl::Status NothingToTryAgainst(const std::string& name, uint32_t standby);
absl::Status BadPercent(const std::string& what, double percent);
absl::Status TwoVersionsInOnePlace(const std::string& name, uint32_t version);

// --- The state folder ---------------------------------------------------------------

// `pid` 0: not known.
absl::Status StateFolderInUse(const std::string& folder, int64_t pid);
absl::Status JournalDamaged(const std::string& path, uint64_t offset, const std::string& what,
                            const std::string& folder);
absl::Status JournalNewer(const std::string& path, const std::string& what);
absl::Status JournalBroken(const std::string& path, const std::string& why);
// A change that was made and may not be durable.
absl::Status NotOnDisk(const std::string& path, const std::string& why);
absl::Status RecordTooLarge(uint64_t bytes);
absl::Status RecordDoesNotFit(const std::string& what);
absl::Status NoBlob(const std::string& sha256);
absl::Status DamagedFile(const std::string& path);
absl::Status NoStateFolder(const std::string& folder);
absl::Status EventsGone(uint64_t after, uint64_t first);

// --- Batches ---------------------------------------------------------------------

absl::Status EmptyBatch();
absl::Status NoTasks();
absl::Status TooManyTasks(uint64_t count, uint64_t limit);
absl::Status TooManyQueuedAtOnce(uint64_t count, uint64_t limit);
absl::Status TooManyArguments(uint64_t bytes, uint64_t limit);
absl::Status UnknownEnum(const std::string& field, int value, const std::string& known);
absl::Status EmptyColumn(const ArgumentPlace& place);
absl::Status ShapeRank(const ArgumentPlace& place, size_t rank);
absl::Status ShapeTooLarge(const ArgumentPlace& place);
absl::Status NoDType(const ArgumentPlace& place);
absl::Status ColumnLength(const ArgumentPlace& place, const std::string& column, uint64_t got,
                          uint64_t count);
absl::Status MixedBuffers(const ArgumentPlace& place, uint64_t first, uint64_t other);
absl::Status StridesRank(const ArgumentPlace& place, size_t strides, size_t rank);
absl::Status StrideTooLarge(const ArgumentPlace& place, size_t dim, int64_t stride);
absl::Status NegativeStride(const ArgumentPlace& place, size_t dim, int64_t stride);
absl::Status OverlappingStrides(const ArgumentPlace& place, const std::string& shape,
                                const std::string& strides);
absl::Status StridedBeyondBuffer(const ArgumentPlace& place, uint64_t task, uint64_t offset,
                                 uint64_t bytes_before, uint64_t bytes_from, uint64_t buffer,
                                 uint64_t buffer_bytes);
absl::Status OffsetAlignment(const ArgumentPlace& place, uint64_t task, uint64_t offset,
                             uint32_t element_bytes);
absl::Status BeyondBuffer(const ArgumentPlace& place, uint64_t task, uint64_t offset,
                          uint64_t tensor_bytes, uint64_t buffer, uint64_t buffer_bytes);
absl::Status InlineSize(const ArgumentPlace& place, uint64_t got, uint64_t one, uint64_t all);
absl::Status ScalarKind(const ArgumentPlace& place, const std::string& dtype, bool wants_float,
                        bool has_nan);
absl::Status ScalarBoth(const ArgumentPlace& place);
absl::Status ScalarRange(const ArgumentPlace& place, uint64_t task, const std::string& value,
                         const std::string& dtype);
absl::Status WindowFull(uint64_t bytes, uint64_t window_bytes, bool ever_fits);

// --- FLUX ------------------------------------------------------------------------

absl::Status FluxOffsets(const std::string& what);
absl::Status FluxCount(uint64_t count, uint64_t programs);
absl::Status FluxIndex(uint64_t run, uint64_t program, uint64_t programs);
absl::Status FluxIndexLength(uint64_t got, uint64_t count);
absl::Status FluxInitial(uint64_t got, uint64_t width, uint64_t count);
absl::Status FluxInitialWidth(uint64_t width);
absl::Status FluxWanted(const std::string& what);
absl::Status FluxOperatorAndPrograms(const std::string& name);
absl::Status FluxVersionAlone(uint32_t version);
absl::Status FluxCycles(uint64_t cycles, uint64_t limit);

// --- Installing and changing operators --------------------------------------------

absl::Status TooManyInstalls(uint64_t limit);
absl::Status InstallNoHeader();
absl::Status InstallSecondHeader();
absl::Status InstallEmptyMessage();
absl::Status InstallNoName();
absl::Status InstallNoKind();
// `field`: of InstallHeader.
absl::Status InstallTextTooLong(const std::string& field, size_t bytes, size_t limit);
absl::Status InstallNotSent(uint64_t limit_ms);
absl::Status InstallFileName(const std::string& name, const std::string& what);
absl::Status InstallUnexpectedFile(const std::string& name);
absl::Status InstallMissingFile(const std::string& name, size_t files);
absl::Status InstallTooManyFiles(uint64_t limit);
// `what`: "source" or "object".
absl::Status InstallTooManyBytes(const std::string& what, uint64_t bytes, uint64_t limit);
// Examples and their values are counted from 0 here and from 1 in messages.
absl::Status InstallTooManyExamples(uint64_t limit);
absl::Status ExampleTolerance(size_t example);
absl::Status ExampleTooManyValues(size_t example, size_t values, size_t limit);
absl::Status ExampleDType(size_t example, size_t value, int dtype);
absl::Status ExampleRank(size_t example, size_t value, size_t rank, size_t limit);
absl::Status ExampleTooLarge(size_t example, size_t value, uint64_t limit);
absl::Status ExampleSize(size_t example, size_t value, uint64_t got, uint64_t wanted);
absl::Status PromoteShare(const std::string& field, double percent);
absl::Status BakeThreshold(const std::string& field, double value, const std::string& range);
absl::Status BakeTime(uint64_t time_ms, uint64_t limit_ms);
absl::Status TooManyAuditEvents(uint64_t count, uint64_t limit);
absl::Status TooManyWatchers(uint64_t limit);

// --- Buffers ---------------------------------------------------------------------

absl::Status UnknownBuffer(uint64_t id);
absl::Status LostBuffer(uint64_t id, uint32_t device, const std::string& cause);
absl::Status OtherDevicesBuffer(uint64_t id, uint32_t device, uint32_t batch_device);
absl::Status BadBufferType(const std::string& what);
absl::Status BufferNameTooLong(size_t bytes, size_t limit);
absl::Status TooManyBuffers(uint64_t limit, bool durable);
absl::Status ClientMemory(uint64_t bytes, uint64_t used, uint64_t limit_mib);
absl::Status NotDurable(uint64_t id);
absl::Status BeyondBufferEnd(uint64_t id, uint64_t offset, uint64_t bytes, uint64_t size);
absl::Status NoUpload();
absl::Status SharedMemoryDisabled();
absl::Status SharedMemoryName(const std::string& name);
absl::Status SharedMemoryMissing(const std::string& name);
absl::Status SharedMemoryDenied(const std::string& name, const std::string& why);
absl::Status SharedMemorySize(const std::string& name, uint64_t asked, uint64_t object);
absl::Status SharedMemoryShape(const std::string& shape, const std::string& dtype, uint64_t size);
absl::Status TransferFailed(const std::string& what, const std::string& cause);

// --- Examples of an install, and what a canary finds -------------------------------

absl::Status TooManyExamples(uint64_t count, uint64_t limit);
// `why` with the example's number (from 0; messages count from 1) in front.
absl::Status InExample(size_t example, const absl::Status& why);
// `takes`: "12 bytes", "0 or 12 bytes (what is expected)".
absl::Status ExampleData(const ArgumentPlace& place, uint64_t got, const std::string& takes);
absl::Status ExampleScalarShape(const ArgumentPlace& place, const std::string& shape);
absl::Status ExampleExpectations(const std::string& with, const std::string& without);
absl::Status ExampleTolerance(double relative, double absolute);
absl::Status ExampleTooLarge(uint64_t bytes, uint64_t limit);

// Where a canary found something: "swish, example 2 (in 3 chunks; x [9], y [9]): ".
struct CanaryPlace {
  const std::string& operator_name;
  size_t example;      // From 0; messages count from 1.
  bool generated;      // Made from the signature.
  std::string run;     // "checked build", "in 3 chunks".
  std::string shapes;  // Of the tensors: "x [1000], out [1000]".
};

absl::Status CanaryUnavailable(const absl::Status& why);
// The version's code cannot be loaded, or ends the engine when it is.
absl::Status CanaryLoad(const std::string& operator_name, const std::string& why);
// `cause`: how the engine ended, as far as it is known.
absl::Status CanaryFault(const CanaryPlace& place, const std::string& cause);
absl::Status CanaryNeverReturned(const CanaryPlace& place, int64_t limit_ms);
// The task reported a failure.
absl::Status CanaryTaskFailed(const CanaryPlace& place, const std::string& status, uint32_t detail);
// `what` was refused by the checked build: "touched element 8 of 'y', which has 8 elements".
absl::Status CanaryOutOfBounds(const CanaryPlace& place, const std::string& what);
// A byte was written that belongs to no tensor; `where`: "past the end of".
absl::Status CanaryRedZone(const CanaryPlace& place, const std::string& parameter,
                           const std::string& where, uint64_t distance);
absl::Status CanaryInputWritten(const CanaryPlace& place, const std::string& parameter,
                                uint64_t element);
absl::Status CanaryUnwritten(const CanaryPlace& place, const std::string& parameter, uint64_t first,
                             uint64_t unwritten, uint64_t elements);

// An output's elements that differ from what they are held against.
struct CanaryDifference {
  const std::string& parameter;
  std::string against;  // "what the example expects", "the active version".
  uint64_t first;
  std::string got;
  std::string wanted;
  uint64_t differing;
  uint64_t elements;
  double max_error;
};
absl::Status CanaryDiffers(const CanaryPlace& place, const CanaryDifference& difference);
// The active version, whose outputs were to be what is expected, fails the example itself.
absl::Status CanaryNoReference(const CanaryPlace& place, const absl::Status& why);

// --- Sessions, devices, the daemon -----------------------------------------------

absl::Status NoSession();
absl::Status UnknownSession(const std::string& id);
absl::Status TooManySessions(uint64_t limit);
absl::Status TooManyPeers(uint64_t limit);
absl::Status ClientNameTooLong(size_t bytes, size_t limit);
absl::Status UnknownDevice(uint64_t device, size_t devices);
absl::Status DeviceUnavailable(uint32_t device, const std::string& detail);
absl::Status NoDeviceAvailable();
absl::Status Draining();
absl::Status Cancelled();
absl::Status DeadlineExceeded();
absl::Status DrainUnfinished(uint64_t remaining);

// --- Who may ----------------------------------------------------------------------

absl::Status NoCredential();
absl::Status NoBearer();
absl::Status ManyTokens();
absl::Status TokenTooLong(size_t bytes, size_t limit);
absl::Status UnknownToken();
absl::Status RevokedToken(const std::string& identity);
absl::Status BadCertificateName(const std::string& name);
// `roles`: "'submit' or 'admin'"; `call`: what needs them.
absl::Status LacksRole(const std::string& identity, const std::string& roles,
                       const std::string& call);
// `role`: "submit" or "install", whose list of prefixes has none for the operator.
absl::Status LacksOperator(const std::string& identity, const std::string& role,
                           const std::string& operator_name);
absl::Status UnlistedMethod(const std::string& identity, const std::string& method);
absl::Status OthersSession(const std::string& identity);
absl::Status TaskQuota(const std::string& identity, uint64_t tasks, uint64_t in_flight,
                       uint64_t quota);
absl::Status BufferQuota(const std::string& identity, uint64_t bytes, uint64_t used,
                         uint64_t quota);
absl::Status InstallQuota(const std::string& identity, uint64_t quota, int64_t wait_s);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_ERRORS_H_
