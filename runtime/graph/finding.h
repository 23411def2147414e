// Findings: what is wrong with a graph, each with a stable code.
//
// A finding names the node and the tensor that it concerns, says what is wrong with the values,
// and ends with "Fix: ...". A check does not end at the first finding: up to kMaxFindings errors
// and as many warnings are kept, and all of them are counted. docs/graph_format.md describes every
// code; a test compares it with CodeTable().
//
// Thread safety: none.
//
//   Findings findings;
//   findings.Add(Code::kUnknownName, {.node = "#3"}, "there is no tensor 'x'. Fix: ...");
//   if (findings.errors() > 0) ...
#ifndef RESIDENT_RUNTIME_GRAPH_FINDING_H_
#define RESIDENT_RUNTIME_GRAPH_FINDING_H_

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace resident::graph {

// The numbers are part of the API: they are never reused for something else.
enum class Code : uint16_t {
  // Form.
  kUnparsable = 101,
  kFormatVersion = 102,
  kDuplicateName = 103,
  kUnknownName = 104,
  kIdIsNotIndex = 105,
  kOverLimit = 106,
  kEmpty = 107,
  kUnknownField = 108,
  // Tensors and scalars.
  kBadDimension = 201,
  kSizeOverflow = 202,
  kOutsideBuffer = 203,
  kMisaligned = 204,
  kDType = 205,
  kRank = 206,
  kShape = 207,
  kElementsCoincide = 208,
  kAlias = 209,
  kUnboundedDimension = 210,
  kNotANumber = 211,
  kScalarRange = 212,
  kNegativeStride = 213,
  // Calls of operators.
  kArity = 301,
  kArgument = 302,
  kScalarDType = 303,
  kNotCallable = 304,
  // Meaning.
  kReadBeforeWrite = 401,
  kReadOnly = 402,
  kOutputNotWritten = 403,
  kWrittenInPart = 404,
  kWrittenTwice = 405,
  kInPlace = 406,
  kReadAhead = 407,
  kDeadNode = 408,
  // Explicit order.
  kCycle = 501,
  kNoProducer = 502,
  kThreshold = 503,
  kPartialWait = 504,
  kSelfWait = 505,
  kCounterStart = 506,
  kReadNotOrdered = 507,
  kOverwriteNotOrdered = 508,
  kWritesNotOrdered = 509,
  kJointCycle = 510,
  kBlock = 511,
  kTooManyWaits = 512,
  // The loop.
  kStepEdge = 601,
  kStop = 602,
  kUpdate = 603,
  kStreamRecords = 604,
  // The devices, and loaded graphs.
  kDeviceMemory = 701,
  kStale = 704,
};

struct CodeInfo {
  Code code;
  // A few words for tables: "tensor read before any write".
  const char* title;
  bool warning = false;
};

// All codes, ascending.
absl::Span<const CodeInfo> CodeTable();

// "GRAPH_E203".
std::string CodeName(Code code);

// Errors, and separately warnings, that are kept.
inline constexpr size_t kMaxFindings = 100;

struct Finding {
  Code code;
  bool warning = false;
  std::string node;
  std::string tensor;
  std::string message;
};

class Findings {
 public:
  // What a finding concerns; empty: none.
  struct Place {
    std::string node = {};
    std::string tensor = {};
  };

  // `message` ends with "Fix: ...".
  void Add(Code code, Place place, std::string message);
  // Whether Add would still keep an error. Callers may then omit the message's text.
  bool keeps_errors() const { return errors_ < kMaxFindings; }
  // Counts an error whose text is not needed any more. REQUIRES: !keeps_errors().
  void CountError() {
    assert(!keeps_errors());
    ++errors_;
  }

  const std::vector<Finding>& list() const { return list_; }
  uint64_t errors() const { return errors_; }
  uint64_t warnings() const { return warnings_; }

 private:
  std::vector<Finding> list_;
  uint64_t errors_ = 0;
  uint64_t warnings_ = 0;
};

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_FINDING_H_
