
#include "server/inference/infer_request.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/call_arguments.h"
#include "runtime/model/dtype.h"
#include "server/inference/datatypes.h"
#include "server/inference/errors.h"
#include "server/inference/infer_parameters.h"
#include "server/inference/loaded_models.h"
#include "server/inference/model_metadata.h"
#include "server/workload/errors.h"

namespace resident {
namespace {

using inference::ModelInferRequest;
using Source = OutputPlan::Source;

// Fills a repeated field of uint64 with a shape.
template <typename Sizes, typename Column>
void SetShape(const Sizes& shape, Column* column) {
  for (const int64_t size : shape) column->add_shape(static_cast<uint64_t>(size));
}

// A column in a region: the tensors of all tasks, one after the other.
v1::BufferColumn* SetRegionColumn(const RegionPart& part, DType dtype, const Shape& shape,
                                  uint64_t task_bytes, uint64_t tasks, v1::Column* column) {
  v1::BufferColumn* const buffer = column->mutable_buffer();
  buffer->add_buffer_ids(part.region->buffer());
  buffer->set_dtype(static_cast<v1::DType>(dtype));
  SetShape(shape, buffer);
  buffer->set_scalar_shape(shape.empty());
  const uint64_t start = part.region->spec().offset + part.offset;
  if (start == 0) {
    buffer->set_stride_bytes(task_bytes);
  } else {
    for (uint64_t i = 0; i < tasks; ++i) buffer->add_offsets(start + i * task_bytes);
  }
  return buffer;
}

// What both kinds of operators have in common: the model, the parameters, and the contents of the
// inputs.
class Translator {
 public:
  Translator(const InferSources& sources, ModelInferRequest& request,
             std::shared_ptr<const Operator> op, ModelName model)
      : sources_(sources), request_(request), op_(std::move(op)) {
    work_.context = std::make_shared<InferContext>();
    context().model = std::move(model);
    context().id = std::move(*request.mutable_id());
  }
  virtual ~Translator() = default;

  absl::StatusOr<InferWork> Translate() {
    ASSIGN_OR_RETURN(parameters_, ReadOwnParameters());
    context().final_response = parameters_.final_response;
    work_.batch.mutable_options()->set_task_times(true);  // For the statistics.
    if (parameters_.timeout_us != 0) {
      work_.batch.mutable_options()->set_timeout_us(parameters_.timeout_us);
    }
    RETURN_IF_ERROR(ReadInputs());
    RETURN_IF_ERROR(ReadOutputs());
    RETURN_IF_ERROR(FillBatch());
    for (const OutputPlan& output : context().outputs) {
      if (output.source == Source::kInPlace) continue;
      RETURN_IF_ERROR(CheckCopied({model(), "output", output.name}, output.part));
    }
    return std::move(work_);
  }

 protected:
  // An output that the request names.
  struct Requested {
    const std::string* name;
    RegionPart part;
  };

  virtual absl::StatusOr<RequestParameters> ReadOwnParameters() const {
    return ReadParameters(model(), *op_, request_);
  }
  // Sets the columns of the batch and the context's outputs.
  virtual absl::Status FillBatch() = 0;
  // Position of the input, or of the output, among those of the operator; -1: there is none.
  virtual int FindInput(const std::string& name) const = 0;
  virtual int FindOutput(const std::string& name) const = 0;
  virtual std::string InputNames() const = 0;
  virtual std::string OutputNames() const = 0;

  InferContext& context() { return *work_.context; }
  // Sets the version that the request names.
  template <typename Work>
  void SetVersion(Work* work) {
    const ModelName& named = context().model;
    work->set_version(named.version);
    if (!named.content_hash.empty()) work->set_content_hash(named.content_hash);
    if (!named.label.empty()) work->set_label(named.label);
  }
  const std::string& model() const { return request_.model_name(); }
  // Moves the elements of an input in a region into `data`.
  absl::Status CopyIn(InputTensor& input) const {
    return CopyFromRegion(model(), sources_.limits.max_message_mib, input);
  }
  // Keeps the region until the tasks have ended.
  void Use(const RegionPart& part) {
    if (part.region != nullptr) context().regions.push_back(part.region);
  }

