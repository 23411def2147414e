// Fuzz target: a ModelInferRequest, through its translation into a batch, the batch's translation
// into tasks, and back to the answer.
//
// An input is the bytes of an inference.ModelInferRequest, or (first byte odd) a recipe for a
// request of nearly valid values. Every request gets a status; an error says what to do. An answer
// has exactly one entry of raw_output_contents for every output, whose size is that of its shape,
// or none for an output in a region. Nothing may leak.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "google/protobuf/stubs/logging.h"
#include "inference/open_inference.pb.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/fake_device.h"
#include "runtime/operators/install/fake_operator_manager.h"
#include "runtime/operators/registry/registry.h"
#include "server/core/core.h"
#include "server/inference/infer_request.h"
#include "server/inference/infer_response.h"
#include "server/workload/result_builder.h"

namespace {

using namespace resident;
using inference::ModelInferRequest;

constexpr uint64_t kMemory = 1 << 20;
constexpr uint64_t kRegionBytes = 4096;
// The region is registered again after this number of inputs.
constexpr int kInputsOfRegion = 16;
constexpr char kRegion[] = "r";
constexpr const char* kDatatypes[] = {"FP32",  "FP16",  "BF16", "FP64",   "INT32",
                                      "INT64", "UINT8", "INT8", "UINT32", "BYTES"};

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "fuzz_infer: %s\n", what.c_str());
  std::abort();
}

uint64_t ElementBytes(const std::string& datatype) {
  if (datatype == "FP64" || datatype == "INT64") return 8;
  if (datatype == "FP16" || datatype == "BF16") return 2;
  return datatype == "UINT8" || datatype == "INT8" ? 1 : 4;
}

struct World {
  World() {
    // As in the daemon: a malformed message is not worth a line of the log.
    google::protobuf::SetLogHandler(nullptr);
    client = *core.clients.ForCall("", "ipv4:127.0.0.1:1", access.anonymous()->account());
    RegisterRegion();
  }

  void RegisterRegion() {
    const std::string key = "/residentd-fuzz-" + std::to_string(getpid());
    const int fd = shm_open(key.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, kRegionBytes) != 0) Fail("no shared memory");
    close(fd);
    const absl::Status registered =
        regions->Register({.name = kRegion, .key = key, .bytes = kRegionBytes}, *client);
    shm_unlink(key.c_str());
    if (!registered.ok()) Fail(std::string(registered.message()));
  }

  static Limits FewTasks() {
    Limits limits;
    limits.max_batch_tasks = 1000;
    return limits;
  }

  FakeDevice device{0, kMemory, kMemory};
  const std::unique_ptr<Registry> registry = *Registry::Create({.test_operators = true});
  FakeOperatorManager manager;
  Access access;
  Core core{
      {.limits = FewTasks(), .staging_bytes = kMemory}, {&device}, *registry, manager, access};
  Buffers buffers{core, {.named_shared_memory = true}};
  const std::shared_ptr<Regions> regions =
      std::make_shared<Regions>(buffers, std::chrono::hours(1));
  std::shared_ptr<Client> client;
};

// Reads choices from the input; zeros after its end.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint32_t Byte() { return at_ < size_ ? data_[at_++] : 0; }
  uint32_t Below(uint32_t n) { return Byte() % n; }
  // Often small, sometimes extreme.
  int64_t Number() {
    switch (Below(16)) {
      case 0:
        return -1;
      case 1:
        return INT64_MAX;
      case 2:
        return int64_t{1} << (Byte() % 63);
      default:
        return Below(5);
    }
  }

 private:
  const uint8_t* const data_;
  const size_t size_;
  size_t at_ = 0;
};

void SetNumber(Choices& choose, inference::InferParameter* parameter) {
  switch (choose.Below(5)) {
    case 0:
      return parameter->set_bool_param(choose.Below(2) == 0);
    case 1:
      return parameter->set_double_param(static_cast<double>(choose.Number()) / 2);
    case 2:
      return parameter->set_string_param(std::to_string(choose.Number()));
    case 3:
      return parameter->set_uint64_param(static_cast<uint64_t>(choose.Number()));
    default:
      return parameter->set_int64_param(choose.Number());
  }
}

template <typename Tensor>
void SetRegion(Choices& choose, uint64_t bytes, Tensor* tensor) {
  auto& parameters = *tensor->mutable_parameters();
  parameters["shared_memory_region"].set_string_param(choose.Below(16) == 0 ? "q" : kRegion);
  parameters["shared_memory_byte_size"].set_int64_param(
      choose.Below(8) == 0 ? choose.Number() : static_cast<int64_t>(bytes));
  if (choose.Below(3) == 0) {
    const uint64_t offset = 8 * static_cast<uint64_t>(choose.Number());  // It may wrap.
    parameters["shared_memory_offset"].set_int64_param(static_cast<int64_t>(offset));
  }
}

