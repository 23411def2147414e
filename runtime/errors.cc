#include "runtime/errors.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/layout/task.h"

namespace resident::errors {
namespace {

using absl::StrCat;

constexpr size_t kMostQuoted = 64;

std::string Text(const ArgumentPlace& place) {
  return StrCat("argument ", place.index + 1, " '", place.parameter, "' of ", place.operator_name);
}

std::string PlaceOf(size_t example, size_t value) {
  return StrCat("example ", example + 1, ", value ", value + 1);
}

// As Quote, of what stands around `position`.
std::string QuoteAt(const std::string& text, size_t position) {
  const size_t most_before = kMostQuoted / 2;
  if (text.size() <= kMostQuoted || position <= most_before) return Quote(text);
  const size_t begin = std::min(position, text.size()) - most_before;
  return StrCat("...", Quote(std::string_view(text).substr(begin)));
}

}  // namespace

std::string Quote(std::string_view text) {
  const bool cut = text.size() > kMostQuoted;
  const absl::string_view shown(text.data(), cut ? kMostQuoted : text.size());
  return StrCat("'", absl::CHexEscape(shown), cut ? "..." : "", "'");
}

// --- Operators and their arguments ----------------------------------------------

absl::Status BadSignature(const std::string& text, size_t position, const std::string& what) {
  return absl::InvalidArgumentError(StrCat("signature ", QuoteAt(text, position), ", at byte ",
                                           position, ": ", what,
                                           ". Fix: see runtime/registry/signature.h for the "
                                           "grammar"));
}

absl::Status BadSplit(const std::string& text, const std::string& what) {
  return absl::InvalidArgumentError(StrCat("split ", Quote(text), ": ", what,
                                           ". Fix: write \"parameter[/1] grain\" "
                                           "(kernels/ops/builtin.h)"));
}

absl::Status UnknownOperator(const std::string& name, const std::string& nearest) {
  return absl::NotFoundError(StrCat("no operator ", Quote(name), ". ",
                                    nearest.empty() ? "Fix: Operators.List names all there are"
                                                    : StrCat("Fix: did you mean '", nearest,
                                                             "'? Operators.List names "
                                                             "all there are")));
}

absl::Status UnknownVersion(const std::string& name, uint32_t version, uint32_t active) {
  return absl::NotFoundError(StrCat("operator '", name, "' has no version ", version,
                                    ". Fix: send version 0 for the active one (",
                                    active == 0 ? "none" : StrCat(active),
                                    " now), or one that Operators.Describe lists in a slot"));
}

absl::Status InternalOperator(const std::string& name) {
  return absl::InvalidArgumentError(StrCat("operator '", name,
                                           "' is not called with tasks. Fix: "
                                           "send Batch.programs, whose arguments the daemon "
                                           "checks and packs"));
}

absl::Status ArgumentCount(const std::string& operator_name, size_t got, size_t least, size_t most,
                           const std::string& names) {
  const std::string wanted = least == most ? StrCat(least) : StrCat(least, " to ", most);
  return absl::InvalidArgumentError(StrCat(operator_name, " takes ", wanted, " arguments and got ",
                                           got, ". Fix: send one column for each of: ", names));
}

absl::Status ArgumentKind(const ArgumentPlace& place, const std::string& is, const std::string& got,
                          const std::string& takes) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), " is ", is, " and got ", got, ". Fix: send ", takes));
}

absl::Status ArgumentDType(const ArgumentPlace& place, const std::string& got,
                           const std::string& taken) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), ": dtype ", got, " is not taken. Fix: send ", taken));
}

absl::Status ArgumentRank(const ArgumentPlace& place, const std::string& shape, uint32_t min_rank,
                          uint32_t max_rank) {
  const std::string wanted =
      min_rank == max_rank ? StrCat(min_rank) : StrCat(min_rank, " to ", max_rank);
  return absl::InvalidArgumentError(StrCat(Text(place), ": shape ", shape, " does not have ",
                                           wanted, " dimensions. Fix: give it ", wanted,
                                           " dimensions"));
}

absl::Status ArgumentFixedDim(const ArgumentPlace& place, const std::string& shape, size_t dim,
                              int64_t wanted) {
  return absl::InvalidArgumentError(StrCat(Text(place), ": dimension ", dim, " of shape ", shape,
                                           " must be ", wanted, ". Fix: send a tensor with ",
                                           wanted, " there"));
}

absl::Status ArgumentShape(const ArgumentPlace& place, const std::string& shape,
                           const std::string& variable, const std::string& bound,
                           const std::string& binder) {
  return absl::InvalidArgumentError(StrCat(
      Text(place), ": shape ", shape, " does not match ", variable, " = ", bound, " bound by '",
      binder, "'. Fix: make '", place.parameter, "' and '", binder, "' agree in ", variable));
}

absl::Status ArgumentBroadcast(const ArgumentPlace& place, const std::string& shape,
                               const std::string& variable, const std::string& bound,
                               const std::string& binder) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), ": shape ", shape, " does not broadcast to ", variable, " = ", bound,
             " of '", binder, "'. Fix: counted from the last, make each dimension of '",
             place.parameter, "' that of '", binder, "', or 1"));
}

absl::Status ArgumentStrided(const ArgumentPlace& place) {
  return absl::InvalidArgumentError(
      StrCat(Text(place),
             " is a strided view, and the operator takes dense tensors there. Fix: "
             "leave BufferColumn.strides empty, and copy the elements to a dense "
             "buffer first"));
}

