#include "server/models/model_loader.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/fuse.h"
#include "runtime/model/dtype.h"
#include "server/buffers/buffers.h"
#include "server/core/registry_catalog.h"
#include "server/graphs/errors.h"
#include "server/graphs/graph_memory.h"
#include "server/graphs/graph_messages.h"
#include "server/models/errors.h"
#include "server/models/model_import.h"
#include "server/workload/errors.h"

namespace resident {
namespace {

// Of all files of a model: below Protobuf's limit on the message with them.
constexpr uint64_t kMaxFileBytes = uint64_t{1900} << 20;
constexpr int kMaxFiles = 256;

bool IsFileName(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name.find('/') == std::string::npos &&
         name != "." && name != "..";
}

bool HasContents(const v1::GraphTensor& tensor) {
  return tensor.alias_of().empty() && (tensor.kind() == v1::GraphTensor::KIND_WEIGHT ||
                                       tensor.kind() == v1::GraphTensor::KIND_CONST);
}

// Nullopt: the sizes overflow, or are not numbers.
std::optional<uint64_t> DenseBytes(const v1::GraphTensor& tensor) {
  if (!v1::DType_IsValid(tensor.dtype()) || tensor.dtype() == v1::DTYPE_UNSPECIFIED) return {};
  uint64_t bytes = SizeOf(static_cast<DType>(tensor.dtype()));
  for (const v1::GraphDim& dim : tensor.shape()) {
    if (dim.size() < 1 ||
        __builtin_mul_overflow(bytes, static_cast<uint64_t>(dim.size()), &bytes)) {
      return {};
    }
  }
  return bytes;
}

}  // namespace

absl::Status ModelLoader::Add(v1::LoadModelRequest& message) {
  switch (message.part_case()) {
    case v1::LoadModelRequest::kHeader:
      return has_header_ ? errors::ModelLoadSecondHeader() : AddHeader(*message.mutable_header());
    case v1::LoadModelRequest::kWeight:
      return has_header_ ? AddWeight(*message.mutable_weight()) : errors::ModelLoadWithoutHeader();
    case v1::LoadModelRequest::kFile:
      return has_header_ ? AddFile(*message.mutable_file()) : errors::ModelLoadWithoutHeader();
    case v1::LoadModelRequest::PART_NOT_SET:
      break;
  }
  return errors::ModelLoadEmptyMessage();
}

absl::Status ModelLoader::AddHeader(v1::LoadModelHeader& header) {
  const std::string& name = header.name();
  if (!IsOperatorName(name)) return errors::ModelName(name);
  RETURN_IF_ERROR(identity_->account()->MayInstall(name));
  if (core_.registry.FindOperator(name).ok()) return errors::ModelNameIsOperator(name);
  if (header.has_graph() == header.has_onnx()) return errors::ModelWithoutSource();
  const auto nodes = static_cast<uint64_t>(header.graph().nodes_size());
  if (nodes > graph::kMaxRunNodes) return errors::TooManyNodesToRun(nodes, graph::kMaxRunNodes);
  if (header.instances() > ModelInstances::kMaxInstances) {
    return errors::ModelInstances(header.instances(), ModelInstances::kMaxInstances);
  }
  if (header.onnx().warmup_size() > static_cast<int>(ModelPlans::kMaxPlans)) {
    return errors::ModelWarmupCount(ModelPlans::kMaxPlans);
  }
  ASSIGN_OR_RETURN(header_charge_,
                   core_.admission.AcquireForGraph(*client_->accounts(), header.SpaceUsedLong(),
                                                   Budget::Purpose::kBatches));
  RETURN_IF_ERROR(identity_->account()->BeginInstall(name, absl::Now()));
  header_ = std::move(header);
  has_header_ = true;
  return header_.has_onnx() ? ExpectFiles() : ExpectWeights();
}

absl::Status ModelLoader::TakeMemory(uint64_t bytes) {
  charge_.Clear();
  Budget& budget = models_.weights;
  auto charge = budget.Acquire(models_.FindAccount(identity_->name()), bytes);
  if (!charge.has_value()) return errors::ModelMemoryFull(bytes, budget.used(), budget.limit());
  charge_ = *std::move(charge);
  return absl::OkStatus();
}

absl::Status ModelLoader::ExpectFiles() {
  if (!IsFileName(header_.onnx().file())) return errors::ModelFileName(header_.onnx().file());
  const uint64_t bytes = header_.onnx().file_bytes();
  if (bytes > kMaxFileBytes) return errors::ModelFileLimit(bytes, kMaxFileBytes);
  import_.mutable_model()->CopyFrom(header_.onnx());
  import_.mutable_model()->clear_warmup();
  // Twice: as messages, and in a memory object (model_import.h).
  return TakeMemory(2 * bytes);
}

absl::Status ModelLoader::AddFile(v1::ModelFilePart& part) {
  if (!header_.has_onnx()) return errors::ModelPartOfOther("a file");
  if (!IsFileName(part.name())) return errors::ModelFileName(part.name());
  file_bytes_ += part.data().size();
  const uint64_t wanted = header_.onnx().file_bytes();
  if (file_bytes_ > wanted) return errors::ModelFileBytes(file_bytes_, wanted);
  for (v1::ModelFilePart& file : *import_.mutable_files()) {
    if (file.name() != part.name()) continue;
    file.mutable_data()->append(part.data());
    return absl::OkStatus();
  }
  if (import_.files_size() == kMaxFiles) return errors::ModelFileCount(kMaxFiles);
  v1::ModelFilePart& file = *import_.add_files();  // Without fields that are not known.
  file.set_name(std::move(*part.mutable_name()));
  file.set_data(std::move(*part.mutable_data()));
  return absl::OkStatus();
}

absl::Status ModelLoader::ImportFiles(v1::GraphReport* report) {
  ASSIGN_OR_RETURN(std::shared_ptr<const ImportSource> source,
                   ImportSource::Make(std::exchange(import_, {})));
  const uint64_t source_bytes = source->content().size();
  ASSIGN_OR_RETURN(internal::ImportResponse response,
                   ImportModel(
                       *source, /*plan=*/{},
                       [this] {
                         absl::MutexLock lock(&mu_);
                         return withdrawn_ || core_.gate.draining();
                       },
                       [&](uint64_t bytes) { return TakeMemory(source_bytes + 2 * bytes); }));
  if (response.rules().dimensions_size() > 0) {
    source_ = std::move(source);
    rules_.Swap(response.mutable_rules());
  }
  source = nullptr;
  report->set_accepted(response.findings().empty());
  report->mutable_findings()->Swap(response.mutable_findings());
  report->set_errors(response.errors());
  if (!report->accepted()) return absl::OkStatus();
  header_.mutable_graph()->Swap(response.mutable_graph());
  const auto nodes = static_cast<uint64_t>(header_.graph().nodes_size());
  if (nodes > graph::kMaxRunNodes) return errors::TooManyNodesToRun(nodes, graph::kMaxRunNodes);
  RETURN_IF_ERROR(ExpectWeights());
  for (v1::ModelWeightPart& part : *response.mutable_weights()) RETURN_IF_ERROR(AddWeight(part));
  return CheckWeights();
}

absl::Status ModelLoader::ExpectWeights() {
  uint64_t total = 0;
  for (const v1::GraphTensor& tensor : header_.graph().tensors()) {
    if (!HasContents(tensor)) continue;
    if (tensor.strides_size() > 0 || tensor.offset() != 0) {
      return errors::NotAModel(absl::StrCat("weight '", tensor.name(), "' is not dense"),
                               "give weights neither strides nor an offset");
    }
    const std::optional<uint64_t> bytes = DenseBytes(tensor);
    if (!bytes.has_value() || __builtin_add_overflow(total, *bytes, &total)) {
      return errors::NotAModel(
          absl::StrCat("the size of weight '", tensor.name(), "' is not known, or too large"),
          "give it a dtype, and sizes that are numbers");
    }
    weights_[tensor.name()] = {.bytes = *bytes, .data = {}};
  }
  return TakeMemory(total + (source_ == nullptr ? 0 : source_->content().size()));
}

absl::Status ModelLoader::AddWeight(v1::ModelWeightPart& part) {
  if (!header_.has_graph()) return errors::ModelPartOfOther("a weight");
  const auto found = weights_.find(part.tensor());
  if (found == weights_.end()) return errors::ModelWeightUnknown(part.tensor());
  Weight& weight = found->second;
  const uint64_t size = weight.data.size() + part.data().size();
  if (size > weight.bytes) return errors::ModelWeightBytes(part.tensor(), size, weight.bytes);
  if (weight.data.empty()) {
    weight.data = std::move(*part.mutable_data());
  } else {
    weight.data.append(part.data());
  }
  return absl::OkStatus();
}

absl::Status ModelLoader::Finish() const {
  if (!has_header_) return errors::ModelLoadWithoutHeader();
  if (!header_.has_onnx()) return CheckWeights();
  const uint64_t wanted = header_.onnx().file_bytes();
  if (file_bytes_ != wanted) return errors::ModelFileBytes(file_bytes_, wanted);
  for (const v1::ModelFilePart& file : import_.files()) {
    if (file.name() == header_.onnx().file()) return absl::OkStatus();
  }
  return errors::ModelFileMissing(header_.onnx().file());
}

absl::Status ModelLoader::CheckWeights() const {
  for (const auto& [tensor, weight] : weights_) {
    if (weight.data.size() != weight.bytes) {
      return errors::ModelWeightBytes(tensor, weight.data.size(), weight.bytes);
    }
  }
  return absl::OkStatus();
}

void ModelLoader::HashContents() {
  assert(CheckWeights().ok());
  graph_content_ = SerializeGraph(header_.graph());
  stored_.graph_sha256 = Sha256Hex(graph_content_);
  Sha256 all;
  all.Field(stored_.graph_sha256);
  for (const auto& [tensor, weight] : weights_) {
    stored_.weights.push_back({tensor, Sha256Hex(weight.data)});
    all.Field(tensor).Field(stored_.weights.back().sha256);
  }
  if (source_ != nullptr) {
    stored_.plan_rules = rules_.SerializeAsString();
    stored_.source_sha256 = Sha256Hex(source_->content());
    all.Field(stored_.plan_rules).Field(stored_.source_sha256);
  }
  stored_.content_hash = all.Hex();
}

absl::Status ModelLoader::CheckOnThread(graph::CheckBudget& budget, v1::GraphReport* report,
                                        LoadedGraph::Checked* checked) {
  const RegistryCatalog catalog(core_.registry);
  *report = ValidateGraph(header_.graph(), catalog, /*dependencies=*/false,
                          FindDeviceLimit(models_.graphs.buffers), &budget);
  if (!report->accepted()) return absl::OkStatus();
  const v1::Graph plan = AddDeviceCopies(header_.graph());
  graph_ = std::make_shared<LoadedGraph>(header_.name(), SerializeGraph(plan), plan,
                                         models_.checked, models_.FindAccount(identity_->name()));
  const uint64_t bytes = graph_->content().size();
  auto charge = models_.checked.Acquire(models_.FindAccount(identity_->name()), bytes);
  if (!charge.has_value()) {
    return errors::ModelMemoryFull(bytes, models_.checked.used(), models_.checked.limit());
  }
  graph_->Keep(*std::move(charge));
  ASSIGN_OR_RETURN(*checked, graph_->Check(core_.registry, budget));
  return absl::OkStatus();
}

absl::StatusOr<LoadedGraph::Checked> ModelLoader::Check(v1::GraphReport* report) {
  LoadedGraph::Checked checked;
  absl::Status result;
  absl::Notification done;
  ASSIGN_OR_RETURN(const auto check, models_.graphs.checker.Post(
                                         {.holder = holder_, .runs = true},
                                         [&](graph::CheckBudget& budget) {
                                           return CheckOnThread(budget, report, &checked);
                                         },
                                         [&](const absl::Status& status) {
                                           result = status;
                                           done.Notify();
                                         }));
  bool withdrawn = false;
  {
    absl::MutexLock lock(&mu_);
    check_ = check;
    withdrawn = withdrawn_;
  }
  if (withdrawn) models_.graphs.checker.Cancel(check);
  done.WaitForNotification();
  {
    absl::MutexLock lock(&mu_);
    check_ = nullptr;
  }
  RETURN_IF_ERROR(result);
  return checked;
}

absl::Status ModelLoader::CheckRights(const graph::CheckedGraph& checked) const {
  for (const graph::OperatorInfo& op : checked.written_operators()) {
    RETURN_IF_ERROR(identity_->account()->MaySubmit(op.name));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<GraphModel>> ModelLoader::MakeModel(
    const LoadedGraph::Checked& checked) {
  ModelParts parts;
  auto largest = std::make_shared<ModelPlan>();
  largest->graph = graph_;
  ASSIGN_OR_RETURN(largest->interface, ReadInterface(checked->graph));
  RETURN_IF_ERROR(SetDimensions(rules_, &largest->interface));
  ASSIGN_OR_RETURN(const std::vector<PlanSizes> warmup, ReadWarmup(largest->interface));
  parts.name = header_.name();
  parts.checked = checked;
  parts.weights = std::make_shared<WeightSet>();
  for (const uint32_t tensor : largest->interface.weights) {
    const std::string name = checked->graph.TensorName(tensor);
    parts.weights->contents[name] = std::move(weights_[name].data);
  }
  parts.largest = std::move(largest);
  parts.source = source_;
  parts.client = core_.clients.MakeInternal("model " + header_.name(), identity_->account());
  std::optional<uint32_t> wanted;
  if (header_.has_device()) wanted = header_.device();
  ASSIGN_OR_RETURN(const Placement place,
                   ChooseBufferDevice(core_, *parts.client, wanted, parts.weights->bytes()));
  parts.device = place.device;
  parts.max_instances =
      header_.instances() == 0 ? ModelInstances::kDefaultInstances : header_.instances();
  parts.max_combined_rows = header_.max_combined_rows();
  parts.holder = holder_;
  parts.identity = identity_->account();
  parts.account = models_.FindAccount(identity_->name());
  parts.weight_memory = &models_.weights;
  parts.graph_memory = &models_.checked;
  parts.plans = &models_.plans;
  stored_.device = parts.device;
  stored_.instances = parts.max_instances;
  stored_.max_combined_rows = parts.max_combined_rows;
  const auto plans = ModelPlans::Make(models_.graphs, std::move(parts));
  for (const PlanSizes& sizes : warmup) RETURN_IF_ERROR(MakeInstance(plans->Find(sizes)));
  return std::make_shared<GraphModel>(models_.graphs, header_.name(), stored_, plans,
                                      std::move(charge_));
}

absl::StatusOr<std::vector<PlanSizes>> ModelLoader::ReadWarmup(
    const ModelInterface& interface) const {
  std::vector<PlanSizes> all;
  if (source_ == nullptr) {
    if (header_.onnx().warmup_size() > 0) return errors::ModelWarmup("the model has one plan");
    all.emplace_back();
  }
  for (const v1::ModelWarmup& shapes : header_.onnx().warmup()) {
    PlanSizes sizes(interface.dimensions.size());
    for (const auto& [name, shape] : shapes.inputs()) {
      const auto port = std::ranges::find(interface.inputs, name, &ModelPort::name);
      const std::string text = absl::StrCat("input ", errors::Quote(name));
      if (port == interface.inputs.end()) return errors::ModelWarmup(text + " is not known");
      if (static_cast<size_t>(shape.sizes_size()) != port->shape.size()) {
        return errors::ModelWarmup(absl::StrCat(text, " has ", port->shape.size(), " dimensions"));
      }
      for (size_t d = 0; d < port->shape.size(); ++d) {
        const uint64_t size = shape.sizes(static_cast<int>(d));
        const auto max = static_cast<uint64_t>(port->shape[d]);
        const int32_t axis = port->AxisOf(d);
        const bool dynamic = axis >= 0 || (d == 0 && port->scalar != graph::kNone);
        if (size < (dynamic ? 1 : max) || size > max) {
          return errors::ModelWarmup(absl::StrCat("dimension ", d, " of ", text, " is ", size,
                                                  " and must be ", dynamic ? "1 to " : "", max));
        }
        if (axis < 0) continue;
        if (sizes[axis] != 0 && sizes[axis] != static_cast<int64_t>(size)) {
          return errors::ModelWarmup(absl::StrCat("dimension ", interface.dimensions[axis].name,
                                                  " is ", size, " and ", sizes[axis]));
        }
        sizes[axis] = static_cast<int64_t>(size);
      }
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] != 0) continue;
      return errors::ModelWarmup(
          absl::StrCat("dimension ", interface.dimensions[i].name, " has no size"));
    }
    if (std::ranges::find(all, sizes) == all.end()) all.push_back(std::move(sizes));
  }
  return all;
}

absl::Status ModelLoader::MakeInstance(const std::shared_ptr<ModelInstances>& plan) {
  absl::Status made;
  absl::Notification done;
  plan->MakeFirst([&](const absl::Status& status) {
    made = status;
    done.Notify();
  });
  bool withdrawn = false;
  {
    absl::MutexLock lock(&mu_);
    making_ = plan;
    withdrawn = withdrawn_;
  }
  if (withdrawn) plan->CancelMaking();
  done.WaitForNotification();
  absl::MutexLock lock(&mu_);
  making_ = nullptr;
  return made;
}

void ModelLoader::Withdraw() {
  std::shared_ptr<GraphChecker::Check> check;
  std::shared_ptr<ModelInstances> making;
  {
    absl::MutexLock lock(&mu_);
    withdrawn_ = true;
    check = check_;
    making = making_;
  }
  if (check != nullptr) models_.graphs.checker.Cancel(check);
  if (making != nullptr) making->CancelMaking();
}

absl::Status ModelLoader::Load(const Progress& progress) {
  assert(Finish().ok());
  v1::LoadModelResponse response;
  response.set_state(v1::LoadModelResponse::STATE_CHECKED);
  if (header_.has_onnx()) {
    RETURN_IF_ERROR(ImportFiles(response.mutable_report()));
    if (!response.report().accepted()) {
      progress(std::move(response));
      return absl::OkStatus();
    }
  }
  ASSIGN_OR_RETURN(const LoadedGraph::Checked checked, Check(response.mutable_report()));
  const bool accepted = checked != nullptr;
  progress(std::exchange(response, {}));
  if (!accepted) return absl::OkStatus();
  RETURN_IF_ERROR(CheckRights(*checked));
  HashContents();
  ASSIGN_OR_RETURN(const std::shared_ptr<GraphModel> model, MakeModel(checked));
  {
    absl::MutexLock lock(&mu_);
    if (withdrawn_) return errors::Cancelled();
  }
  const std::string& name = header_.name();
  std::vector<std::string_view> contents = {graph_content_};
  const ModelParts& parts = model->plans()->parts();
  for (const auto& [tensor, content] : parts.weights->contents) contents.push_back(content);
  if (parts.source != nullptr) contents.push_back(parts.source->content());
  ASSIGN_OR_RETURN(const ModelTable::Added added,
                   models_.Add(name, model, identity_->name(), contents));
  response.set_state(v1::LoadModelResponse::STATE_LOADED);
  response.set_version(added.version);
  response.set_revision(added.revision);
  response.set_already_loaded(added.already_loaded);
  progress(response);
  if (!header_.activate()) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      const ModelTable::Change change,
      models_.Activate(name, added.version, std::nullopt, /*bake=*/{}, identity_->name()));
  response.set_state(v1::LoadModelResponse::STATE_ACTIVE);
  response.set_revision(change.revision);
  progress(std::move(response));
  return absl::OkStatus();
}

}  // namespace resident
