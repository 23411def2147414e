#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/errors.h"
#include "runtime/operators/errors.h"
#include "runtime/operators/validation/example.h"

namespace resident {
namespace {

bool IsOutput(const Parameter& parameter) {
  return parameter.kind == ParameterKind::kOutput || parameter.kind == ParameterKind::kInOut;
}

// Whether the value has expected data for the parameter. REQUIRES: CheckData accepted its
// size.
bool HasExpectation(const Parameter& parameter, const ExampleValue& value, uint64_t bytes) {
  if (parameter.kind == ParameterKind::kInOut) return value.data.size() > bytes;
  return !value.data.empty();
}

absl::Status CheckData(const errors::ArgumentRef& place, const Parameter& parameter,
                       const ExampleValue& value, uint64_t bytes) {
  const uint64_t got = value.data.size();
  switch (parameter.kind) {
    case ParameterKind::kInput:
    case ParameterKind::kScalar:
      if (got == bytes) return absl::OkStatus();
      return errors::ExampleData(place, got, absl::StrCat(bytes, " bytes"));
    case ParameterKind::kOutput:
      if (got == 0 || got == bytes) return absl::OkStatus();
      return errors::ExampleData(place, got,
                                 absl::StrCat("0 or ", bytes, " bytes (the expected data)"));
    case ParameterKind::kInOut:
      if (got == bytes || got == 2 * bytes) return absl::OkStatus();
      return errors::ExampleData(place, got,
                                 absl::StrCat(bytes, " bytes (the initial data) or ", 2 * bytes,
                                              " (followed by the expected data)"));
  }
  return absl::OkStatus();
}

absl::Status CheckExample(const std::string& operator_name, const Signature& signature,
                          const Example& example) {
  std::vector<ArgumentType> types;
  for (size_t i = 0; i < example.values.size(); ++i) {
    const ExampleValue& value = example.values[i];
    const bool scalar = i < signature.parameters().size() && signature.parameters()[i].scalar();
    if (scalar && !value.shape.empty()) {
      return errors::ExampleScalarShape({operator_name, i, signature.parameters()[i].name},
                                        ShapeText(value.shape));
    }
    types.push_back(scalar ? ArgumentType::Scalar(value.dtype)
                           : ArgumentType::Tensor(value.dtype, value.shape));
  }
  RETURN_IF_ERROR(signature.Match(operator_name, types));
  if (!std::isfinite(example.relative_tolerance) || !std::isfinite(example.absolute_tolerance) ||
      example.relative_tolerance < 0 || example.absolute_tolerance < 0) {
    return errors::ExampleTolerance(example.relative_tolerance, example.absolute_tolerance);
  }
  uint64_t total = 0;
  const std::string* with = nullptr;
  const std::string* without = nullptr;
  for (size_t i = 0; i < example.values.size(); ++i) {
    const ExampleValue& value = example.values[i];
    const Parameter& parameter = signature.parameters()[i];
    const std::optional<int64_t> elements = ElementCount(value.shape);
    const errors::ArgumentRef place{operator_name, i, parameter.name};
    if (!elements) return errors::ShapeTooLarge(place);
    const auto count = static_cast<uint64_t>(*elements);
    if (count > UINT64_MAX / SizeOf(value.dtype)) return errors::ShapeTooLarge(place);
    const uint64_t bytes = count * SizeOf(value.dtype);
    if (bytes > kMaxExampleBytes) return errors::ExampleTooLarge(bytes, kMaxExampleBytes);
    RETURN_IF_ERROR(CheckData(place, parameter, value, bytes));
    total += bytes;
    // An empty output has no expected data.
    if (!IsOutput(parameter) || bytes == 0) continue;
    (HasExpectation(parameter, value, bytes) ? with : without) = &parameter.name;
  }
  if (total > kMaxExampleBytes) return errors::ExampleTooLarge(total, kMaxExampleBytes);
  if (with != nullptr && without != nullptr) return errors::ExampleExpectations(*with, *without);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckExamples(const std::string& operator_name, const Signature& signature,
                           const std::vector<Example>& examples) {
  if (examples.size() > kMaxInstallExamples) {
    return errors::TooManyExamples(examples.size(), kMaxInstallExamples);
  }
  for (size_t i = 0; i < examples.size(); ++i) {
    absl::Status status = CheckExample(operator_name, signature, examples[i]);
    if (!status.ok()) return errors::InExample(i, status);
  }
  return absl::OkStatus();
}

}  // namespace resident
