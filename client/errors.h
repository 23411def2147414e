// Errors of the client's graph builder and of model files that it reads.
//
// Thread safety: functions without state.
#ifndef RESIDENT_CLIENT_ERRORS_H_
#define RESIDENT_CLIENT_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

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
// Of a call that has not one result.
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

// A file of the folder that cannot be used. `what`: "is not valid JSON".
absl::Status BadModelFile(const std::string& path, const std::string& what, const std::string& fix);
absl::Status ModelFileTooLarge(const std::string& path, uint64_t bytes, uint64_t limit);
// A key of config.json. `what`: "is -1 and may be 1 to 1024".
absl::Status BadModelValue(const std::string& key, const std::string& what,
                           const std::string& file = "config.json");
// A key whose value the importer cannot express. `value`: as JSON. `supported`: "'silu'".
absl::Status UnsupportedModelValue(const std::string& key, const std::string& value,
                                   const std::string& supported);
absl::Status MissingModelTensor(const std::string& name);
// `other`: the name that the files have, which has another prefix.
absl::Status ModelTensorPrefix(const std::string& name, const std::string& other);
// A tensor that a model does not need, with a dtype of the format that residentd does not have.
absl::Status UnsupportedModelTensor(const std::string& name, const std::string& dtype);
// `shape`, `wanted`: "8x64". `because`: the keys of config.json that determine the shape.
absl::Status ModelTensorShape(const std::string& name, const std::string& shape,
                              const std::string& wanted, const std::string& because);
absl::Status ModelTensorDType(const std::string& name, const std::string& dtype);
// A tensor that a model of this form does not have, so that the graph would compute something else.
absl::Status UnknownModelTensor(const std::string& name, const std::string& architecture);
absl::Status ModelTensorTwice(const std::string& name, const std::string& first,
                              const std::string& second);
absl::Status ModelTensorName(const std::string& name, uint64_t limit);
// A weight that is not finite, or above the limit, in absolute value, of those that can be
// quantized.
absl::Status WeightOutOfRange(const std::string& tensor, uint64_t row, double limit);
// A file that has other tensors than when the graph was made.
absl::Status ModelFileChanged(const std::string& path);
// Options of the conversion.
absl::Status ContextLength(uint64_t wanted, uint64_t limit, const std::string& why);
absl::Status PromptLength(uint64_t wanted, uint64_t limit);
absl::Status BatchOfTexts(uint64_t wanted, uint64_t limit);
// `what`: "has no effect without --sample".
absl::Status BadModelOption(const std::string& option, const std::string& what,
                            const std::string& fix);
absl::Status CacheTooLarge(const std::string& shape);

}  // namespace resident::errors

#endif  // RESIDENT_CLIENT_ERRORS_H_