void AddInput(Choices& choose, const std::string& name, bool typed, bool batch,
              ModelInferRequest* request) {
  auto* const tensor = request->add_inputs();
  tensor->set_name(name);
  tensor->set_datatype(kDatatypes[choose.Below(3) == 0 ? choose.Below(10) : 0]);
  if (batch) tensor->add_shape(choose.Below(8) == 0 ? choose.Number() : 3);
  for (uint32_t d = choose.Below(4); d > 0; --d) {
    tensor->add_shape(choose.Below(8) == 0 ? choose.Number() : 2);
  }
  uint64_t elements = 1;
  for (const int64_t size : tensor->shape()) elements *= static_cast<uint64_t>(size);
  if (elements > 4096) elements = choose.Below(8);
  if (choose.Below(16) == 0) ++elements;
  const uint64_t bytes = elements * ElementBytes(tensor->datatype());
  if (choose.Below(4) == 0) return SetRegion(choose, bytes, tensor);
  if (!typed) {
    request->add_raw_input_contents(std::string(bytes, static_cast<char>(choose.Byte())));
    return;
  }
  for (uint64_t i = 0; i < elements; ++i) tensor->mutable_contents()->add_fp32_contents(1);
}

void MakeRequest(Choices& choose, const Registry& registry, ModelInferRequest* request) {
  const auto operators = registry.List();
  const Operator& op = *operators[choose.Below(static_cast<uint32_t>(operators.size()))].op;
  const bool batch = choose.Below(3) == 0;
  request->set_model_name(op.name() + (batch ? ":batch" : ""));
  if (choose.Below(8) == 0) request->set_model_version(std::to_string(choose.Number()));
  const bool typed = choose.Below(4) == 0;
  for (const Parameter& parameter : op.signature().parameters()) {
    if (choose.Below(16) == 0) continue;
    if (parameter.scalar()) {
      SetNumber(choose, &(*request->mutable_parameters())[parameter.name]);
      continue;
    }
    if (parameter.kind != ParameterKind::kOutput) {
      AddInput(choose, parameter.name, typed, batch, request);
    }
    if (parameter.kind != ParameterKind::kInput && choose.Below(3) == 0) {
      auto* const output = request->add_outputs();
      output->set_name(parameter.name);
      if (choose.Below(2) == 0) SetRegion(choose, 64 * choose.Below(8), output);
    }
    if (parameter.kind == ParameterKind::kOutput && choose.Below(4) == 0) {
      (*request->mutable_parameters())["shape." + parameter.name].set_string_param("2,2");
    }
  }
  if (choose.Below(8) == 0) SetNumber(choose, &(*request->mutable_parameters())["timeout"]);
}

void CheckAnswer(const inference::ModelInferResponse& answer) {
  if (answer.outputs_size() != answer.raw_output_contents_size()) Fail("outputs without contents");
  for (int i = 0; i < answer.outputs_size(); ++i) {
    const auto& tensor = answer.outputs(i);
    uint64_t bytes = ElementBytes(tensor.datatype());
    for (const int64_t size : tensor.shape()) bytes *= static_cast<uint64_t>(size);
    if (tensor.parameters().contains("shared_memory_region")) bytes = 0;
    if (answer.raw_output_contents(i).size() != bytes) Fail("contents of the wrong size");
  }
}

// Pretends that the tasks ran.
absl::Status Answer(const InferContext& context, RequestBatch& batch, uint32_t failing,
                    inference::ModelInferResponse* answer) {
  const size_t count = batch.count();
  batch.status.assign(count, TaskStatus::kOk);
  batch.device_ns.assign(count, 1);
  batch.detail.assign(count, 0);
  if (failing % 5 == 1) {
    batch.status[failing % count] = TaskStatus::kAborted;
    batch.failed = 1;
  }
  v1::BatchResult result;
  BuildResult(batch, &result);
  return FillInferResponse(context, result, answer);
}

absl::Status Infer(World& world, ModelInferRequest& request, Choices& choose) {
  ASSIGN_OR_RETURN(InferWork work, TranslateInfer({world.core.limits, *world.registry,
                                                   world.core.models, *world.regions},
                                                  request));
  ASSIGN_OR_RETURN(auto planned, world.core.planner.Plan(work.batch, Regions::kBufferOwner));
  ASSIGN_OR_RETURN(auto ticket, world.core.admission.TryAcquire(world.client->accounts(),
                                                                planned->ResourcesNeeded()));
  const auto batch =
      Planner::Fill(work.batch, Clock::time_point::max(), std::move(planned), std::move(ticket));
  inference::ModelInferResponse answer;
  RETURN_IF_ERROR(Answer(*work.context, *batch, choose.Byte(), &answer));
  CheckAnswer(answer);
  return absl::OkStatus();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World* const world = new World;
  if (size == 0) return 0;
  ModelInferRequest request;
  Choices choose(data + 1, size - 1);
  if (data[0] % 2 == 0) {
    if (!request.ParseFromArray(data + 1, static_cast<int>(size - 1))) return 0;
  } else {
    MakeRequest(choose, *world->registry, &request);
  }
  const absl::Status status = Infer(*world, request, choose);
  if (!status.ok() && status.message().find("Fix: ") == absl::string_view::npos) {
    Fail("an error without a fix: " + std::string(status.message()));
  }
  if (world->core.admission.staging_used(0) != 0) Fail("staging memory leaked");
  if (world->core.admission.host().used() != 0) Fail("the daemon's memory leaked");
  // A region that nothing uses ends at once.
  static int inputs = 0;
  if (++inputs % kInputsOfRegion == 0) {
    if (!world->regions->Unregister(RegionKind::kSystem, kRegion)->HasBeenNotified()) {
      Fail("a reference to the region leaked");
    }
    world->RegisterRegion();
  }
  return 0;
}