  const InferSources& sources_;
  ModelInferRequest& request_;
  const std::shared_ptr<const Operator> op_;  // Null: the model was loaded.
  InferWork work_;
  RequestParameters parameters_;
  // By position.
  std::vector<std::optional<InputTensor>> inputs_;
  // In the order of the request; empty: all outputs.
  std::vector<std::pair<int, Requested>> requested_;

 private:
  absl::Status ReadInputs() {
    const bool raw = request_.raw_input_contents_size() > 0;
    int next_raw = 0;
    for (int i = 0; i < request_.inputs_size(); ++i) {
      const auto& message = request_.inputs(i);
      const errors::TensorRef place{model(), "input", message.name()};
      const int at = FindInput(message.name());
      if (at < 0) return errors::UnknownTensor(place, InputNames());
      if (inputs_.size() <= static_cast<size_t>(at)) inputs_.resize(static_cast<size_t>(at) + 1);
      std::optional<InputTensor>& input = inputs_[static_cast<size_t>(at)];
      if (input.has_value()) return errors::TensorTwice(place);
      ASSIGN_OR_RETURN(input, ReadInputType(model(), message));
      std::string* contents = nullptr;
      if (raw && !message.parameters().contains("shared_memory_region")) {
        if (message.has_contents()) return errors::RawAndTypedContents();
        if (next_raw < request_.raw_input_contents_size()) {
          contents = request_.mutable_raw_input_contents(next_raw);
        }
        ++next_raw;
        if (contents == nullptr) continue;  // The number of entries is wrong: see below.
      }
      RETURN_IF_ERROR(ReadContents(sources_.regions, model(), message, contents, *input));
    }
    if (raw && next_raw != request_.raw_input_contents_size()) {
      return errors::RawContentsCount(static_cast<size_t>(request_.raw_input_contents_size()),
                                      static_cast<size_t>(next_raw));
    }
    return absl::OkStatus();
  }

  absl::Status ReadOutputs() {
    for (const auto& message : request_.outputs()) {
      const errors::TensorRef place{model(), "output", message.name()};
      const int at = FindOutput(message.name());
      if (at < 0) return errors::UnknownTensor(place, OutputNames());
      for (const auto& [other, requested] : requested_) {
        if (other == at) return errors::TensorTwice(place);
      }
      Requested requested{&message.name(), {}};
      if (!message.parameters().empty()) {
        ASSIGN_OR_RETURN(requested.part, ReadRegionPart(sources_.regions, model(), "output",
                                                        message.name(), message.parameters()));
        Use(requested.part);
      }
      requested_.emplace_back(at, std::move(requested));
    }
    return absl::OkStatus();
  }
};

// Tasks of a native operator. Inputs and outputs are found by the position of their parameter.
class TaskTranslator final : public Translator {
 public:
  using Translator::Translator;

 private:
  using Parameters = std::vector<Parameter>;
  const Parameters& parameters() const { return op_->signature().parameters(); }
  bool batched() const { return work_.context->model.batch; }

  static bool IsInput(const Parameter& parameter) {
    return parameter.kind != ParameterKind::kOutput;
  }
  static bool IsOutput(const Parameter& parameter) {
    return parameter.kind == ParameterKind::kOutput || parameter.kind == ParameterKind::kInOut;
  }
  int Find(const std::string& name, bool (*accepts)(const Parameter&)) const {
    for (size_t p = 0; p < parameters().size(); ++p) {
      if (parameters()[p].name == name && accepts(parameters()[p])) return static_cast<int>(p);
    }
    return -1;
  }
  std::string Names(bool (*accepts)(const Parameter&)) const {
    std::vector<std::string> names;
    for (const Parameter& parameter : parameters()) {
      if (accepts(parameter)) names.push_back(parameter.name);
    }
    return absl::StrJoin(names, ", ");
  }
  int FindInput(const std::string& name) const override { return Find(name, IsInput); }
  int FindOutput(const std::string& name) const override { return Find(name, IsOutput); }
  std::string InputNames() const override { return Names(IsInput); }
  std::string OutputNames() const override { return Names(IsOutput); }