absl::Status BadExpression(std::string_view text, size_t position, size_t width,
                           const std::string& what, const std::string& fix) {
  // A line of the text around the place, and a line that points at it.
  constexpr size_t kAround = 36;
  const size_t begin = position > kAround ? position - kAround : 0;
  const size_t end = std::min(text.size(), position + kAround);
  std::string line(text.substr(std::min(begin, text.size()), end - std::min(begin, end)));
  for (char& c : line) {
    if (c < ' ' || c > '~') c = c == '\n' || c == '\t' || c == '\r' ? ' ' : '?';
  }
  const size_t shown = std::min(std::max<size_t>(width, 1), end > position ? end - position : 1);
  const std::string pointer =
      StrCat(std::string(position - begin, ' '), "^", std::string(shown - 1, '~'));
  return absl::InvalidArgumentError(
      StrCat("expression, column ", position + 1, ": ", what, "\n  ", line, "\n  ", pointer,
             "\nFix: ", fix.empty() ? "see the grammar in docs/operators.md" : fix));
}

// --- Operators that change --------------------------------------------------------

absl::Status BadOperatorName(const std::string& name) {
  return absl::InvalidArgumentError(StrCat(
      "operator name ", Quote(name),
      " is not valid. Fix: begin with a letter, go on with letters, digits, '_', '.' and '-', and "
      "take at most 64 bytes"));
}

absl::Status BuiltinName(const std::string& name) {
  return absl::AlreadyExistsError(StrCat("operator '", name,
                                         "' is built in and cannot be replaced. Fix: install "
                                         "under another name"));
}

absl::Status BuiltinOperator(const std::string& name) {
  return absl::FailedPreconditionError(StrCat("operator '", name,
                                              "' is built in and does not change. Fix: name an "
                                              "operator that was installed"));
}

absl::Status CalledWithTasks(const std::string& name) {
  return absl::InvalidArgumentError(StrCat("operator '", name,
                                           "' is bytecode and is not called with tasks. Fix: send "
                                           "Batch.programs with its name in `operator`"));
}

absl::Status CalledWithPrograms(const std::string& name) {
  return absl::InvalidArgumentError(StrCat("operator '", name,
                                           "' is native code and not a FLUX program. Fix: send "
                                           "Batch.tasks with its name in `operator`"));
}

absl::Status NoActiveVersion(const std::string& name, uint32_t standby,
                             const std::string& quarantine_reason) {
  if (!quarantine_reason.empty()) {
    return absl::UnavailableError(StrCat("operator '", name, "' has no active version: version ",
                                         standby, " was quarantined (", quarantine_reason,
                                         "). Fix: install a version that works and activate it"));
  }
  if (standby == 0) {
    return absl::UnavailableError(StrCat("operator '", name,
                                         "' has no active version. Fix: install one and "
                                         "activate it"));
  }
  return absl::UnavailableError(StrCat("operator '", name, "' has no active version: version ",
                                       standby, " is staged. Fix: activate it"));
}

absl::Status VersionQuarantined(const std::string& name, uint32_t version,
                                const std::string& reason) {
  return absl::FailedPreconditionError(
      StrCat("version ", version, " of operator '", name, "' is quarantined: ", reason,
             ". Fix: install a version that works; or activate this one with force"));
}

absl::Status StaleRevision(const std::string& name, uint64_t expected, uint64_t revision) {
  const std::string is =
      revision == 0 ? "it is not installed" : StrCat("it is at revision ", revision);
  return absl::AbortedError(
      StrCat("operator ", Quote(name), " was expected ",
             expected == 0 ? std::string("not to be installed") : StrCat("at revision ", expected),
             " and ", is,
             ": somebody else has changed it. Fix: look at it again, then "
             "repeat the call with its revision"));
}

absl::Status OtherKind(const std::string& name, bool bytecode) {
  return absl::FailedPreconditionError(
      StrCat("operator '", name, "' is ", bytecode ? "bytecode" : "native code",
             ", and a version of the other kind would be called otherwise. Fix: install under "
             "another name, or remove it first"));
}

absl::Status OtherSignature(const std::string& name, const std::string& signature,
                            const std::string& installed) {
  return absl::FailedPreconditionError(
      StrCat("signature \"", signature, "\" is not that of the versions of operator '", name,
             "' that are installed, \"", installed,
             "\". Fix: keep the signature, or install under another name"));
}

absl::Status OnTrial(const std::string& name, uint32_t version) {
  return absl::FailedPreconditionError(
      StrCat("version ", version, " of operator '", name,
             "' is on trial, and another version would take its place. Fix: end the trial first "
             "(Activate, Rollback, or Promote with 0 percent)"));
}

absl::Status TooManyOperators(uint64_t limit, bool bytecode) {
  return absl::ResourceExhaustedError(StrCat("there are ", limit,
                                             bytecode ? " operators of bytecode" : " operators",
                                             " installed, the most there may be. Fix: remove one "
                                             "that is not used"));
}

absl::Status NoFreeSlot(uint64_t slots) {
  return absl::DeadlineExceededError(
      StrCat("all ", slots,
             " slots of the kernel are taken, some by versions whose last tasks still run. Fix: "
             "try again, or remove an operator that is not used"));
}

absl::Status AlreadyActive(const std::string& name, uint32_t version) {
  return absl::FailedPreconditionError(StrCat("version ", version, " of operator '", name,
                                              "' is the active one already. Fix: none needed, or "
                                              "name another version"));
}

absl::Status NoStandby(const std::string& name, uint32_t version, uint32_t active) {
  const std::string wanted = version == 0 ? "" : StrCat(", so there is no version ", version);
  return absl::FailedPreconditionError(
      StrCat("operator '", name, "' has no standby version",
             active == 0 ? std::string() : StrCat(" beside the active one (", active, ")"), wanted,
             ". Fix: install one"));
}

absl::Status NotInSlot(const std::string& name, uint32_t version, uint32_t standby) {
  return absl::FailedPreconditionError(
      StrCat("version ", version, " of operator '", name, "' is not in the standby slot; version ",
             standby, " is. Fix: name that one, or install version ", version, "'s source again"));
}

