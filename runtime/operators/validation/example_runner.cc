
#include "runtime/operators/validation/example_runner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "runtime/operators/errors.h"
#include "runtime/operators/validation/compare.h"

namespace resident {
namespace {

using std::chrono::milliseconds;

// The first value is NaN in every floating-point type, so that an operator that reads its
// outputs produces NaN; the second is an ordinary number.
constexpr uint8_t kPoison = 0xff;
constexpr uint8_t kOtherPoison = 0xa5;
// A task may exceed its limit by this much, since the machine may be busy.
constexpr milliseconds kGrace{1'000};
// An example without expected data has no tolerance for a different order of summation, so
// the default is widened: the aim is to find wrong results, not rounding differences.
constexpr double kSelfToleranceScale = 10;
// A number of chunks that splits unevenly what the split rule splits evenly.
constexpr uint64_t kOddChunks = 3;

milliseconds TaskTimeLimit(milliseconds requested) {
  const milliseconds max{kValidationTaskLimitMs};
  return requested == milliseconds(0) ? max : std::min(requested, max);
}

std::string StatusText(CompletionStatus status) {
  switch (status) {
    case CompletionStatus::kOk:
      return "OK";
    case CompletionStatus::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case CompletionStatus::kInternal:
      return "INTERNAL";
    case CompletionStatus::kNoOperator:
      return "no operator in its slot";
    case CompletionStatus::kOutOfBounds:
      return "an access out of bounds";
    case CompletionStatus::kStopped:
      return "stopped";
  }
  return absl::StrCat("status ", static_cast<int>(status));
}

const char* StrayText(const GuardedTensors::StrayWrite& stray) {
  switch (stray.where) {
    case GuardedTensors::StrayWrite::kBefore:
      return "before the start of";
    case GuardedTensors::StrayWrite::kPast:
      return "past the end of";
    case GuardedTensors::StrayWrite::kBetween:
      return "from the start of, but between the elements of,";
  }
  return "outside";
}

std::string ChunksText(uint64_t chunks) {
  return chunks == 1 ? "on one block" : absl::StrCat("in ", chunks, " chunks");
}

bool IsAll(const char* bytes, uint32_t count, uint8_t value) {
  return std::all_of(bytes, bytes + count,
                     [value](char c) { return static_cast<uint8_t>(c) == value; });
}

}  // namespace

ExampleRunner::ExampleRunner(const ValidationJob& job, TaskRunner* tasks,
                             const ValidationStaging& staging)
    : job_(job), tasks_(tasks), staging_(staging), time_limit_(TaskTimeLimit(job.task_time_limit)) {
  for (size_t p = 0; p < job.signature.parameters().size(); ++p) {
    const ParameterKind kind = job.signature.parameters()[p].kind;
    if (kind == ParameterKind::kOutput || kind == ParameterKind::kInOut) outputs_.push_back(p);
  }
}

uint64_t ExampleRunner::CountChunks(const Example& example) const {
  return job_.split.Chunks([&](int parameter) -> absl::Span<const int64_t> {
    return example.values[static_cast<size_t>(parameter)].shape;
  });
}

absl::Status ExampleRunner::Run(size_t index, const Example& example, bool generated) {
  const Case test_case{index, example, generated};
  const uint64_t chunks = CountChunks(example);
  if (job_.checked_slot) {
    const uint64_t max_chunks = GuardedTensors::kMaxCheckedChunks;
    ASSIGN_OR_RETURN(const Result checked,
                     RunOnce(test_case, {.name = "checked build",
                                         .slot = *job_.checked_slot,
                                         .chunks = std::min(chunks, max_chunks),
                                         .checked = true,
                                         .poison = kPoison}));
  }
  Variant variant{.name = ChunksText(chunks),
                  .slot = job_.slot,
                  .chunks = chunks,
                  .may_be_compact = true,
                  .poison = kPoison};
  ASSIGN_OR_RETURN(const Result first, RunOnce(test_case, variant));
  Variant shifted = variant;
  shifted.name = absl::StrCat(variant.name, ", tensors one element off alignment");
  shifted.shifted = true;
  shifted.poison = kOtherPoison;
  ASSIGN_OR_RETURN(const Result second, RunOnce(test_case, shifted));
  if (first.refused || second.refused) return absl::OkStatus();

  absl::Status status = CheckWritten(test_case, variant, first, second);
  if (!status.ok()) return status;
  ASSIGN_OR_RETURN(const Reference reference, FindReference(test_case, variant, first));
  status = CheckEqual(test_case, variant, first, reference);
  if (!status.ok()) return status;
  status = CheckEqual(test_case, shifted, second, reference);
  if (!status.ok() || job_.split.parameter < 0) return status;
  for (const uint64_t other : {uint64_t{1}, kOddChunks}) {
    if (other == chunks) continue;
    variant.name = ChunksText(other);
    variant.chunks = other;
    variant.may_be_compact = false;
    ASSIGN_OR_RETURN(const Result result, RunOnce(test_case, variant));
    if (result.refused) continue;
    status = CheckEqual(test_case, variant, result, reference);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

TaskDescriptor ExampleRunner::MakeTask(const Variant& variant,
                                       const GuardedTensors& tensors) const {
  TaskDescriptor task{};
  task.operator_slot = static_cast<u16>(variant.slot);
  const std::optional<uint64_t> elements = tensors.compact_elements();
  if (variant.may_be_compact && variant.chunks == 1 && job_.signature.compact() && elements) {
    task.flags = kTaskCompact;
    task.set_elements(*elements);
    // A compact argument holds either an address or a scalar's bits.
    for (size_t i = 0; i < tensors.arguments().size(); ++i) {
      task.set_compact_argument(i, tensors.arguments()[i].scalar_bits);
    }
    return task;
  }
  task.set_argument_count(tensors.arguments().size());
  task.set_chunks(variant.chunks);
  task.set_check_context(variant.checked ? tensors.context_address() : 0);
  return task;
}

absl::StatusOr<ExampleRunner::Result> ExampleRunner::RunOnce(const Case& test_case,
                                                             const Variant& variant) {
  ASSIGN_OR_RETURN(auto tensors, GuardedTensors::Place(job_.signature, test_case.example, staging_,
                                                       variant.shifted));
  tensors.Fill(variant.poison);
  // A missed barrier is reported before the whole task times out.
  if (variant.checked) tensors.PrepareContext(std::chrono::nanoseconds(time_limit_).count() / 2);
  ++tasks_run_;
  const TaskEnd end =
      tasks_->Run(MakeTask(variant, tensors), tensors.arguments(), time_limit_ + kGrace);
  return Evaluate(test_case, variant, tensors, end);
}

absl::StatusOr<ExampleRunner::Result> ExampleRunner::Evaluate(const Case& test_case,
                                                              const Variant& variant,
                                                              const GuardedTensors& tensors,
                                                              const TaskEnd& end) const {
  const errors::ValidationContext place{job_.operator_name, test_case.index, test_case.generated,
                                        variant.name, tensors.shapes()};
  // Violations are checked first: they may have caused the other errors.
  if (variant.checked) {
    if (const std::optional<Violation> violation = tensors.FindViolation()) {
      return errors::ValidationOutOfBounds(
          place, ViolationText(*violation, job_.signature, test_case.example));
    }
  }
  if (end.killed) return errors::ValidationUnavailable(absl::UnavailableError(end.cause));
  if (end.how == TaskEnd::kEngineEnded) return errors::ValidationFault(place, end.cause);
  if (end.how == TaskEnd::kTimedOut) {
    return errors::ValidationNeverReturned(place, time_limit_.count());
  }
  if (const auto stray = tensors.FindStrayWrite()) {
    return errors::ValidationRedZone(place, job_.signature.parameters()[stray->parameter].name,
                                     StrayText(*stray), stray->distance);
  }
  if (const auto write = tensors.FindInputWrite()) {
    return errors::ValidationInputWritten(place, job_.signature.parameters()[write->parameter].name,
                                          write->element);
  }
  Result result;
  const CompletionStatus status = end.completion.status;
  result.refused = test_case.generated && status == CompletionStatus::kInvalidArgument;
  if (status != CompletionStatus::kOk && !result.refused) {
    return errors::ValidationTaskFailed(place, StatusText(status), end.completion.detail);
  }
  for (const GuardedTensors::Tensor& tensor : tensors.tensors()) {
    if (tensor.output) result.outputs.push_back(tensors.Contents(tensor));
  }
  return result;
}

absl::Status ExampleRunner::CheckWritten(const Case& test_case, const Variant& variant,
                                         const Result& first, const Result& second) const {
  for (size_t o = 0; o < outputs_.size(); ++o) {
    const size_t p = outputs_[o];
    const Parameter& parameter = job_.signature.parameters()[p];
    const std::string& a = first.outputs[o];
    const std::string& b = second.outputs[o];
    if (parameter.kind == ParameterKind::kInOut) continue;
    const uint32_t bytes = SizeOf(test_case.example.values[p].dtype);
    uint64_t unwritten = 0, first_unwritten = 0;
    for (uint64_t i = 0; i < a.size(); i += bytes) {
      if (!IsAll(&a[i], bytes, kPoison) || !IsAll(&b[i], bytes, kOtherPoison)) continue;
      if (unwritten++ == 0) first_unwritten = i / bytes;
    }
    if (unwritten == 0) continue;
    return errors::ValidationUnwritten(
        {job_.operator_name, test_case.index, test_case.generated, variant.name,
         absl::StrCat(parameter.name, " ", ShapeText(test_case.example.values[p].shape))},
        parameter.name, first_unwritten, unwritten, a.size() / bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<ExampleRunner::Reference> ExampleRunner::FindReference(const Case& test_case,
                                                                      const Variant& variant,
                                                                      const Result& first) {
  Outputs expected;
  bool complete = true;
  for (size_t o = 0; o < outputs_.size(); ++o) {
    const size_t p = outputs_[o];
    const Parameter& parameter = job_.signature.parameters()[p];
    const std::string& data = test_case.example.values[p].data;
    const size_t bytes = first.outputs[o].size();
    const size_t before = parameter.kind == ParameterKind::kInOut ? bytes : 0;
    complete &= data.size() == before + bytes;
    if (complete) expected.push_back(data.substr(before));
  }
  if (complete) return Reference{std::move(expected), "what the example expects"};
  // For a generated example the results of the active version are no reference: they may
  // differ legitimately.
  if (!job_.active_slot || test_case.generated) {
    return Reference{first.outputs, absl::StrCat("its own result ", variant.name),
                     kSelfToleranceScale};
  }
  Variant active = variant;
  active.name = "active version";
  active.slot = *job_.active_slot;
  const absl::StatusOr<Result> result = RunOnce(test_case, active);
  if (absl::IsUnavailable(result.status())) return result.status();
  if (!result.ok()) {
    return errors::ValidationNoReference(
        {job_.operator_name, test_case.index, false, variant.name, ""}, result.status());
  }
  return Reference{result->outputs, "the active version's result"};
}

absl::Status ExampleRunner::CheckEqual(const Case& test_case, const Variant& variant,
                                       const Result& result, const Reference& reference) const {
  for (size_t o = 0; o < outputs_.size(); ++o) {
    const size_t p = outputs_[o];
    const Parameter& parameter = job_.signature.parameters()[p];
    const ExampleValue& value = test_case.example.values[p];
    const Example& example = test_case.example;
    const bool own = example.relative_tolerance != 0 || example.absolute_tolerance != 0;
    Tolerance tolerance = own ? Tolerance{example.relative_tolerance, example.absolute_tolerance}
                              : DefaultTolerance(value.dtype);
    tolerance.relative *= reference.tolerance_scale;
    tolerance.absolute *= reference.tolerance_scale;
    const std::string& got = result.outputs[o];
    const std::string& expected = reference.outputs[o];
    const uint64_t elements = got.size() / SizeOf(value.dtype);
    const Comparison comparison =
        Compare(value.dtype, got.data(), expected.data(), elements, tolerance);
    if (comparison.differing == 0) continue;
    return errors::ValidationDiffers(
        {job_.operator_name, test_case.index, test_case.generated, variant.name,
         absl::StrCat(parameter.name, " ", ShapeText(value.shape))},
        {parameter.name, reference.name, comparison.first, comparison.got, comparison.expected,
         comparison.differing, elements, comparison.max_error});
  }
  return absl::OkStatus();
}

}  // namespace resident