  absl::Status FillBatch() override {
    inputs_.resize(parameters().size());
    if (batched()) RETURN_IF_ERROR(TakeBatchDimension());
    // Before anything is done for each task.
    const uint64_t limit = sources_.limits.max_batch_tasks;
    if (count_ > limit) return errors::TooManyTasks(count_, limit);
    v1::OperatorTasks* const tasks = work_.batch.mutable_tasks();
    tasks->set_operator_(op_->name());
    SetVersion(tasks);
    tasks->set_count(static_cast<uint32_t>(count_));
    context().tasks = count_;
    RETURN_IF_ERROR(CheckInputs());
    ListTypes();
    const size_t arguments = CountArguments();
    for (size_t p = 0; p < arguments; ++p) {
      const Parameter& parameter = parameters()[p];
      v1::Column* const column = tasks->add_arguments();
      if (parameter.scalar()) {
        RETURN_IF_ERROR(FillScalar(p, column));
      } else if (parameter.kind == ParameterKind::kOutput) {
        RETURN_IF_ERROR(FillOutput(p, column));
      } else {
        RETURN_IF_ERROR(FillInput(p, column));
      }
    }
    OrderOutputs();
    return absl::OkStatus();
  }

  // Takes the first dimension of every input as the number of tasks. Scalars with one value for all
  // tasks keep theirs.
  absl::Status TakeBatchDimension() {
    const std::string* first = nullptr;
    for (std::optional<InputTensor>& input : inputs_) {
      if (!input.has_value()) continue;
      const errors::TensorRef place{model(), "input", *input->name};
      if (input->shape.empty()) return errors::NoBatchDimension(place);
      const int64_t size = input->shape[0];
      if (first == nullptr) {
        first = input->name;
        count_ = static_cast<uint64_t>(size);
      } else if (static_cast<uint64_t>(size) != count_) {
        return errors::BatchDimensions(place, size, static_cast<int64_t>(count_), *first);
      }
      input->shape.erase(input->shape.begin());
    }
    if (first == nullptr) return errors::NoBatchSize(model());
    return count_ == 0 ? errors::EmptyBatchDimension({model(), "input", *first}) : absl::OkStatus();
  }

  absl::Status CheckInputs() const {
    for (size_t p = 0; p < parameters().size(); ++p) {
      const Parameter& parameter = parameters()[p];
      const bool by_parameter = parameters_.scalars[p].has_value();
      if (inputs_[p].has_value()) {
        if (by_parameter) return errors::ScalarTwice(model(), parameter.name);
      } else if (IsInput(parameter) && !by_parameter && !parameter.default_bits.has_value()) {
        return errors::InputMissing({model(), "input", parameter.name});
      }
    }
    return absl::OkStatus();
  }

  // The types of the tensors that are sent, from which those of outputs follow.
  void ListTypes() {
    sent_.resize(parameters().size());
    for (size_t p = 0; p < parameters().size(); ++p) {
      if (inputs_[p].has_value() && !parameters()[p].scalar()) {
        sent_[p] = ArgumentType::Tensor(inputs_[p]->dtype, inputs_[p]->shape);
      }
    }
  }

  // Arguments up to the last one that is not a scalar left to its default.
  size_t CountArguments() const {
    size_t count = parameters().size();
    while (count > 0 && parameters()[count - 1].scalar() && !inputs_[count - 1].has_value() &&
           !parameters_.scalars[count - 1].has_value()) {
      --count;
    }
    return count;
  }

  absl::Status FillScalar(size_t p, v1::Column* column) {
    const Parameter& parameter = parameters()[p];
    const DType dtype = parameter.dtypes[0];
    if (parameters_.scalars[p].has_value()) {
      *column->mutable_scalar() = std::move(*parameters_.scalars[p]);
      return absl::OkStatus();
    }
    const auto add = [&](const void* element) {
      const Element value = ReadElement(dtype, element);
      if (value.floating) {
        column->mutable_scalar()->add_f64(value.real);
      } else {
        column->mutable_scalar()->add_i64(value.integer);
      }
    };
    if (!inputs_[p].has_value()) {
      add(&*parameter.default_bits);
      return absl::OkStatus();
    }
    InputTensor& input = *inputs_[p];
    const errors::TensorRef place{model(), "input", parameter.name};
    if (input.dtype != dtype) {
      return errors::ScalarDatatype(place, GetDatatype(input.dtype).name, GetDatatype(dtype).name);
    }
    if (input.shape.size() > 1 || input.elements != count_) {
      return errors::ScalarShape(place, ShapeText(input.shape), batched() ? "[tasks, 1]" : "[1]");
    }
    if (input.part.region != nullptr) RETURN_IF_ERROR(CopyIn(input));
    const char* element = input.data.data();
    for (uint64_t i = 0; i < count_; ++i, element += SizeOf(dtype)) add(element);
    return absl::OkStatus();
  }