absl::Status NoPrevious(const std::string& name, uint32_t standby) {
  return absl::FailedPreconditionError(
      StrCat("operator '", name, "' has no version that served before the active one",
             standby == 0 ? std::string()
                          : StrCat("; the standby, version ", standby, ", was not the one before"),
             ". Fix: activate the version that you want by its number"));
}

absl::Status NothingToTryAgainst(const std::string& name, uint32_t standby) {
  return absl::FailedPreconditionError(
      StrCat("operator '", name, "' has no active version that ",
             standby == 0 ? std::string("another") : StrCat("version ", standby),
             " could be tried beside. Fix: activate a version"));
}

absl::Status BadPercent(const std::string& what, double percent) {
  return absl::InvalidArgumentError(
      StrCat("a share of ", percent, " % for ", what, " is not possible. Fix: send 0 to 100"));
}

absl::Status TwoVersionsInOnePlace(const std::string& name, uint32_t version) {
  return absl::DataLossError(StrCat("version ", version, " of operator '", name,
                                    "' has a place that another version has too. Fix: run "
                                    "`residentctl state check` on the state folder"));
}

// --- The state folder ---------------------------------------------------------------

absl::Status StateFolderInUse(const std::string& folder, int64_t pid) {
  return absl::FailedPreconditionError(
      StrCat("--state_dir=", folder, " is in use by another process",
             pid == 0 ? std::string() : StrCat(", pid ", pid),
             ". Fix: stop that one, or give this one a folder of its own"));
}

absl::Status JournalDamaged(const std::string& path, uint64_t offset, const std::string& what,
                            const std::string& folder) {
  return absl::DataLossError(StrCat(path, " is damaged at offset ", offset, ": ", what,
                                    ". Fix: look with `residentctl state check ", folder,
                                    "`; `residentctl state repair ", folder,
                                    "` keeps a copy and cuts off what cannot be read"));
}

absl::Status JournalNewer(const std::string& path, const std::string& what) {
  return absl::FailedPreconditionError(StrCat(path, " was written by a newer daemon: ", what,
                                              ". Fix: start that one, or use another "
                                              "--state_dir"));
}

absl::Status JournalBroken(const std::string& path, const std::string& why) {
  return absl::UnavailableError(StrCat("nothing can be added to ", path, ": ", why,
                                       ". What serves goes on, but no change is possible. Fix: "
                                       "make the disk that --state_dir is on work, and room on "
                                       "it; the next change then writes the file anew"));
}

absl::Status NotOnDisk(const std::string& path, const std::string& why) {
  return absl::InternalError(StrCat("it was done, but a restart may come back without it: ", path,
                                    " is not on disk: ", why,
                                    ". Fix: make the disk that --state_dir is on work, and room on "
                                    "it; the next change then writes the file anew"));
}

absl::Status RecordTooLarge(uint64_t bytes) {
  return absl::ResourceExhaustedError(StrCat("a record of ", bytes,
                                             " bytes is too large for the journal. Fix: remove "
                                             "operators that are not used"));
}

absl::Status RecordDoesNotFit(const std::string& what) {
  return absl::DataLossError(StrCat("a record does not fit those before it: ", what,
                                    ". Fix: `residentctl state check` on the state folder"));
}

absl::Status NoBlob(const std::string& sha256) {
  return absl::NotFoundError(StrCat("no contents with SHA-256 ", Quote(sha256),
                                    " are kept. Fix: `residentctl state check` says what is "
                                    "missing; install the version again"));
}

absl::Status DamagedFile(const std::string& path) {
  return absl::DataLossError(StrCat(path,
                                    " is missing, or does not have the contents that were "
                                    "written. Fix: `residentctl state check` says what it was of"));
}

absl::Status NoStateFolder(const std::string& folder) {
  return absl::NotFoundError(StrCat(folder,
                                    " has no journal. Fix: name the folder that a daemon "
                                    "was given as --state_dir"));
}

absl::Status EventsGone(uint64_t after, uint64_t first) {
  return absl::OutOfRangeError(StrCat("events after revision ", after,
                                      " are no longer kept; the oldest is ", first,
                                      ". Fix: list the operators, then watch from the newest "
                                      "revision on"));
}

// --- Batches ---------------------------------------------------------------------

absl::Status EmptyBatch() {
  return absl::InvalidArgumentError(
      "the batch has no work. Fix: set Batch.tasks or Batch.programs");
}

absl::Status NoTasks() {
  return absl::InvalidArgumentError(
      "OperatorTasks.count is 0. Fix: send at least one task, or no batch");
}

absl::Status TooManyTasks(uint64_t count, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("a batch of ", count, " tasks is over the limit of ",
                                           limit,
                                           ". Fix: send smaller batches or raise "
                                           "--max_batch_tasks"));
}

absl::Status TooManyQueuedAtOnce(uint64_t count, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("a batch of ", count,
                                           " tasks can never be queued: a "
                                           "client may have ",
                                           limit,
                                           " queued. Fix: send smaller "
                                           "batches or raise --max_queued_tasks"));
}

absl::Status TooManyArguments(uint64_t bytes, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("the batch's tasks take ", bytes,
                                           " bytes of descriptors, over the limit of ", limit,
                                           ". Fix: send fewer tasks in a batch"));
}

absl::Status UnknownEnum(const std::string& field, int value, const std::string& known) {
  return absl::InvalidArgumentError(
      StrCat(field, " has the unknown value ", value, ". Fix: send one of ", known));
}

absl::Status EmptyColumn(const ArgumentPlace& place) {
  return absl::InvalidArgumentError(StrCat(
      Text(place), ": the column is empty. Fix: set one of buffer, inline, returned, scalar"));
}

absl::Status ShapeRank(const ArgumentPlace& place, size_t rank) {
  return absl::InvalidArgumentError(StrCat(Text(place), ": ", rank,
                                           " dimensions are over the limit "
                                           "of ",
                                           kMaxRank, ". Fix: merge dimensions"));
}

