// Errors of the client's GraphBuilder (client/graph_builder.h): of a graph that a program
// describes.
//
// Thread safety: functions without state.
#ifndef RESIDENT_CLIENT_ERRORS_H_
#define RESIDENT_CLIENT_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace resident::errors {

// A call of an operator. Messages begin with "node 'attend' (attention): ".
struct CallRef {
  const std::string& node;
  const std::string& operator_name;
};

// `nearest`: a similar name, or empty.
absl::Status CallOfUnknownOperator(const CallRef& call, const std::string& nearest);
// `names`: the parameters that are tensors and have no value by name.
absl::Status CallInputCount(const CallRef& call, size_t given, const std::string& names,
                            size_t wanted);
// `names`: the parameters.
absl::Status CallUnknownParameter(const CallRef& call, const std::string& parameter,
                                  const std::string& names);
absl::Status CallParameterTwice(const CallRef& call, const std::string& parameter);
absl::Status CallParameterMissing(const CallRef& call, const std::string& parameter,
                                  const std::string& kind);
// `value`: "a tensor"; `kind`: "a scalar of i64".
absl::Status CallWrongValue(const CallRef& call, const std::string& parameter,
                            const std::string& value, const std::string& kind);
// `inputs`: the shapes that are known.
absl::Status CallShapeUnknown(const CallRef& call, const std::string& parameter,
                              const std::string& inputs);
// A call whose number of results is not one.
absl::Status CallResultCount(const CallRef& call, size_t results);

// `tensor`: its name. `what`: "has 2 dimensions, and dimension 3 is sliced".
absl::Status BadGraphTensor(const std::string& tensor, const std::string& what,
                            const std::string& fix);
// `place`: "output 'y'".
absl::Status NotOfThisBuilder(const std::string& place, const std::string& what);
absl::Status GraphNameTwice(const std::string& kind, const std::string& name);
absl::Status DimensionNotAScalar(const std::string& place);
absl::Status StreamWithoutRecords(const std::string& stream);
absl::Status LoopMissing(const std::string& what);
// All errors of a graph, one on each line.
absl::Status GraphNotBuilt(const std::string& graph, absl::Span<const absl::Status> errors,
                           uint64_t omitted);

}  // namespace resident::errors

#endif  // RESIDENT_CLIENT_ERRORS_H_