  absl::Status FillInput(size_t p, v1::Column* column) {
    InputTensor& input = *inputs_[p];
    const Parameter& parameter = parameters()[p];
    const bool inout = parameter.kind == ParameterKind::kInOut;
    if (input.part.region != nullptr && !inout) {
      RETURN_IF_ERROR(CheckInPlace("input", parameter.name, input.part, input.dtype));
      Use(input.part);
      SetRegionColumn(input.part, input.dtype, input.shape, count_ == 0 ? 0 : input.bytes / count_,
                      count_, column);
      return absl::OkStatus();
    }
    if (input.part.region != nullptr) RETURN_IF_ERROR(CopyIn(input));
    v1::InlineColumn* const data = column->mutable_inline_();
    data->set_dtype(static_cast<v1::DType>(input.dtype));
    SetShape(input.shape, data);
    *data->mutable_data() = std::move(input.data);
    if (inout) AddReturned(p, input.dtype, {input.shape.begin(), input.shape.end()});
    return absl::OkStatus();
  }

  // An output whose elements BatchResult.outputs contains.
  void FillReturned(size_t p, v1::Column* column) {
    const RequestedType& type = parameters_.types[p];
    v1::ReturnedColumn* const returned = column->mutable_returned();
    returned->set_infer_shape(!type.shape.has_value());
    DType dtype = type.dtype.value_or(DType::kInvalid);
    if (type.shape.has_value()) {
      SetShape(*type.shape, returned);
      if (dtype == DType::kInvalid) dtype = InferDType(p);
    }
    returned->set_dtype(static_cast<v1::DType>(dtype));
    AddReturned(p, dtype, type.shape.value_or(std::vector<int64_t>()));
  }

  absl::Status FillOutput(size_t p, v1::Column* column) {
    const Parameter& parameter = parameters()[p];
    const RequestedType& type = parameters_.types[p];
    const RegionPart* const part = FindPart(p);
    if (part == nullptr || part->region == nullptr) {
      FillReturned(p, column);
      return absl::OkStatus();
    }
    OutputType output;
    if (type.shape.has_value()) {
      output.shape.assign(type.shape->begin(), type.shape->end());
      output.dtype = InferDType(p);
    } else {
      ASSIGN_OR_RETURN(output, InferOutput(op_->signature(), op_->name(), sent_, p));
    }
    output.dtype = type.dtype.value_or(output.dtype);
    const errors::TensorRef place{model(), "output", parameter.name};
    const std::optional<int64_t> elements = ElementCount(output.shape);
    uint64_t task_bytes = 0;
    uint64_t all = 0;
    if (!elements.has_value() ||
        __builtin_mul_overflow(static_cast<uint64_t>(*elements), SizeOf(output.dtype),
                               &task_bytes) ||
        __builtin_mul_overflow(task_bytes, count_, &all)) {
      return errors::TensorTooLarge(place);
    }
    if (all > part->bytes) return errors::RegionTooSmall(place, part->bytes, all);
    RETURN_IF_ERROR(CheckInPlace("output", parameter.name, *part, output.dtype));
    SetRegionColumn(*part, output.dtype, output.shape, task_bytes, count_, column);
    outputs_.emplace_back(p, OutputPlan{parameter.name,
                                        Source::kInPlace,
                                        0,
                                        output.dtype,
                                        {output.shape.begin(), output.shape.end()},
                                        *part});
    return absl::OkStatus();
  }

  // The dtype of an output whose shape the request sets.
  DType InferDType(size_t p) const { return InferOutputDType(op_->signature(), sent_, p); }

  // Whether tasks can use the part where it is.
  absl::Status CheckInPlace(const char* kind, const std::string& name, const RegionPart& part,
                            DType dtype) {
    const errors::TensorRef place{model(), kind, name};
    const uint64_t start = part.region->spec().offset + part.offset;
    if (start % SizeOf(dtype) != 0) return errors::RegionAlignment(place, start, SizeOf(dtype));
    if (first_in_place_ == nullptr) first_in_place_ = part.region;
    const Region& first = *first_in_place_;
    if (part.region->device() == first.device()) return absl::OkStatus();
    return errors::RegionOnOtherDevice(place, part.region->spec().name, part.region->device(),
                                       first.spec().name, first.device());
  }

