#include "server/inference/infer_parameters.h"

#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"
#include "server/inference/datatypes.h"
#include "server/inference/errors.h"

namespace resident {
namespace {

using inference::InferParameter;

constexpr uint32_t kRegisters = 16;  // Of a FLUX program.

// Whether a sequence parameter says that the request belongs to a sequence.
bool IsSet(const InferParameter& value) {
  switch (value.parameter_choice_case()) {
    case InferParameter::kBoolParam:
      return value.bool_param();
    case InferParameter::kInt64Param:
      return value.int64_param() != 0;
    case InferParameter::kUint64Param:
      return value.uint64_param() != 0;
    case InferParameter::kStringParam:
      return !value.string_param().empty();
    case InferParameter::kDoubleParam:
      return value.double_param() != 0;
    case InferParameter::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return false;
}

// The value as a number of the kind that the scalar has; nullopt: it is none.
std::optional<double> ToDouble(const InferParameter& value) {
  double number = 0;
  switch (value.parameter_choice_case()) {
    case InferParameter::kBoolParam:
      return value.bool_param() ? 1 : 0;
    case InferParameter::kInt64Param:
      return static_cast<double>(value.int64_param());
    case InferParameter::kUint64Param:
      return static_cast<double>(value.uint64_param());
    case InferParameter::kDoubleParam:
      return value.double_param();
    case InferParameter::kStringParam:
      if (absl::SimpleAtod(value.string_param(), &number)) return number;
      break;
    case InferParameter::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return std::nullopt;
}

std::optional<int64_t> ToInteger(const InferParameter& value) {
  int64_t number = 0;
  switch (value.parameter_choice_case()) {
    case InferParameter::kBoolParam:
      return value.bool_param() ? 1 : 0;
    case InferParameter::kInt64Param:
      return value.int64_param();
    case InferParameter::kUint64Param:
      if (value.uint64_param() <= std::numeric_limits<int64_t>::max()) {
        return static_cast<int64_t>(value.uint64_param());
      }
      break;
    case InferParameter::kDoubleParam:
      // Whole numbers up to 2^53, which a double represents exactly.
      if (std::abs(value.double_param()) <= 9007199254740992.0 &&
          std::trunc(value.double_param()) == value.double_param()) {
        return static_cast<int64_t>(value.double_param());
      }
      break;
    case InferParameter::kStringParam:
      if (absl::SimpleAtoi(value.string_param(), &number)) return number;
      break;
    case InferParameter::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return std::nullopt;
}

absl::StatusOr<v1::ScalarColumn> ReadScalar(const Parameter& parameter,
                                            const InferParameter& value) {
  v1::ScalarColumn column;
  const DType dtype = parameter.dtypes[0];
  if (IsFloat(dtype)) {
    const auto number = ToDouble(value);
    if (number.has_value()) {
      column.add_f64(*number);
      return column;
    }
  } else {
    const auto number = ToInteger(value);
    if (number.has_value()) {
      column.add_i64(*number);
      return column;
    }
  }
  return errors::InferParameterValue(parameter.name,
                                     std::string("a value of ") + GetDatatype(dtype).name);
}

absl::StatusOr<std::vector<int64_t>> ReadShape(const std::string& name,
                                               const InferParameter& value) {
  std::vector<int64_t> shape;
  if (!value.has_string_param()) return errors::InferParameterValue(name, "a shape as \"2,3\"");
  if (value.string_param().empty()) return shape;
  for (const absl::string_view part : absl::StrSplit(value.string_param(), ',')) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(part, &size) || size < 0 || shape.size() == kMaxRank) {
      return errors::InferParameterValue(name, "a shape as \"2,3\"");
    }
    shape.push_back(size);
  }
  return shape;
}

absl::StatusOr<std::vector<uint32_t>> ReadRegisters(const InferParameter& value) {
  std::vector<uint32_t> wanted;
  const auto refuse = [] {
    return errors::InferParameterValue("wanted", "numbers of registers as \"0,1\"");
  };
  if (!value.has_string_param()) return refuse();
  for (const absl::string_view part : absl::StrSplit(value.string_param(), ',')) {
    uint32_t index = 0;
    if (!absl::SimpleAtoi(part, &index) || wanted.size() == kRegisters) return refuse();
    wanted.push_back(index);
  }
  return wanted;
}

class Reader {
 public:
  explicit Reader(const std::string& model) : model_(model) {}
  virtual ~Reader() = default;

  absl::Status Add(const std::string& name, const InferParameter& value) {
    if (name == "timeout") {
      ASSIGN_OR_RETURN(read_.timeout_us, ReadCount(name, value));
    } else if (name == "sequence_id" || name == "sequence_start" || name == "sequence_end") {
      if (IsSet(value)) return errors::SequencesUnsupported();
    } else if (name == "triton_enable_empty_final_response") {
      read_.final_response = IsSet(value);
    } else if (name == "priority" || name == "binary_data_output") {
      // Without a meaning here: the daemon divides a device between its clients.
    } else {
      return AddOwn(name, value);
    }
    return absl::OkStatus();
  }

  RequestParameters Finish() { return std::move(read_); }

 protected:
  // A parameter that only this model has.
  virtual absl::Status AddOwn(const std::string& name, const InferParameter& value) = 0;

  const std::string& model_;
  RequestParameters read_;
};

class OperatorReader final : public Reader {
 public:
  OperatorReader(const std::string& model, const Operator& op) : Reader(model), op_(op) {
    read_.scalars.resize(op.signature().parameters().size());
    read_.types.resize(read_.scalars.size());
  }

 private:
  absl::Status AddOwn(const std::string& name, const InferParameter& value) override {
    return op_.bytecode() ? AddOfBytecode(name, value) : AddOfParameter(name, value);
  }

  absl::Status AddOfBytecode(const std::string& name, const InferParameter& value) {
    if (name == "wanted") {
      ASSIGN_OR_RETURN(read_.wanted, ReadRegisters(value));
    } else if (name == "max_cycles") {
      ASSIGN_OR_RETURN(read_.max_cycles, ReadCount(name, value));
    } else {
      return errors::UnknownInferParameter(model_, name, "timeout, wanted, max_cycles");
    }
    return absl::OkStatus();
  }

  // A scalar's name, "dtype.NAME" or "shape.NAME".
  absl::Status AddOfParameter(const std::string& name, const InferParameter& value) {
    std::string_view of = name;
    const bool dtype = of.starts_with("dtype.");
    const bool shape = of.starts_with("shape.");
    if (dtype || shape) of.remove_prefix(6);
    const auto& parameters = op_.signature().parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const Parameter& parameter = parameters[p];
      if (parameter.name != of) continue;
      if (dtype || shape) {
        if (parameter.kind != ParameterKind::kOutput) break;
        return dtype ? AddDType(name, value, read_.types[p])
                     : AddShape(name, value, read_.types[p]);
      }
      if (!parameter.scalar()) break;
      ASSIGN_OR_RETURN(read_.scalars[p], ReadScalar(parameter, value));
      return absl::OkStatus();
    }
    return errors::UnknownInferParameter(model_, name, KnownNames());
  }

  static absl::Status AddDType(const std::string& name, const InferParameter& value,
                               RequestedType& type) {
    const Datatype* const found =
        value.has_string_param() ? FindDatatype(value.string_param()) : nullptr;
    if (found == nullptr) {
      return errors::InferParameterValue(name, "one of: " + DatatypeNames());
    }
    type.dtype = found->dtype;
    return absl::OkStatus();
  }
  static absl::Status AddShape(const std::string& name, const InferParameter& value,
                               RequestedType& type) {
    ASSIGN_OR_RETURN(type.shape, ReadShape(name, value));
    return absl::OkStatus();
  }

  std::string KnownNames() const {
    std::vector<std::string> names = {"timeout"};
    for (const Parameter& parameter : op_.signature().parameters()) {
      if (parameter.scalar()) names.push_back(parameter.name);
      if (parameter.kind == ParameterKind::kOutput) {
        names.push_back("dtype." + parameter.name);
        names.push_back("shape." + parameter.name);
      }
    }
    return absl::StrJoin(names, ", ");
  }

  const Operator& op_;
};

class ModelReader final : public Reader {
 public:
  ModelReader(const std::string& model, const std::set<std::string>& scalars)
      : Reader(model), scalars_(scalars) {}

