#include "runtime/operators/validation/example_runner.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/validation_errors.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "runtime/operators/validation/compare.h"
#include "runtime/operators/validation/violation_text.h"

namespace resident {
namespace {

using std::chrono::milliseconds;

// NaN in every floating-point type, so that an operator that reads its outputs shows it;
// and a number.
constexpr uint8_t kPoison = 0xff;
constexpr uint8_t kOtherPoison = 0xa5;
// A validation's machine may be busy: a task gets this much beyond its limit.
constexpr milliseconds kGrace{1'000};
// Sums in another order differ, and by how much nobody has said of an example that
// expects nothing: what is looked for is wrong, not inexact.
constexpr double kOwnSlack = 10;
// Splits unevenly what the split rule splits evenly.
constexpr uint64_t kOddChunks = 3;

milliseconds TaskTimeLimit(milliseconds of_job) {
  const milliseconds most{kValidationTaskLimitMs};
  return of_job == milliseconds(0) ? most : std::min(of_job, most);
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
  return "beside";
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

uint64_t ExampleRunner::NaturalChunks(const Example& example) const {
  if (job_.split.parameter < 0) return 1;
  return job_.split.Chunks(example.values[static_cast<size_t>(job_.split.parameter)].shape);
}

absl::Status ExampleRunner::Run(size_t index, const Example& example, bool generated) {
  const Subject subject{index, example, generated};
  const uint64_t chunks = NaturalChunks(example);
  if (job_.checked_slot) {
    const uint64_t most = GuardedTensors::kMaxCheckedChunks;
    ASSIGN_OR_RETURN(const Result checked, RunOnce(subject, {.name = "checked build",
                                                             .slot = *job_.checked_slot,
                                                             .chunks = std::min(chunks, most),
                                                             .checked = true,
                                                             .poison = kPoison}));
  }
  Way way{.name = ChunksText(chunks),
          .slot = job_.slot,
          .chunks = chunks,
          .may_be_compact = true,
          .poison = kPoison};
  ASSIGN_OR_RETURN(const Result first, RunOnce(subject, way));
  Way shifted = way;
  shifted.name = absl::StrCat(way.name, ", tensors one element off alignment");
  shifted.shifted = true;
  shifted.poison = kOtherPoison;
  ASSIGN_OR_RETURN(const Result second, RunOnce(subject, shifted));
  if (first.refused || second.refused) return absl::OkStatus();

  absl::Status status = CheckWritten(subject, way, first, second);
  if (!status.ok()) return status;
  ASSIGN_OR_RETURN(const Reference reference, FindReference(subject, way, first));
  status = CheckEqual(subject, way, first, reference);
  if (!status.ok()) return status;
  status = CheckEqual(subject, shifted, second, reference);
  if (!status.ok() || job_.split.parameter < 0) return status;
  for (const uint64_t other : {uint64_t{1}, kOddChunks}) {
    if (other == chunks) continue;
    way.name = ChunksText(other);
    way.chunks = other;
    way.may_be_compact = false;
    ASSIGN_OR_RETURN(const Result result, RunOnce(subject, way));
    if (result.refused) continue;
    status = CheckEqual(subject, way, result, reference);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

TaskDescriptor ExampleRunner::MakeTask(const Way& way, const GuardedTensors& tensors) const {
  TaskDescriptor task{};
  task.operator_slot = static_cast<u16>(way.slot);
  const std::optional<uint64_t> elements = tensors.compact_elements();
  if (way.may_be_compact && way.chunks == 1 && job_.signature.compact() && elements) {
    task.flags = kTaskCompact;
    task.set_elements(*elements);
    // An address and a scalar's bits stand in the same place.
    for (size_t i = 0; i < tensors.arguments().size(); ++i) {
      task.set_compact_argument(i, tensors.arguments()[i].scalar_bits);
    }
    return task;
  }
  task.set_argument_count(tensors.arguments().size());
  task.set_chunks(way.chunks);
  task.set_check_context(way.checked ? tensors.context_address() : 0);
  return task;
}

absl::StatusOr<ExampleRunner::Result> ExampleRunner::RunOnce(const Subject& subject,
                                                             const Way& way) {
  ASSIGN_OR_RETURN(auto tensors,
                   GuardedTensors::Place(job_.signature, subject.example, staging_, way.shifted));
  tensors.Fill(way.poison);
  // Threads that miss a barrier are found before the task as a whole is given up.
  if (way.checked) tensors.PrepareContext(std::chrono::nanoseconds(time_limit_).count() / 2);
  ++tasks_run_;
  const TaskEnd end =
      tasks_->Run(MakeTask(way, tensors), tensors.arguments(), time_limit_ + kGrace);
  return Judge(subject, way, tensors, end);
}

absl::StatusOr<ExampleRunner::Result> ExampleRunner::Judge(const Subject& subject, const Way& way,
                                                           const GuardedTensors& tensors,
                                                           const TaskEnd& end) const {
  const errors::ValidationPlace place{job_.operator_name, subject.index, subject.generated,
                                      way.name, tensors.shapes()};
  // What was refused comes first: it may have led to the rest.
  if (way.checked) {
    if (const std::optional<Violation> violation = tensors.FindViolation()) {
      return errors::ValidationOutOfBounds(
          place, ViolationText(*violation, job_.signature, subject.example));
    }
  }
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
  result.refused = subject.generated && status == CompletionStatus::kInvalidArgument;
  if (status != CompletionStatus::kOk && !result.refused) {
    return errors::ValidationTaskFailed(place, StatusText(status), end.completion.detail);
  }
  for (const GuardedTensors::Tensor& tensor : tensors.tensors()) {
    if (tensor.output) result.outputs.push_back(tensors.Contents(tensor));
  }
  return result;
}

absl::Status ExampleRunner::CheckWritten(const Subject& subject, const Way& way,
                                         const Result& first, const Result& second) const {
  for (size_t o = 0; o < outputs_.size(); ++o) {
    const size_t p = outputs_[o];
    const Parameter& parameter = job_.signature.parameters()[p];
    const std::string& a = first.outputs[o];
    const std::string& b = second.outputs[o];
    if (parameter.kind == ParameterKind::kInOut) continue;
    const uint32_t bytes = SizeOf(subject.example.values[p].dtype);
    uint64_t unwritten = 0, at = 0;
    for (uint64_t i = 0; i < a.size(); i += bytes) {
      if (!IsAll(&a[i], bytes, kPoison) || !IsAll(&b[i], bytes, kOtherPoison)) continue;
      if (unwritten++ == 0) at = i / bytes;
    }
    if (unwritten == 0) continue;
    return errors::ValidationUnwritten(
        {job_.operator_name, subject.index, subject.generated, way.name,
         absl::StrCat(parameter.name, " ", ShapeText(subject.example.values[p].shape))},
        parameter.name, at, unwritten, a.size() / bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<ExampleRunner::Reference> ExampleRunner::FindReference(const Subject& subject,
                                                                      const Way& way,
                                                                      const Result& first) {
  Outputs expected;
  bool complete = true;
  for (size_t o = 0; o < outputs_.size(); ++o) {
    const size_t p = outputs_[o];
    const Parameter& parameter = job_.signature.parameters()[p];
    const std::string& data = subject.example.values[p].data;
    const size_t bytes = first.outputs[o].size();
    const size_t before = parameter.kind == ParameterKind::kInOut ? bytes : 0;
    complete &= data.size() == before + bytes;
    if (complete) expected.push_back(data.substr(before));
  }
  if (complete) return Reference{std::move(expected), "what the example expects"};
  // The active version has its own way with what an install without examples makes up.
  if (!job_.active_slot || subject.generated) {
    return Reference{first.outputs, absl::StrCat("its own result ", way.name), kOwnSlack};
  }
  Way active = way;
  active.name = "active version";
  active.slot = *job_.active_slot;
  const absl::StatusOr<Result> result = RunOnce(subject, active);
  if (!result.ok()) {
    return errors::ValidationNoReference({job_.operator_name, subject.index, false, way.name, ""},
                                         result.status());
  }
  return Reference{result->outputs, "the active version's result"};
}

absl::Status ExampleRunner::CheckEqual(const Subject& subject, const Way& way, const Result& result,
                                       const Reference& reference) const {
  for (size_t o = 0; o < outputs_.size(); ++o) {
    const size_t p = outputs_[o];
    const Parameter& parameter = job_.signature.parameters()[p];
    const ExampleValue& value = subject.example.values[p];
    const Example& example = subject.example;
    const bool own = example.relative_tolerance != 0 || example.absolute_tolerance != 0;
    Tolerance tolerance = own ? Tolerance{example.relative_tolerance, example.absolute_tolerance}
                              : DefaultTolerance(value.dtype);
    tolerance.relative *= reference.slack;
    tolerance.absolute *= reference.slack;
    const std::string& got = result.outputs[o];
    const std::string& wanted = reference.outputs[o];
    const uint64_t elements = got.size() / SizeOf(value.dtype);
    const Comparison comparison =
        Compare(value.dtype, got.data(), wanted.data(), elements, tolerance);
    if (comparison.differing == 0) continue;
    return errors::ValidationDiffers(
        {job_.operator_name, subject.index, subject.generated, way.name,
         absl::StrCat(parameter.name, " ", ShapeText(value.shape))},
        {parameter.name, reference.name, comparison.first, comparison.got, comparison.expected,
         comparison.differing, elements, comparison.max_error});
  }
  return absl::OkStatus();
}

}  // namespace resident