  // The part of a region that the request names for an output; null: the output is not requested.
  const RegionPart* FindPart(size_t p) const {
    for (const auto& [at, requested] : requested_) {
      if (static_cast<size_t>(at) == p) return &requested.part;
    }
    return nullptr;
  }

  // The next column whose elements BatchResult.outputs contains.
  void AddReturned(size_t p, DType dtype, std::vector<int64_t> shape) {
    OutputPlan output{
        parameters()[p].name, Source::kReturned, returned_++, dtype, std::move(shape), {}};
    if (const RegionPart* const part = FindPart(p)) output.part = *part;
    outputs_.emplace_back(p, std::move(output));
  }

  // The outputs that were requested, in the order of the request.
  void OrderOutputs() {
    for (auto& [p, output] : outputs_) {
      if (requested_.empty()) context().outputs.push_back(std::move(output));
    }
    for (const auto& [at, requested] : requested_) {
      for (auto& [p, output] : outputs_) {
        if (p == static_cast<size_t>(at)) context().outputs.push_back(std::move(output));
      }
    }
  }

  uint64_t count_ = 1;
  std::vector<std::optional<ArgumentType>> sent_;
  std::vector<std::pair<size_t, OutputPlan>> outputs_;  // By parameter.
  int returned_ = 0;
  std::shared_ptr<Region> first_in_place_;  // That tasks use where it is.
};

// Runs of a bytecode operator.
class ProgramTranslator final : public Translator {
 public:
  using Translator::Translator;

 private:
  static constexpr int64_t kMaxRegisters = 16;
  static constexpr const char* kOutputs[] = {kRegistersTensor, kErrorsTensor, kCyclesTensor};

  int FindInput(const std::string& name) const override {
    return name == kRegistersTensor ? 0 : -1;
  }
  int FindOutput(const std::string& name) const override {
    const auto* const found = std::find(std::begin(kOutputs), std::end(kOutputs), name);
    return found == std::end(kOutputs) ? -1 : static_cast<int>(found - std::begin(kOutputs));
  }
  std::string InputNames() const override { return kRegistersTensor; }
  std::string OutputNames() const override { return absl::StrJoin(kOutputs, ", "); }

  absl::Status FillBatch() override {
    const std::string registers = kRegistersTensor;
    const errors::TensorRef place{model(), "input", registers};
    if (inputs_.empty() || !inputs_[0].has_value()) return errors::InputMissing(place);
    InputTensor& input = *inputs_[0];
    if (input.dtype != DType::kI32) {
      return errors::Datatype(place, GetDatatype(input.dtype).name, "INT32");
    }
    if (input.shape.size() != 2 || input.shape[1] > kMaxRegisters) {
      return errors::RegistersShape(place, ShapeText(input.shape), kMaxRegisters);
    }
    const auto runs = static_cast<uint64_t>(input.shape[0]);
    const auto width = static_cast<uint32_t>(input.shape[1]);
    if (runs == 0) return errors::NoRuns(place);
    const uint64_t limit = sources_.limits.max_batch_tasks;
    if (runs > limit) return errors::TooManyTasks(runs, limit);
    if (input.part.region != nullptr) RETURN_IF_ERROR(CopyIn(input));
    v1::FluxPrograms* const programs = work_.batch.mutable_programs();
    programs->set_operator_(op_->name());
    SetVersion(programs);
    programs->set_count(static_cast<uint32_t>(runs));
    *programs->mutable_initial() = std::move(input.data);
    programs->set_initial_width(width);
    std::vector<uint32_t> wanted = parameters_.wanted;
    for (uint32_t r = 0; r < std::max(width, 1u) && parameters_.wanted.empty(); ++r) {
      wanted.push_back(r);
    }
    for (const uint32_t r : wanted) programs->add_wanted(r);
    if (parameters_.max_cycles.has_value()) programs->set_max_cycles(*parameters_.max_cycles);
    context().tasks = runs;
    AddOutputs(static_cast<int64_t>(runs), static_cast<int64_t>(wanted.size()));
    return absl::OkStatus();
  }