absl::Status ShapeTooLarge(const ArgumentPlace& place) {
  return absl::InvalidArgumentError(
      StrCat(Text(place),
             ": the tensors' sizes overflow 64 bits. Fix: send the shape of one task's "
             "tensor, in elements"));
}

absl::Status NoDType(const ArgumentPlace& place) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), ": dtype is not set. Fix: set it, e.g. DTYPE_F32"));
}

absl::Status ColumnLength(const ArgumentPlace& place, const std::string& column, uint64_t got,
                          uint64_t count) {
  return absl::InvalidArgumentError(StrCat(Text(place), ": ", column, " has ", got, " values for ",
                                           count, " tasks. Fix: send ",
                                           column == "offsets" ? "none" : "1", " or ", count));
}

absl::Status MixedBuffers(const ArgumentPlace& place, uint64_t first, uint64_t other) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), ": buffers ", first, " and ", other,
             " differ in dtype or shape, and the "
             "column does not set them. Fix: set BufferColumn.dtype and .shape"));
}

absl::Status StridesRank(const ArgumentPlace& place, size_t strides, size_t rank) {
  return absl::InvalidArgumentError(StrCat(Text(place), " has ", strides, " strides and ", rank,
                                           " dimensions. Fix: send one stride for each "
                                           "dimension, or none for a dense tensor"));
}

absl::Status StrideTooLarge(const ArgumentPlace& place, size_t dim, int64_t stride) {
  return absl::InvalidArgumentError(StrCat(Text(place), ": stride ", stride, " of dimension ", dim,
                                           " leads beyond any memory. Fix: send "
                                           "strides in elements that stay in the buffer"));
}

absl::Status NegativeStride(const ArgumentPlace& place, size_t dim, int64_t stride) {
  return absl::InvalidArgumentError(StrCat(Text(place), ": stride ", stride, " of dimension ", dim,
                                           " is negative, which an output's must not be. Fix: "
                                           "send positive strides, and reverse the inputs"));
}

absl::Status OverlappingStrides(const ArgumentPlace& place, const std::string& shape,
                                const std::string& strides) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), ": elements of shape ", shape, " with strides ", strides,
             " may fall on one another, and they are written. Fix: make each stride larger than "
             "what the dimensions with smaller strides reach together"));
}

absl::Status StridedBeyondBuffer(const ArgumentPlace& place, uint64_t task, uint64_t offset,
                                 uint64_t bytes_before, uint64_t bytes_from, uint64_t buffer,
                                 uint64_t buffer_bytes) {
  return absl::InvalidArgumentError(StrCat(
      Text(place), ": task ", task, " reaches from ", bytes_before, " bytes before offset ", offset,
      " to ", bytes_from, " bytes after it, beyond buffer ", buffer, " of ", buffer_bytes,
      " bytes. Fix: change offset, shape or strides so that every element "
      "lies in the buffer"));
}

absl::Status OffsetAlignment(const ArgumentPlace& place, uint64_t task, uint64_t offset,
                             uint32_t element_bytes) {
  return absl::InvalidArgumentError(StrCat(Text(place), ": byte offset ", offset, " of task ", task,
                                           " is not a multiple of the element's ", element_bytes,
                                           " bytes. Fix: send offsets in bytes, aligned to the "
                                           "element"));
}

absl::Status BeyondBuffer(const ArgumentPlace& place, uint64_t task, uint64_t offset,
                          uint64_t tensor_bytes, uint64_t buffer, uint64_t buffer_bytes) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), ": task ", task, "'s tensor of ", tensor_bytes, " bytes at offset ",
             offset, " ends beyond buffer ", buffer, " of ", buffer_bytes,
             " bytes. Fix: check offsets, stride_bytes and shape, or allocate a larger buffer"));
}

absl::Status InlineSize(const ArgumentPlace& place, uint64_t got, uint64_t one, uint64_t all) {
  return absl::InvalidArgumentError(StrCat(Text(place), ": inline data has ", got,
                                           " bytes. Fix: send ", all, " (all tasks) or ", one,
                                           " (one task's, shared by all)"));
}

absl::Status ScalarKind(const ArgumentPlace& place, const std::string& dtype, bool wants_float,
                        bool has_nan) {
  return absl::InvalidArgumentError(
      wants_float ? StrCat(Text(place), " is a ", dtype,
                           " and got integers. Fix: send "
                           "ScalarColumn.f64")
                  : StrCat(Text(place), " is a ", dtype, " and got floating-point numbers",
                           has_nan ? " (NaN among them)" : "", ". Fix: send ScalarColumn.i64"));
}

absl::Status ScalarBoth(const ArgumentPlace& place) {
  return absl::InvalidArgumentError(
      StrCat(Text(place),
             ": both f64 and i64 are set, or neither. Fix: set the one that the "
             "parameter takes"));
}

absl::Status ScalarRange(const ArgumentPlace& place, uint64_t task, const std::string& value,
                         const std::string& dtype) {
  return absl::InvalidArgumentError(StrCat(Text(place), ": task ", task, "'s value ", value,
                                           " does not fit ", dtype,
                                           ". Fix: send a value in its range"));
}

absl::Status WindowFull(uint64_t bytes, uint64_t window_bytes, bool ever_fits) {
  return absl::ResourceExhaustedError(
      ever_fits ? StrCat("staging memory is full: the batch carries ", bytes,
                         " bytes inline or "
                         "returned, of ",
                         window_bytes,
                         " that all clients share. Fix: wait for "
                         "results before sending more, keep data in buffers, or raise "
                         "--window_mib")
                : StrCat("the batch carries ", bytes, " bytes inline or returned, more than the ",
                         window_bytes,
                         " of staging memory. Fix: send smaller batches, keep data "
                         "in buffers, or raise --window_mib"));
}

