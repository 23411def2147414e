#include "runtime/graph/finding.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace resident::graph {
namespace {

constexpr CodeInfo kCodes[] = {
    {Code::kUnparsable, "the file or message cannot be parsed"},
    {Code::kFormatVersion, "the version of the format is not supported"},
    {Code::kDuplicateName, "two things of one kind have the same name"},
    {Code::kUnknownName, "a tensor, scalar, counter, operator or version does not exist"},
    {Code::kIdIsNotIndex, "an id is not the index of what has it"},
    {Code::kOverLimit, "the graph is over a limit"},
    {Code::kEmpty, "the graph has no nodes, or a part that must not be empty is empty"},
    {Code::kUnknownField, "a field is unknown"},
    {Code::kBadDimension, "a dimension is zero or negative"},
    {Code::kSizeOverflow, "a size overflows"},
    {Code::kOutsideBuffer, "a view or a row lies outside its memory"},
    {Code::kMisaligned, "an offset is misaligned"},
    {Code::kDType, "the operator does not accept the dtype"},
    {Code::kRank, "the operator does not accept the number of dimensions"},
    {Code::kShape, "a shape disagrees with the signature"},
    {Code::kElementsCoincide, "elements of an output may share memory"},
    {Code::kAlias, "an alias is of another kind, of an alias, or of nothing"},
    {Code::kUnboundedDimension, "a dynamic dimension has no usable bound"},
    {Code::kNotANumber, "a parameter is not a number"},
    {Code::kScalarRange, "a scalar is outside of its range"},
    {Code::kNegativeStride, "an output has a negative stride"},
    {Code::kArity, "wrong number of arguments"},
    {Code::kArgument, "an argument is missing, unknown or of the wrong kind"},
    {Code::kScalarDType, "a scalar argument has the wrong dtype"},
    {Code::kNotCallable, "the operator cannot be called from a graph"},
    {Code::kReadBeforeWrite, "a tensor is read before anything is written to it"},
    {Code::kReadOnly, "a weight, constant or input is written"},
    {Code::kOutputNotWritten, "an output is never written"},
    {Code::kWrittenInPart, "elements are read or returned that are never written"},
    {Code::kWrittenTwice, "one node writes elements twice"},
    {Code::kInPlace, "an output overlaps an input of the same node"},
    {Code::kReadAhead, "rows of a state are read before the step appends them"},
    {Code::kDeadNode, "nothing uses what a node writes", true},
    {Code::kCycle, "the waits form a cycle"},
    {Code::kNoProducer, "a node waits for a counter that no node signals"},
    {Code::kThreshold, "a threshold is above the number of producers"},
    {Code::kPartialWait, "a node waits for some of several producers"},
    {Code::kSelfWait, "a node waits for its own counter"},
    {Code::kCounterStart, "a counter does not start at 0"},
    {Code::kReadNotOrdered, "a read is not ordered after the write that it needs"},
    {Code::kOverwriteNotOrdered, "a write is not ordered after a read of the old value"},
    {Code::kWritesNotOrdered, "two writes are not ordered"},
    {Code::kJointCycle, "the waits and the order of the blocks together form a cycle"},
    {Code::kBlock, "a block is out of range, or only some nodes have one"},
    {Code::kTooManyWaits, "a node has too many waits"},
    {Code::kStepEdge, "a step is not ordered after the step before it"},
    {Code::kStop, "the loop stops on something that is not a token"},
    {Code::kUpdate, "an update leaves the range of its scalar"},
    {Code::kStreamRecords, "the loop has more steps than a stream has records"},
    {Code::kDeviceMemory, "the graph needs more memory than a device has"},
    {Code::kStale, "operators of a loaded graph have changed, and it does not fit them"},
};
static_assert(std::is_sorted(std::begin(kCodes), std::end(kCodes),
                             [](const CodeInfo& a, const CodeInfo& b) { return a.code < b.code; }));

bool IsWarning(Code code) {
  const auto* const found =
      std::lower_bound(std::begin(kCodes), std::end(kCodes), code,
                       [](const CodeInfo& info, Code wanted) { return info.code < wanted; });
  return found != std::end(kCodes) && found->code == code && found->warning;
}

}  // namespace

absl::Span<const CodeInfo> CodeTable() { return kCodes; }

std::string CodeName(Code code) { return absl::StrCat("GRAPH_E", static_cast<int>(code)); }

void Findings::Add(Code code, Place place, std::string message) {
  const bool warning = IsWarning(code);
  if ((warning ? warnings_ : errors_)++ >= kMaxFindings) return;
  list_.push_back(
      {code, warning, std::move(place.node), std::move(place.tensor), std::move(message)});
}

}  // namespace resident::graph