 private:
  absl::Status AddOwn(const std::string& name, const InferParameter& value) override {
    if (!scalars_.contains(name)) {
      std::vector<std::string> known(scalars_.begin(), scalars_.end());
      known.insert(known.begin(), "timeout");
      return errors::UnknownInferParameter(model_, name, absl::StrJoin(known, ", "));
    }
    const std::optional<double> number = ToDouble(value);
    if (!number.has_value()) return errors::InferParameterValue(name, "a number");
    read_.model_scalars[name] = *number;
    return absl::OkStatus();
  }

  const std::set<std::string>& scalars_;
};

absl::StatusOr<RequestParameters> ReadAll(Reader& reader,
                                          const inference::ModelInferRequest& message) {
  for (const auto& [name, value] : message.parameters()) {
    RETURN_IF_ERROR(reader.Add(name, value));
  }
  return reader.Finish();
}

}  // namespace

absl::StatusOr<RequestParameters> ReadParameters(const std::string& model, const Operator& op,
                                                 const inference::ModelInferRequest& message) {
  OperatorReader reader(model, op);
  return ReadAll(reader, message);
}

absl::StatusOr<RequestParameters> ReadModelParameters(const std::string& model,
                                                      const std::set<std::string>& scalars,
                                                      const inference::ModelInferRequest& message) {
  ModelReader reader(model, scalars);
  return ReadAll(reader, message);
}

absl::StatusOr<uint64_t> ReadCount(const std::string& name, const InferParameter& value) {
  if (value.has_uint64_param()) return value.uint64_param();
  const auto number = ToInteger(value);
  if (number.has_value() && *number >= 0) return static_cast<uint64_t>(*number);
  return errors::InferParameterValue(name, "a number that is not negative");
}

}  // namespace resident