// --- FLUX ------------------------------------------------------------------------

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
  return absl::InvalidArgumentError(StrCat("programs names the operator ", Quote(name),
                                           " and brings programs of its own. Fix: send operator, "
                                           "or bytecode with offsets and program_index"));
}

absl::Status FluxVersionAlone(uint32_t version) {
  return absl::InvalidArgumentError(StrCat("programs.version is ", version,
                                           " and no operator is named. Fix: name the installed "
                                           "program, or leave out version"));
}

absl::Status FluxCycles(uint64_t cycles, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("FluxPrograms.max_cycles is ", cycles,
                                           ", over the limit of ", limit,
                                           ". Fix: send less or raise --flux_max_cycles"));
}

// --- Installing and changing operators --------------------------------------------

absl::Status TooManyInstalls(uint64_t limit) {
  return absl::ResourceExhaustedError(
      StrCat(limit,
             " installs are under way, the limit. Fix: send it again once one has ended, or raise "
             "--max_installs"));
}

absl::Status InstallNoHeader() {
  return absl::InvalidArgumentError(
      "an install begins with its header, and there is none. Fix: send InstallRequest.header "
      "first");
}

absl::Status InstallSecondHeader() {
  return absl::InvalidArgumentError(
      "a second header. Fix: install one version with each call, and send its header once");
}

absl::Status InstallEmptyMessage() {
  return absl::InvalidArgumentError(
      "an InstallRequest without a part that this daemon knows. Fix: set header, file or example");
}

absl::Status InstallNoName() {
  return absl::InvalidArgumentError(
      "InstallHeader.name is empty. Fix: letters, digits, '_', '.', '-', beginning with a letter");
}

absl::Status InstallNoKind() {
  return absl::InvalidArgumentError(
      "the header does not say what to install. Fix: set one of main_file, expression, bytecode "
      "and object_file");
}

absl::Status InstallTextTooLong(const std::string& field, size_t bytes, size_t limit) {
  return absl::InvalidArgumentError(StrCat("InstallHeader.", field, " of ", bytes,
                                           " bytes is over the limit of ", limit,
                                           ". Fix: send a shorter one"));
}

absl::Status InstallNotSent(uint64_t limit_ms) {
  return absl::DeadlineExceededError(
      StrCat("the install was not sent whole within ", limit_ms,
             " ms. Fix: have files and examples ready before the call, and half-close after the "
             "last; or raise --max_install_upload_ms"));
}

absl::Status InstallFileName(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(StrCat("file name ", Quote(name), ": ", what,
                                           ". Fix: name it as the file that includes it does, as "
                                           "in util/math.h"));
}

absl::Status InstallUnexpectedFile(const std::string& name) {
  return absl::InvalidArgumentError(StrCat("file ", Quote(name),
                                           " comes with an expression or bytecode, which have "
                                           "none. Fix: leave it out, or set main_file"));
}

absl::Status InstallMissingFile(const std::string& name, size_t files) {
  return absl::InvalidArgumentError(StrCat("the header names the file ", Quote(name),
                                           ", which is not among the ", files,
                                           " that were sent. Fix: send it as an InstallFile of "
                                           "exactly that name"));
}

absl::Status InstallTooManyFiles(uint64_t limit) {
  return absl::InvalidArgumentError(
      StrCat("more than ", limit, " files, the limit of one install. Fix: join some of them"));
}

absl::Status InstallTooManyBytes(const std::string& what, uint64_t bytes, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat(what, " of ", bytes, " bytes or more; the limit is ",
                                           limit, " for all files of one install. Fix: ",
                                           what == "source"
                                               ? "leave out what the operator does not use; tables "
                                                 "belong into buffers"
                                               : "strip it, or send the source"));
}

absl::Status InstallTooManyExamples(uint64_t limit) {
  return absl::InvalidArgumentError(
      StrCat("more than ", limit,
             " examples, the limit of one install. Fix: keep those that tell the most"));
}

absl::Status ExampleTolerance(size_t example) {
  return absl::InvalidArgumentError(
      StrCat("example ", example + 1,
             ": a tolerance is negative or no number. Fix: 0 or more, as in 1e-5"));
}

absl::Status ExampleTooManyValues(size_t example, size_t values, size_t limit) {
  return absl::InvalidArgumentError(StrCat("example ", example + 1, " has ", values,
                                           " values, and no operator has more than ", limit,
                                           " parameters. Fix: send one for each parameter"));
}

absl::Status ExampleDType(size_t example, size_t value, int dtype) {
  return absl::InvalidArgumentError(StrCat(PlaceOf(example, value), ": dtype ", dtype,
                                           " is none. Fix: set one of resident.v1.DType"));
}

absl::Status ExampleRank(size_t example, size_t value, size_t rank, size_t limit) {
  return absl::InvalidArgumentError(StrCat(PlaceOf(example, value), ": ", rank,
                                           " dimensions are over the limit of ", limit,
                                           ". Fix: give a shape that the signature takes"));
}

absl::Status ExampleTooLarge(size_t example, size_t value, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat(PlaceOf(example, value),
                                           " brings the examples over the limit of ", limit,
                                           " bytes for one install, outputs included. Fix: send "
                                           "smaller tensors"));
}

absl::Status ExampleSize(size_t example, size_t value, uint64_t got, uint64_t wanted) {
  return absl::InvalidArgumentError(StrCat(
      PlaceOf(example, value), ": data of ", got, " bytes, and dtype and shape make ", wanted,
      ". Fix: send dense elements, twice as many of an inout whose outcome is expected, or none "
      "for an output that is compared with the active version's"));
}

absl::Status PromoteShare(const std::string& field, double percent) {
  return absl::InvalidArgumentError(
      StrCat(field, " of ", percent, " is no percentage. Fix: send 0 to 100"));
}

absl::Status BakeThreshold(const std::string& field, double value, const std::string& range) {
  return absl::InvalidArgumentError(StrCat("BakeOptions.", field, " of ", value,
                                           " is no threshold. Fix: send ", range,
                                           ", where 0 is the daemon's own"));
}

