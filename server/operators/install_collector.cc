
#include "server/operators/install_collector.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/unit.h"
#include "runtime/operators/errors.h"
#include "server/operators/errors.h"
#include "server/operators/operator_messages.h"
#include "server/workload/errors.h"

namespace resident {
namespace {

bool TakesFiles(OperatorKind kind) {
  return kind == OperatorKind::kSource || kind == OperatorKind::kObject;
}

uint64_t MaxFileBytes(OperatorKind kind) {
  return kind == OperatorKind::kObject ? kMaxInstallObjectBytes : kMaxInstallSourceBytes;
}

// Texts of the header whose sizes are checked before they are stored.
absl::Status CheckTexts(const v1::InstallHeader& header) {
  const struct {
    const char* field;
    size_t bytes;
    size_t limit;
  } texts[] = {{"name", header.name().size(), kMaxOperatorNameBytes},
               {"summary", header.summary().size(), kMaxOperatorSummaryBytes},
               {"signature", header.signature().size(), kMaxSignatureBytes},
               {"split", header.split().size(), kMaxSplitBytes},
               {"bytecode", header.bytecode().size(), kMaxBytecodeBytes}};
  for (const auto& [field, bytes, limit] : texts) {
    if (bytes > limit) return errors::InstallTextTooLong(field, bytes, limit);
  }
  return header.name().empty() ? errors::InstallNoName() : absl::OkStatus();
}

bool IsTolerance(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

absl::Status InstallCollector::Add(v1::InstallRequest& message) {
  const auto part = message.part_case();
  if (part == v1::InstallRequest::PART_NOT_SET) return errors::InstallEmptyMessage();
  if (part == v1::InstallRequest::kHeader) {
    return has_header_ ? errors::InstallSecondHeader() : AddHeader(*message.mutable_header());
  }
  if (!has_header_) return errors::InstallNoHeader();
  return part == v1::InstallRequest::kFile ? AddFile(*message.mutable_file())
                                           : AddExample(*message.mutable_example());
}

absl::Status InstallCollector::AddHeader(v1::InstallHeader& header) {
  RETURN_IF_ERROR(CheckTexts(header));
  request_.name = std::move(*header.mutable_name());
  request_.summary = std::move(*header.mutable_summary());
  request_.signature = std::move(*header.mutable_signature());
  request_.split = std::move(*header.mutable_split());
  switch (header.kind_case()) {
    case v1::InstallHeader::kMainFile:
      request_.kind = OperatorKind::kSource;
      request_.body = std::move(*header.mutable_main_file());
      break;
    case v1::InstallHeader::kExpression:
      request_.kind = OperatorKind::kExpression;
      request_.body = std::move(*header.mutable_expression());
      break;
    case v1::InstallHeader::kBytecode:
      request_.kind = OperatorKind::kBytecode;
      request_.body = std::move(*header.mutable_bytecode());
      break;
    case v1::InstallHeader::kObjectFile:
      request_.kind = OperatorKind::kObject;
      request_.body = std::move(*header.mutable_object_file());
      break;
    case v1::InstallHeader::KIND_NOT_SET:
      return errors::InstallNoKind();
  }
  if (TakesFiles(request_.kind)) {
    RETURN_IF_ERROR(CheckFileName(request_.body));
  }
  request_.task_time_limit = std::chrono::milliseconds(header.limits().task_time_ms());
  request_.scratch_bytes = header.limits().scratch_bytes();
  request_.allow_spills = header.allow_spills();
  if (!v1::InstallHeader::Native_IsValid(header.native())) {
    return errors::UnknownEnum("InstallHeader.native", header.native(), "NATIVE_WAIT, NATIVE_OFF");
  }
  request_.native = static_cast<InstallRequest::Native>(header.native());
  if (!v1::Isolation_IsValid(header.isolation())) {
    return errors::UnknownEnum("InstallHeader.isolation", header.isolation(),
                               "ISOLATION_TRUSTED, ISOLATION_STOPPABLE");
  }
  request_.isolation = static_cast<Isolation>(header.isolation());
  if (request_.isolation == Isolation::kConfined) return errors::InstallConfined();
  if (request_.isolation != Isolation::kUnspecified && request_.kind == OperatorKind::kBytecode) {
    return errors::InstallIsolatedBytecode();
  }
  if (!header.label().empty() && !IsVersionLabel(header.label())) {
    return errors::BadVersionLabel(header.label());
  }
  request_.label = std::move(*header.mutable_label());
  ASSIGN_OR_RETURN(request_.context, ParseContext(header.context()));
  if (header.has_expected_revision()) request_.expected_revision = header.expected_revision();
  switch (header.wait_for()) {
    case v1::VERSION_STATE_UNSPECIFIED:
    case v1::VERSION_STATE_LOADED:
      request_.wait_for = VersionState::kLoaded;
      break;
    case v1::VERSION_STATE_VALIDATED:
      request_.wait_for = VersionState::kValidated;
      break;
    case v1::VERSION_STATE_ACTIVE:
      request_.wait_for = VersionState::kActive;
      break;
    default:
      return errors::UnknownEnum(
          "InstallHeader.wait_for", header.wait_for(),
          "VERSION_STATE_VALIDATED, VERSION_STATE_LOADED, VERSION_STATE_ACTIVE");
  }
  has_header_ = true;
  return absl::OkStatus();
}

absl::Status InstallCollector::AddFile(v1::InstallFile& file) {
  if (!TakesFiles(request_.kind)) return errors::InstallUnexpectedFile(file.name());
  RETURN_IF_ERROR(CheckFileName(file.name()));
  const uint64_t limit = MaxFileBytes(request_.kind);
  if (file.data().size() > limit - file_bytes_) {
    return errors::InstallTooManyBytes(request_.kind == OperatorKind::kObject ? "object" : "source",
                                       file_bytes_ + file.data().size(), limit);
  }
  file_bytes_ += file.data().size();
  std::string& text = request_.files[file.name()];
  if (text.empty()) {
    text = std::move(*file.mutable_data());
  } else {
    text.append(file.data());
  }
  if (request_.files.size() > kMaxInstallFiles)
    return errors::InstallTooManyFiles(kMaxInstallFiles);
  return absl::OkStatus();
}

absl::Status InstallCollector::AddExample(v1::InstallExample& message) {
  const size_t index = request_.examples.size();
  if (index == kMaxInstallExamples) return errors::InstallTooManyExamples(kMaxInstallExamples);
  if (!IsTolerance(message.relative_tolerance()) || !IsTolerance(message.absolute_tolerance())) {
    return errors::ExampleTolerance(index);
  }
  if (message.values_size() > static_cast<int>(kMaxArguments)) {
    return errors::ExampleTooManyValues(index, message.values_size(), kMaxArguments);
  }
  Example example;
  example.relative_tolerance = message.relative_tolerance();
  example.absolute_tolerance = message.absolute_tolerance();
  for (v1::ExampleValue& sent : *message.mutable_values()) {
    const size_t place = example.values.size();
    ExampleValue value;
    if (sent.dtype() == v1::DTYPE_UNSPECIFIED || !v1::DType_IsValid(sent.dtype())) {
      return errors::ExampleDType(index, place, sent.dtype());
    }
    value.dtype = static_cast<DType>(sent.dtype());
    if (sent.shape_size() > static_cast<int>(kMaxRank)) {
      return errors::ExampleRank(index, place, sent.shape_size(), kMaxRank);
    }
    for (const uint64_t dim : sent.shape()) {
      // A dimension that does not fit becomes negative, so that the shape has no element count.
      value.shape.push_back(dim > std::numeric_limits<int64_t>::max() ? -1
                                                                      : static_cast<int64_t>(dim));
    }
    const auto elements = ElementCount(value.shape);
    const uint64_t element_bytes = SizeOf(value.dtype);
    if (!elements.has_value() ||
        static_cast<uint64_t>(*elements) > kMaxInstallExampleBytes / element_bytes) {
      return errors::ExampleTooLarge(index, place, kMaxInstallExampleBytes);
    }
    const uint64_t bytes = static_cast<uint64_t>(*elements) * element_bytes;
    // Twice for an inout: its initial and its expected contents. Only the signature shows which
    // parameters are inout.
    const uint64_t sent_bytes = sent.data().size();
    if (sent_bytes != 0 && sent_bytes != bytes && sent_bytes != 2 * bytes) {
      return errors::ExampleSize(index, place, sent_bytes, bytes);
    }
    // Outputs without data take memory in the validation like the others.
    example_bytes_ += std::max(bytes, sent_bytes);
    if (example_bytes_ > kMaxInstallExampleBytes) {
      return errors::ExampleTooLarge(index, place, kMaxInstallExampleBytes);
    }
    value.data = std::move(*sent.mutable_data());
    example.values.push_back(std::move(value));
  }
  request_.examples.push_back(std::move(example));
  return absl::OkStatus();
}

absl::StatusOr<InstallRequest> InstallCollector::Finish() {
  if (!has_header_) return errors::InstallNoHeader();
  if (TakesFiles(request_.kind)) {
    RETURN_IF_ERROR(CheckMainFile(request_.files, request_.body));
  }
  return std::move(request_);
}

}  // namespace resident
