// Translates a ModelInferRequest into the batch that it describes (resident.v1.Batch), which then
// takes the same way as a batch of Executor: the same checks, limits and rights.
//
//   NAME                one task; the tensors are its arguments
//   NAME:batch          as many tasks as the first dimension of every input has
//   bytecode operator   one run for each row of `registers`
//
// An input in a region of shared memory is read in place, and so is an output written whose type
// follows from the request. The front end copies inout parameters, scalars and registers from and
// to regions.
//
// Thread safety: functions without state; a context belongs to one thread at a time.
//
//   ASSIGN_OR_RETURN(InferWork work, TranslateInfer({limits, registry, models, regions}, request));
//   ... the batch runs ...
//   RETURN_IF_ERROR(FillInferResponse(*work.context, result, &response));   // infer_response.h
#ifndef RESIDENT_SERVER_INFERENCE_INFER_REQUEST_H_
#define RESIDENT_SERVER_INFERENCE_INFER_REQUEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/open_inference.pb.h"
#include "resident/v1/executor.pb.h"
#include "runtime/base/limits.h"
#include "runtime/operators/registry/registry.h"
#include "server/inference/infer_tensors.h"
#include "server/inference/model_metadata.h"
#include "server/inference/regions.h"
#include "server/models/table/model_table.h"
#include "server/rpc/batch_stream.h"

namespace resident {

// An output that the answer contains.
struct OutputPlan {
  enum class Source : uint8_t {
    kInPlace,    // The tasks write to the region.
    kReturned,   // BatchResult.outputs[index].
    kRegisters,  // Of a bytecode operator.
    kErrors,
    kCycles,
  };
  std::string name;
  Source source = Source::kReturned;
  int index = 0;
  // The type of one task's tensor, unless the result contains it (BatchResult.output_types).
  DType dtype = DType::kInvalid;
  std::vector<int64_t> shape;
  RegionPart part;  // Without a region: the answer contains the elements.
};

// What the answer needs of the request.
struct InferContext final : BatchStream::Context {
  Clock::time_point arrived = Clock::now();
  ModelName model;
  std::string id;
  bool final_response = false;
  uint64_t tasks = 1;
  std::vector<OutputPlan> outputs;
  // Regions that the tasks use.
  std::vector<std::shared_ptr<Region>> regions;
};

struct InferWork {
  v1::Batch batch;
  std::shared_ptr<InferContext> context;
};

struct InferSources {
  const Limits& limits;
  const Registry& registry;
  const ModelTable& models;
  Regions& regions;
};

// Moves the tensors out of the request. Errors: NOT_FOUND (model, region), INVALID_ARGUMENT.
absl::StatusOr<InferWork> TranslateInfer(const InferSources& sources,
                                         inference::ModelInferRequest& request);

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_INFER_REQUEST_H_