absl::Status BakeTime(uint64_t time_ms, uint64_t limit_ms) {
  return absl::InvalidArgumentError(StrCat("BakeOptions.time_ms of ", time_ms,
                                           " is over the limit of ", limit_ms,
                                           ". Fix: send less; 0 is the daemon's --bake_time"));
}

absl::Status TooManyAuditEvents(uint64_t count, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("count of ", count, " is over the limit of ", limit,
                                           ". Fix: ask for fewer and go on with before_revision"));
}

absl::Status TooManyWatchers(uint64_t limit) {
  return absl::ResourceExhaustedError(
      StrCat("there are ", limit,
             " Operators.Watch streams, the limit. Fix: end one, or share one among those who "
             "look; Operators.Audit lists what was missed"));
}

// --- Buffers ---------------------------------------------------------------------

absl::Status UnknownBuffer(uint64_t id) {
  return absl::NotFoundError(StrCat("no buffer ", id,
                                    " in this session. Fix: name a buffer that "
                                    "this session allocated and has not freed, or a durable one "
                                    "(Buffers.List); send the session's id as metadata "
                                    "\"resident-session\""));
}

absl::Status LostBuffer(uint64_t id, uint32_t device, const std::string& cause) {
  return absl::FailedPreconditionError(StrCat("buffer ", id, " was lost when the engine of device ",
                                              device, " restarted (", cause,
                                              "). Fix: free it, "
                                              "allocate it again and upload its contents; durable "
                                              "buffers are restored by themselves"));
}

absl::Status OtherDevicesBuffer(uint64_t id, uint32_t device, uint32_t batch_device) {
  return absl::FailedPreconditionError(StrCat("buffer ", id, " is on device ", device,
                                              " and the batch runs on device ", batch_device,
                                              ". Fix: send the batch to the buffers' device, and "
                                              "allocate all of its buffers there"));
}

absl::Status BadBufferType(const std::string& what) {
  return absl::InvalidArgumentError(StrCat(what, ". Fix: send a dtype and a shape of at most ",
                                           kMaxRank, " dimensions, each at least 1"));
}

absl::Status BufferNameTooLong(size_t bytes, size_t limit) {
  return absl::InvalidArgumentError(StrCat("a buffer's name of ", bytes,
                                           " bytes is over the limit of ", limit,
                                           ". Fix: send a shorter one"));
}

absl::Status TooManyBuffers(uint64_t limit, bool durable) {
  return absl::ResourceExhaustedError(StrCat(durable ? "there are " : "this session has ", limit,
                                             durable ? " durable buffers" : " buffers",
                                             ", the limit. Fix: free some or raise --max_buffers"));
}

absl::Status ClientMemory(uint64_t bytes, uint64_t used, uint64_t limit_mib) {
  return absl::ResourceExhaustedError(StrCat("a buffer of ", bytes, " bytes, with ", used,
                                             " in use by this session, is over the client's ",
                                             limit_mib,
                                             " MiB. Fix: free buffers or raise "
                                             "--max_client_memory_mib"));
}

absl::Status NotDurable(uint64_t id) {
  return absl::FailedPreconditionError(StrCat("buffer ", id,
                                              " is not durable. Fix: allocate it "
                                              "with durable set"));
}

absl::Status BeyondBufferEnd(uint64_t id, uint64_t offset, uint64_t bytes, uint64_t size) {
  return absl::OutOfRangeError(StrCat(bytes, " bytes at offset ", offset, " end beyond buffer ", id,
                                      " of ", size, " bytes. Fix: stay within the buffer"));
}

absl::Status NoUpload() {
  return absl::InvalidArgumentError(
      "the upload's stream had no message. Fix: send buffer_id and data in the first one");
}

absl::Status SharedMemoryDisabled() {
  return absl::FailedPreconditionError(
      "shared memory is disabled. Fix: start the daemon with --allow_shared_memory, or upload");
}

absl::Status SharedMemoryName(const std::string& name) {
  return absl::InvalidArgumentError(
      StrCat(Quote(name),
             " cannot name a shared-memory object. Fix: send what was given to "
             "shm_open: a slash, then 1 to 254 bytes without a slash"));
}

absl::Status SharedMemoryMissing(const std::string& name) {
  return absl::NotFoundError(StrCat("no shared-memory object ", Quote(name),
                                    " on the daemon's machine. Fix: create it with shm_open, on "
                                    "the same machine and in the same IPC namespace"));
}

absl::Status SharedMemoryDenied(const std::string& name, const std::string& why) {
  return absl::PermissionDeniedError(StrCat("shared-memory object ", Quote(name), ": ", why,
                                            ". Fix: let the daemon's user read and write it"));
}

absl::Status SharedMemorySize(const std::string& name, uint64_t asked, uint64_t object) {
  return absl::InvalidArgumentError(StrCat("size_bytes is ", asked, " and shared-memory object ",
                                           Quote(name), " has ", object,
                                           " bytes. Fix: send 1 to the object's size"));
}

absl::Status SharedMemoryShape(const std::string& shape, const std::string& dtype, uint64_t size) {
  return absl::InvalidArgumentError(StrCat("shape ", shape, " of ", dtype,
                                           " does not fit size_bytes = ", size,
                                           ". Fix: send a shape that does"));
}

absl::Status TransferFailed(const std::string& what, const std::string& cause) {
  return absl::UnavailableError(
      StrCat(what, " broke off: ", cause, ". Fix: wait until the device serves and send it again"));
}

// --- Examples of an install, and what a canary finds -------------------------------

absl::Status TooManyExamples(uint64_t count, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat(count, " examples are more than the limit of ", limit,
                                           " for one install. Fix: send the ", limit,
                                           " that tell the most"));
}

absl::Status InExample(size_t example, const absl::Status& why) {
  return absl::Status(why.code(), StrCat("example ", example + 1, ": ", why.message()));
}