  void AddOutputs(int64_t runs, int64_t wanted) {
    const OutputPlan all[] = {
        {kRegistersTensor, Source::kRegisters, 0, DType::kI32, {runs, wanted}, {}},
        {kErrorsTensor, Source::kErrors, 0, DType::kU8, {runs}, {}},
        {kCyclesTensor, Source::kCycles, 0, DType::kU32, {runs}, {}}};
    if (requested_.empty()) context().outputs.assign(std::begin(all), std::end(all));
    for (const auto& [at, requested] : requested_) {
      context().outputs.push_back(all[at]);
      context().outputs.back().part = requested.part;
    }
  }
};

// A request to a model that was loaded.
class LoadedModelTranslator final : public Translator {
 public:
  LoadedModelTranslator(const InferSources& sources, ModelInferRequest& request, LoadedModel model,
                        ModelName name)
      : Translator(sources, request, nullptr, std::move(name)), model_(std::move(model)) {
    for (const v1::GraphScalar& scalar : model_.info.scalars()) scalars_.insert(scalar.name());
  }

 private:
  using Tensors = google::protobuf::RepeatedPtrField<v1::ModelTensorInfo>;

  static int Find(const Tensors& tensors, const std::string& name) {
    for (int i = 0; i < tensors.size(); ++i) {
      if (tensors[i].name() == name) return i;
    }
    return -1;
  }
  static std::string Names(const Tensors& tensors) {
    return absl::StrJoin(tensors, ", ", [](std::string* out, const v1::ModelTensorInfo& tensor) {
      out->append(tensor.name());
    });
  }
  int FindInput(const std::string& name) const override { return Find(model_.info.inputs(), name); }
  int FindOutput(const std::string& name) const override {
    return Find(model_.info.outputs(), name);
  }
  std::string InputNames() const override { return Names(model_.info.inputs()); }
  std::string OutputNames() const override { return Names(model_.info.outputs()); }

  absl::StatusOr<RequestParameters> ReadOwnParameters() const override {
    return ReadModelParameters(model(), scalars_, request_);
  }

  absl::Status FillBatch() override {
    v1::ModelCall& call = *work_.batch.mutable_model();
    call.set_model(model_.name);
    // A request without a version gets the one that is active when it is admitted.
    call.set_version(context().model.version);
    for (std::optional<InputTensor>& input : inputs_) {
      if (!input.has_value()) continue;
      if (input->part.region != nullptr) {
        Use(input->part);
        RETURN_IF_ERROR(CopyIn(*input));
      }
      v1::ModelTensor& tensor = *call.add_inputs();
      tensor.set_name(*input->name);
      tensor.set_dtype(static_cast<v1::DType>(input->dtype));
      SetShape(input->shape, &tensor);
      *tensor.mutable_data() = std::move(input->data);
    }
    for (const auto& [name, value] : parameters_.model_scalars) {
      (*call.mutable_scalars())[name] = value;
    }
    const auto add = [&](const std::string& name, const RegionPart& part) {
      OutputPlan output{name, Source::kReturned, call.outputs_size(), DType::kInvalid, {}, part};
      context().outputs.push_back(std::move(output));
      call.add_outputs(name);
    };
    for (const auto& [at, requested] : requested_) add(*requested.name, requested.part);
    if (!requested_.empty()) return absl::OkStatus();
    for (const v1::ModelTensorInfo& output : model_.info.outputs()) add(output.name(), {});
    return absl::OkStatus();
  }

  const LoadedModel model_;
  std::set<std::string> scalars_;
};

}  // namespace

absl::StatusOr<InferWork> TranslateInfer(const InferSources& sources, ModelInferRequest& request) {
  ASSIGN_OR_RETURN(ModelName model, ParseModelName(request.model_name(), request.model_version()));
  if (sources.models.Has(model.operator_name)) {
    ASSIGN_OR_RETURN(LoadedModel loaded, FindLoadedModel(sources.models, model));
    return LoadedModelTranslator(sources, request, std::move(loaded), std::move(model)).Translate();
  }
  ASSIGN_OR_RETURN(auto op, sources.registry.FindOperator(model.operator_name));
  if (op->bytecode()) {
    return ProgramTranslator(sources, request, std::move(op), std::move(model)).Translate();
  }
  return TaskTranslator(sources, request, std::move(op), std::move(model)).Translate();
}

}  // namespace resident
