#include "server/inference/infer_response.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/task_status_code.h"
#include "server/inference/datatypes.h"
#include "server/inference/errors.h"

namespace resident {
namespace {

using Source = OutputPlan::Source;

// The error of the tasks; OK: all of them succeeded.
absl::Status FindFailure(const InferContext& context, const v1::BatchResult& result) {
  if (result.errors().empty()) return absl::OkStatus();
  uint64_t failed = 0;
  for (const int status : result.status()) failed += status == v1::TASK_STATUS_OK ? 0 : 1;
  const v1::TaskError& first = result.errors(0);
  const auto statuses = static_cast<uint64_t>(result.status_size());
  return errors::InferenceFailed(ToStatusCode(first.status()), first.index(), statuses, failed,
                                 first.message());
}

std::string TakeContents(const OutputPlan& output, uint64_t runs, v1::BatchResult& result) {
  switch (output.source) {
    case Source::kInPlace:
      break;
    case Source::kReturned:
      return std::move(*result.mutable_outputs(output.index));
    case Source::kRegisters:
      return std::move(*result.mutable_flux()->mutable_registers());
    case Source::kErrors:
      // Empty: there are none.
      if (result.flux().errors().empty()) return std::string(runs, '\0');
      return std::move(*result.mutable_flux()->mutable_errors());
    case Source::kCycles:
      return std::move(*result.mutable_flux()->mutable_cycles());
  }
  return "";
}

void FillType(const InferContext& context, const OutputPlan& output, const v1::BatchResult& result,
              inference::ModelInferResponse::InferOutputTensor* tensor) {
  tensor->set_name(output.name);
  if (context.model.batch &&
      (output.source == Source::kReturned || output.source == Source::kInPlace)) {
    tensor->add_shape(static_cast<int64_t>(context.tasks));
  }
  if (output.source == Source::kReturned && output.index < result.output_types_size()) {
    const v1::TensorType& type = result.output_types(output.index);
    tensor->set_datatype(GetDatatype(static_cast<DType>(type.dtype())).name);
    for (const uint64_t size : type.shape()) tensor->add_shape(static_cast<int64_t>(size));
    return;
  }
  tensor->set_datatype(GetDatatype(output.dtype).name);
  for (const int64_t size : output.shape) tensor->add_shape(size);
}

using Parameters = google::protobuf::Map<std::string, inference::InferParameter>;

// Not inlined, because GCC 12 otherwise warns wrongly about the bytes of the names.
[[gnu::noinline]] inference::InferParameter& FindParameter(Parameters& parameters,
                                                           const std::string& name) {
  return parameters[name];
}

// Names the region in the answer.
void FillPart(const RegionPart& part, uint64_t bytes,
              inference::ModelInferResponse::InferOutputTensor* tensor) {
  Parameters& parameters = *tensor->mutable_parameters();
  FindParameter(parameters, "shared_memory_region").set_string_param(part.region->spec().name);
  FindParameter(parameters, "shared_memory_byte_size").set_int64_param(static_cast<int64_t>(bytes));
  if (part.offset != 0) {
    FindParameter(parameters, "shared_memory_offset")
        .set_int64_param(static_cast<int64_t>(part.offset));
  }
}

}  // namespace

absl::Status FillInferResponse(const InferContext& context, v1::BatchResult& result,
                               inference::ModelInferResponse* response) {
  RETURN_IF_ERROR(FindFailure(context, result));
  response->set_model_name(context.model.text());
  response->set_model_version(absl::StrCat(result.version()));
  if (!result.content_hash().empty()) {
    FindParameter(*response->mutable_parameters(), "content_hash")
        .set_string_param(result.content_hash());
  }
  response->set_id(context.id);
  for (const OutputPlan& output : context.outputs) {
    if (output.source == Source::kReturned && output.index >= result.outputs_size()) {
      const std::string model = context.model.text();
      return errors::OutputMissing({model, "output", output.name});
    }
    auto* const tensor = response->add_outputs();
    FillType(context, output, result, tensor);
    std::string* const raw = response->add_raw_output_contents();
    std::string contents = TakeContents(output, context.tasks, result);
    if (output.part.region == nullptr) {
      *raw = std::move(contents);
      continue;
    }
    uint64_t bytes = SizeOf(output.dtype);
    for (const int64_t size : tensor->shape()) bytes *= static_cast<uint64_t>(size);
    if (output.source != Source::kInPlace) {
      bytes = contents.size();
      if (bytes > output.part.bytes) {
        const std::string model = context.model.text();
        return errors::RegionTooSmall({model, "output", output.name}, output.part.bytes, bytes);
      }
      RETURN_IF_ERROR(output.part.region->Write(output.part.offset, contents));
    }
    FillPart(output.part, bytes, tensor);
  }
  return absl::OkStatus();
}

}  // namespace resident