absl::Status ExampleData(const ArgumentPlace& place, uint64_t got, const std::string& takes) {
  return absl::InvalidArgumentError(StrCat(Text(place), ": the example has ", got,
                                           " bytes of data for it, and it takes ", takes,
                                           ". Fix: send dense elements of its dtype and shape"));
}

absl::Status ExampleScalarShape(const ArgumentPlace& place, const std::string& shape) {
  return absl::InvalidArgumentError(StrCat(Text(place), ": a scalar has no shape, and ", shape,
                                           " was sent. Fix: leave the shape of scalars empty"));
}

absl::Status ExampleExpectations(const std::string& with, const std::string& without) {
  return absl::InvalidArgumentError(
      StrCat("output '", with, "' has expected data and output '", without,
             "' has none. Fix: send data for all outputs, or for none to compare with the active "
             "version"));
}

absl::Status ExampleTolerance(double relative, double absolute) {
  return absl::InvalidArgumentError(
      StrCat("tolerances ", relative, " (relative) and ", absolute,
             " (absolute): both must be finite and not negative. Fix: send 0 and 0 for the "
             "defaults of the dtypes"));
}

absl::Status ExampleTooLarge(uint64_t bytes, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("its tensors have ", bytes,
                                           " bytes, which is more than the limit of ", limit,
                                           ". Fix: send smaller tensors"));
}

namespace {

std::string Text(const CanaryPlace& place) {
  return StrCat(place.operator_name, ", ", place.generated ? "generated example " : "example ",
                place.example + 1, " (", place.run, place.shapes.empty() ? "" : "; ", place.shapes,
                "): ");
}

}  // namespace

absl::Status CanaryUnavailable(const absl::Status& why) {
  return absl::UnavailableError(StrCat("the canary's engine cannot be used: ", why.message(),
                                       ". Fix: see the daemon's log, and try again"));
}

absl::Status CanaryLoad(const std::string& operator_name, const std::string& why) {
  return absl::InvalidArgumentError(StrCat(operator_name, ": a canary cannot load it: ", why,
                                           ". Fix: an operator has no static state and runs "
                                           "nothing when it is loaded"));
}

absl::Status CanaryFault(const CanaryPlace& place, const std::string& cause) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), "it ended the engine: ", cause,
             ". Fix: check its addresses and indices; a canary checks what goes through [] and "
             "at(), and not what goes through data()"));
}

absl::Status CanaryNeverReturned(const CanaryPlace& place, int64_t limit_ms) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), "it has not returned within its time limit of ", limit_ms,
             " ms. Fix: see that every loop ends and that all threads come to every barrier; if "
             "it only needs longer, raise limits.task_time_ms"));
}

absl::Status CanaryTaskFailed(const CanaryPlace& place, const std::string& status,
                              uint32_t detail) {
  return absl::InvalidArgumentError(StrCat(Text(place), "it ended with ", status, ", detail ",
                                           detail,
                                           ". Fix: see what it calls fail() for; examples must be "
                                           "calls that succeed"));
}

absl::Status CanaryOutOfBounds(const CanaryPlace& place, const std::string& what) {
  return absl::InvalidArgumentError(StrCat(Text(place), "it ", what));
}

absl::Status CanaryRedZone(const CanaryPlace& place, const std::string& parameter,
                           const std::string& where, uint64_t distance) {
  return absl::InvalidArgumentError(StrCat(
      Text(place), "it wrote outside of its tensors, ", distance, " bytes ", where, " '", parameter,
      "'. Fix: check its indices; use [] or at(), and the message names the element"));
}

absl::Status CanaryInputWritten(const CanaryPlace& place, const std::string& parameter,
                                uint64_t element) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), "it wrote to element ", element, " of its input '", parameter,
             "'. Fix: take inputs as tensor<const T>, or declare the parameter inout"));
}

absl::Status CanaryUnwritten(const CanaryPlace& place, const std::string& parameter, uint64_t first,
                             uint64_t unwritten, uint64_t elements) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), "it left ", unwritten, " of the ", elements, " elements of '", parameter,
             "' unwritten, the first is element ", first,
             ". Fix: write every element of an output; block.share(n) gives each chunk its part"));
}

absl::Status CanaryDiffers(const CanaryPlace& place, const CanaryDifference& difference) {
  return absl::InvalidArgumentError(StrCat(
      Text(place), "'", difference.parameter, "' differs from ", difference.against, ": element ",
      difference.first, " is ", difference.got, ", not ", difference.wanted, "; ",
      difference.differing, " of ", difference.elements, " elements differ, by at most ",
      difference.max_error, ". Fix: correct the operator, or the example and its tolerance"));
}

absl::Status CanaryNoReference(const CanaryPlace& place, const absl::Status& why) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), "the active version's outputs were to be what is expected, but ",
             why.message(), ". Fix: send expected outputs with the example"));
}

// --- Sessions, devices, the daemon -----------------------------------------------

absl::Status NoSession() {
  return absl::UnauthenticatedError(
      "the call has no session. Fix: open one (Sessions.Open) and send its id as metadata "
      "\"resident-session\"");
}

absl::Status UnknownSession(const std::string& id) {
  return absl::UnauthenticatedError(StrCat("no session ", Quote(id),
                                           ": it has ended or never was. "
                                           "Fix: open one (Sessions.Open) and keep its stream "
                                           "open"));
}

absl::Status TooManySessions(uint64_t limit) {
  return absl::ResourceExhaustedError(StrCat("there are ", limit,
                                             " sessions, the limit. Fix: end "
                                             "one or raise --max_sessions"));
}

absl::Status TooManyPeers(uint64_t limit) {
  return absl::ResourceExhaustedError(StrCat("there are ", limit,
                                             " connections with work, the "
                                             "limit. Fix: send less at once or raise "
                                             "--max_sessions"));
}

absl::Status ClientNameTooLong(size_t bytes, size_t limit) {
  return absl::InvalidArgumentError(StrCat("client_name of ", bytes, " bytes is over the limit of ",
                                           limit, ". Fix: send a shorter one"));
}

absl::Status UnknownDevice(uint64_t device, size_t devices) {
  return absl::NotFoundError(
      StrCat("no device ", device,
             ". Fix: ", devices == 1 ? "send 0, the only one" : StrCat("send 0 to ", devices - 1),
             " (Admin.Status lists them)"));
}

absl::Status DeviceUnavailable(uint32_t device, const std::string& detail) {
  return absl::UnavailableError(StrCat("device ", device, " has no engine at the moment",
                                       detail.empty() ? "" : StrCat(" (", detail, ")"),
                                       ". Fix: send it again in a second; Admin.Status tells its "
                                       "state"));
}

absl::Status NoDeviceAvailable() {
  return absl::UnavailableError(
      "no device has an engine at the moment. Fix: send it again in a second; Admin.Status tells "
      "why");
}

absl::Status Draining() {
  return absl::UnavailableError(
      "the daemon is draining and takes no new work. Fix: send it to another daemon, or again "
      "after the restart");
}

absl::Status Cancelled() {
  return absl::CancelledError("the call was cancelled. Fix: none needed if that was intended");
}

absl::Status DeadlineExceeded() {
  return absl::DeadlineExceededError(
      "the deadline passed before the tasks reached the device. Fix: allow more time or send "
      "smaller batches");
}

absl::Status DrainUnfinished(uint64_t remaining) {
  return absl::DeadlineExceededError(StrCat(remaining,
                                            " tasks are left. Fix: call Drain again, or "
                                            "stop the daemon, which answers them UNAVAILABLE"));
}

// --- Who may ----------------------------------------------------------------------

absl::Status NoCredential() {
  return absl::UnauthenticatedError(
      "the call has no credential, and this daemon serves nobody without one. Fix: send a token "
      "(residentctl --token_file) or a client certificate (--tls_cert and --tls_key)");
}

absl::Status NoBearer() {
  return absl::UnauthenticatedError(
      "the metadata \"authorization\" has no token. Fix: send \"Bearer \" and the token");
}

absl::Status ManyTokens() {
  return absl::UnauthenticatedError(
      "the call has the metadata \"authorization\" more than once. Fix: send one token");
}

absl::Status TokenTooLong(size_t bytes, size_t limit) {
  return absl::UnauthenticatedError(StrCat("the token has ", bytes, " bytes, and none has over ",
                                           limit, ". Fix: send the token alone"));
}

absl::Status UnknownToken() {
  return absl::UnauthenticatedError(
      "the token is not known here. Fix: have the line that residentctl token new printed added "
      "to the daemon's token file (--token_file)");
}

absl::Status RevokedToken(const std::string& identity) {
  return absl::UnauthenticatedError(StrCat("the token of ", Quote(identity),
                                           " was taken out of the token file. Fix: call with a "
                                           "token that is in it"));
}

absl::Status BadCertificateName(const std::string& name) {
  return absl::UnauthenticatedError(
      StrCat("the client certificate's name ", Quote(name),
             " is not an identity. Fix: use a certificate whose URI or common name is 1 to 256 "
             "printable ASCII characters without spaces, and not 'residentd'"));
}

absl::Status LacksRole(const std::string& identity, const std::string& roles,
                       const std::string& call) {
  return absl::PermissionDeniedError(StrCat("identity ", Quote(identity),
                                            " does not have the role ", roles, ", which ", call,
                                            " needs. Fix: give it the role in the daemon's policy "
                                            "(--policy), or call as somebody who has it"));
}

absl::Status LacksOperator(const std::string& identity, const std::string& role,
                           const std::string& operator_name) {
  return absl::PermissionDeniedError(StrCat(
      "identity ", Quote(identity), " may not ", role == "install" ? "change" : "run", " operator ",
      Quote(operator_name), ". Fix: add a prefix of its name to the identity's operators.", role,
      " in the daemon's policy (--policy)"));
}

absl::Status UnlistedMethod(const std::string& identity, const std::string& method) {
  return absl::PermissionDeniedError(StrCat("identity ", Quote(identity), " may not call ",
                                            Quote(method),
                                            ": nobody may. Fix: call a method of resident.v1"));
}

absl::Status OthersSession(const std::string& identity) {
  return absl::PermissionDeniedError(StrCat("the session was not opened by ", Quote(identity),
                                            ". Fix: open a session (Sessions.Open) with the "
                                            "credential that uses it"));
}

absl::Status TaskQuota(const std::string& identity, uint64_t tasks, uint64_t in_flight,
                       uint64_t quota) {
  return absl::ResourceExhaustedError(
      StrCat(tasks, " tasks with ", in_flight, " in flight are more than the quota ", quota,
             " (tasks_in_flight) of identity ", Quote(identity),
             ". Fix: wait for answers, send smaller batches, or raise the quota in the daemon's "
             "policy (--policy)"));
}

absl::Status BufferQuota(const std::string& identity, uint64_t bytes, uint64_t used,
                         uint64_t quota) {
  return absl::ResourceExhaustedError(
      StrCat(bytes, " bytes with ", used, " in use are more than the quota ", quota,
             " (buffer_mib, in bytes) of identity ", Quote(identity),
             ". Fix: free buffers, or raise the quota in the daemon's policy (--policy)"));
}

absl::Status InstallQuota(const std::string& identity, uint64_t quota, int64_t wait_s) {
  return absl::ResourceExhaustedError(
      StrCat("identity ", Quote(identity), " has used its quota of ", quota,
             " installs a minute (installs_per_minute). Fix: wait ", wait_s,
             " s, or raise the quota in the daemon's policy (--policy)"));
}

}  // namespace resident::errors
