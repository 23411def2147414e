// model: loads graphs as models with versions, changes which version serves, and sends requests.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/cli/common_options.h"
#include "client/cli/format.h"
#include "client/cli/graph_file.h"
#include "client/cli/output.h"
#include "client/cli/proto_json.h"
#include "client/cli/values.h"
#include "client/commands/bake_flags.h"
#include "client/commands/command.h"
#include "client/commands/graph_commands.h"
#include "client/models.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/safetensors.h"

namespace resident::cli {
namespace {

struct ModelOptions {
  std::string name;
  std::string weights;
  std::vector<std::string> data;
  std::vector<std::string> sizes;
  std::vector<std::string> max;
  std::string warmup;
  std::string fixed;
  uint64_t max_batch = 0;
  std::optional<uint32_t> device;
  std::optional<uint64_t> expected_revision;
  uint32_t instances = 0;
  uint32_t max_combined_rows = 0;
  uint32_t version = 0;
  bool activate = true;
  BakeFlags bake;
  PercentFlag share;
  bool fuse = true;
};

// "[1-8, 64]".
std::string ShapeText(const v1::ModelTensorInfo& tensor) {
  std::vector<std::string> sizes;
  for (int d = 0; d < tensor.shape_size(); ++d) {
    const uint64_t max = d < tensor.most_size() ? tensor.most(d) : tensor.max();
    sizes.push_back(tensor.shape(d) < 0 ? absl::StrCat("1-", max) : absl::StrCat(tensor.shape(d)));
  }
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

// What is sent after the header: the weights of a graph from a safetensors file, whose other
// tensors are not sent; or files.
class Parts {
 public:
  // `path` empty: there are no weights.
  absl::Status OpenWeights(const std::string& path, const v1::Graph& graph) {
    if (path.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
    file_ = std::make_shared<const SafetensorsFile>(std::move(file));
    for (const v1::GraphTensor& tensor : graph.tensors()) {
      if (!tensor.alias_of().empty() || (tensor.kind() != v1::GraphTensor::KIND_WEIGHT &&
                                         tensor.kind() != v1::GraphTensor::KIND_CONST)) {
        continue;
      }
      const auto& all = file_->tensors();
      const auto found = std::find_if(all.begin(), all.end(), [&](const SafetensorsTensor& each) {
        return each.name == tensor.name();
      });
      if (found == all.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, " has no tensor '", tensor.name(),
                         "', which is a weight of the graph. Fix: give the file with the weights"));
      }
      if (found->dtype != static_cast<DType>(tensor.dtype())) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor '", tensor.name(), "' of ", path,
                         " has another dtype than in the graph. Fix: convert one of them"));
      }
      tensors_[tensor.name()] = &*found;
    }
    return absl::OkStatus();
  }

  // Adds a file under its name without folders, which it returns.
  absl::StatusOr<std::string> AddFile(const std::string& path) {
    const std::string name = path.substr(path.rfind('/') + 1);
    if (files_.contains(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("two files have the name '", name, "'. Fix: rename one of them"));
    }
    RETURN_IF_ERROR(ReadFile(path, &files_[name]));
    return name;
  }

  std::map<std::string, uint64_t> sizes() const {
    std::map<std::string, uint64_t> sizes;
    for (const auto& [name, tensor] : tensors_) sizes[name] = tensor->size_bytes();
    for (const auto& [name, bytes] : files_) sizes[name] = bytes.size();
    return sizes;
  }
  absl::Status Read(const std::string& name, uint64_t offset, std::string* to) const {
    if (file_ != nullptr) return file_->Read(*tensors_.at(name), offset, to->size(), to->data());
    files_.at(name).copy(to->data(), to->size(), offset);
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<const SafetensorsFile> file_;  // Null: none.
  std::map<std::string, const SafetensorsTensor*> tensors_;
  std::map<std::string, std::string> files_;  // The contents.
};

// "NAME=VALUE".
absl::StatusOr<std::pair<std::string, std::string>> ParsePair(const std::string& text,
                                                              const char* flag) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " needs NAME=VALUE, and not '", text, "'"));
  }
  return std::pair(text.substr(0, equals), text.substr(equals + 1));
}

// NAME=N of each.
absl::Status ReadSizes(const std::vector<std::string>& texts, const char* flag,
                       google::protobuf::Map<std::string, uint64_t>* sizes) {
  for (const std::string& each : texts) {
    ASSIGN_OR_RETURN(const auto pair, ParsePair(each, flag));
    uint64_t size = 0;
    if (!absl::SimpleAtoi(pair.second, &size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, " needs numbers, and not '", each, "'"));
    }
    if (!sizes->insert({pair.first, size}).second) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, " has '", pair.first, "' twice"));
    }
  }
  return absl::OkStatus();
}

// "ids=1x32,1x128;lengths=1,1": the first shapes of all inputs are those of the first plan.
absl::Status ReadWarmup(const std::string& text, v1::OnnxModel* model) {
  if (text.empty()) return absl::OkStatus();
  const std::vector<std::string> inputs = absl::StrSplit(text, ';');
  for (const std::string& each : inputs) {
    ASSIGN_OR_RETURN(const auto pair, ParsePair(each, "warmup"));
    const std::vector<std::string> shapes = absl::StrSplit(pair.second, ',');
    for (size_t i = 0; i < shapes.size(); ++i) {
      if (static_cast<int>(i) == model->warmup_size()) model->add_warmup();
      v1::ModelShape shape;
      for (const absl::string_view number : absl::StrSplit(shapes[i], 'x')) {
        uint64_t size = 0;
        if (!absl::SimpleAtoi(number, &size)) {
          return absl::InvalidArgumentError(absl::StrCat(
              "--warmup needs shapes such as ", pair.first, "=1x32,1x128, and not '", each, "'"));
        }
        shape.add_sizes(size);
      }
      auto& of_plan = *model->mutable_warmup(static_cast<int>(i))->mutable_inputs();
      if (!of_plan.insert({pair.first, shape}).second) {
        return absl::InvalidArgumentError(absl::StrCat("--warmup has '", pair.first, "' twice"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReadOnnx(const std::string& path, const ModelOptions& options, v1::OnnxModel* model,
                      Parts* parts) {
  ASSIGN_OR_RETURN(*model->mutable_file(), parts->AddFile(path));
  for (const std::string& data : options.data) RETURN_IF_ERROR(parts->AddFile(data).status());
  model->set_max_batch(options.max_batch);
  RETURN_IF_ERROR(ReadSizes(options.sizes, "sizes", model->mutable_sizes()));
  RETURN_IF_ERROR(ReadSizes(options.max, "max", model->mutable_max_sizes()));
  RETURN_IF_ERROR(ReadWarmup(options.warmup, model));
  if (options.fixed.empty()) return absl::OkStatus();
  const std::vector<std::string> fixed = absl::StrSplit(options.fixed, ';');
  for (const std::string& each : fixed) {
    ASSIGN_OR_RETURN(const auto pair, ParsePair(each, "fixed"));
    if (!model->mutable_fixed_inputs()->insert({pair.first, pair.second}).second) {
      return absl::InvalidArgumentError(absl::StrCat("--fixed has '", pair.first, "' twice"));
    }
  }
  return absl::OkStatus();
}

// Sets what the version is made of.
absl::Status ReadModel(const std::string& path, const ModelOptions& options,
                       v1::LoadModelHeader* header, Parts* parts) {
  if (path.ends_with(".onnx")) {
    if (!options.weights.empty() || !options.fuse) {
      return absl::InvalidArgumentError(
          "--weights and --fuse are for graphs, and the file is a model in the form of ONNX. Fix: "
          "leave them out; --data names files with its external data");
    }
    return ReadOnnx(path, options, header->mutable_onnx(), parts);
  }
  if (!options.data.empty() || !options.sizes.empty() || !options.max.empty() ||
      !options.warmup.empty() || !options.fixed.empty() || options.max_batch != 0) {
    return absl::InvalidArgumentError(
        "--data, --sizes, --max, --warmup, --fixed and --max_batch are for models in the form of "
        "ONNX, and the name of the file does not end with .onnx. Fix: leave them out, or rename "
        "the file");
  }
  std::string text;
  RETURN_IF_ERROR(ReadFile(path, &text));
  ASSIGN_OR_RETURN(*header->mutable_graph(), ParseGraph(path, text));
  ApplyFuseFlag(options.fuse, header->mutable_graph());
  return parts->OpenWeights(options.weights, header->graph());
}

int LoadModel(const std::string& path, const ModelOptions& options) {
  if (options.name.empty())
    return UsageError("model load needs --name NAME", "residentctl help model load");
  v1::LoadModelHeader header;
  Parts parts;
  if (absl::Status read = ReadModel(path, options, &header, &parts); !read.ok()) {
    return UsageError(read);
  }
  header.set_name(options.name);
  if (options.device.has_value()) header.set_device(*options.device);
  header.set_instances(options.instances);
  header.set_max_combined_rows(options.max_combined_rows);
  header.set_activate(options.activate);
  const absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  const absl::StatusOr<v1::LoadModelResponse> loaded = client::Models(**client).Load(
      header, parts.sizes(), [&](const std::string& name, uint64_t offset, std::string* to) {
        return parts.Read(name, offset, to);
      });
  if (!loaded.ok()) return CallError(loaded.status());
  const bool accepted = loaded->version() != 0;
  if (Common().json) {
    PrintJson(ToJson(*loaded));
  } else {
    if (!accepted) Print(ReportText(header.graph(), loaded->report()));
    if (accepted) {
      Print(
          absl::StrCat(options.name, " version ", loaded->version(),
                       loaded->already_loaded() ? " was loaded already" : " is loaded",
                       loaded->state() == v1::LoadModelResponse::STATE_ACTIVE ? " and serves" : "",
                       ", revision ", loaded->revision(), "\n"));
    }
  }
  return accepted ? kExitOk : kExitFailed;
}

int ListModels(const std::string& name) {
  const absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  const auto models = client::Models(**client).List(name);
  if (!models.ok()) return CallError(models.status());
  if (Common().json) {
    Json json = Json::array();
    for (const v1::Model& model : *models) json.push_back(ToJson(model));
    PrintJson(json);
    return kExitOk;
  }
  Table table({"NAME", "VERSION", "STATE", "DEVICE", "NODES", "WEIGHTS", "INSTANCES", "REQUESTS",
               "FAILED", "HASH", "BY"},
              {Table::kLeft, Table::kRight, Table::kLeft, Table::kRight, Table::kRight,
               Table::kRight, Table::kRight, Table::kRight, Table::kRight});
  for (const v1::Model& model : *models) {
    for (const v1::ModelVersion& version : model.versions()) {
      table.Add({model.name(), absl::StrCat(version.version()), EnumName(version.state()),
                 absl::StrCat(version.device()), FormatExact(version.nodes()),
                 FormatBytes(version.weight_bytes()),
                 absl::StrCat(version.instances(), "/", version.max_instances()),
                 FormatExact(version.requests()), FormatExact(version.failed()),
                 ShortHash(version.content_hash()), version.loaded_by()});
    }
  }
  Print(table.empty() ? "no models are loaded\n" : table.ToString());
  return kExitOk;
}

const v1::ModelVersion* FindVersion(const v1::Model& model, uint32_t number) {
  const v1::ModelVersion* found = nullptr;
  for (const v1::ModelVersion& version : model.versions()) {
    const bool active = version.state() == v1::ModelVersion::STATE_ACTIVE;
    if (number == 0 ? active : version.version() == number) found = &version;
  }
  return found;
}

void PrintPlans(const v1::ModelVersion& version) {
  if (version.dimensions().empty()) return;
  Print(absl::StrCat(FormatExact(version.plan_misses()), " requests waited for a plan\n"));
  if (version.plans().empty()) return;
  Table table({"PLAN", "NODES", "INSTANCES", "MEMORY", "EXECUTIONS"},
              {Table::kLeft, Table::kRight, Table::kRight, Table::kRight, Table::kRight});
  for (const v1::ModelPlan& plan : version.plans()) {
    std::vector<std::string> sizes;
    for (int i = 0; i < plan.sizes_size() && i < version.dimensions_size(); ++i) {
      sizes.push_back(absl::StrCat(version.dimensions(i).name(), "=", plan.sizes(i)));
    }
    table.Add({absl::StrJoin(sizes, ","), FormatExact(plan.nodes()),
               absl::StrCat(plan.instances(), "/", version.max_instances()),
               FormatBytes(plan.memory_bytes()), FormatExact(plan.executions())});
  }
  Print(table.ToString());
}

int DescribeModel(const std::string& name) {
  const absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  const auto models = client::Models(**client).List(name);
  if (!models.ok()) return CallError(models.status());
  const v1::Model& model = models->front();
  if (Common().json) {
    PrintJson(ToJson(model));
    return kExitOk;
  }
  Print(absl::StrCat(model.name(), ", revision ", model.revision(), "\n"));
  if (model.share_version() != 0) {
    Print(absl::StrCat("version ", model.share_version(), " serves ", model.share_percent(),
                       "% of the requests\n"));
  }
  for (const v1::ModelVersion& version : model.versions()) {
    Print(absl::StrCat("\nversion ", version.version(), ": ", EnumName(version.state()), ", ",
                       FormatExact(version.nodes()), " nodes, ",
                       FormatBytes(version.weight_bytes()), " of weights, device ",
                       version.device(), ", ", version.content_hash(), "\n"));
    if (version.unavailable().empty()) {
      Print(version.max_batch() != 0
                ? absl::StrCat("requests are combined, up to ", version.max_batch(), " rows\n")
                : absl::StrCat("requests are not combined: ", version.not_batched(), "\n"));
    }
    Table table({});
    const auto add = [&](const char* kind, const v1::ModelTensorInfo& tensor) {
      table.Add({kind, tensor.name(), EnumName(tensor.dtype()), ShapeText(tensor)});
    };
    for (const v1::ModelTensorInfo& tensor : version.inputs()) add("input", tensor);
    for (const v1::ModelTensorInfo& tensor : version.outputs()) add("output", tensor);
    for (const v1::ModelDimension& dimension : version.dimensions()) {
      table.Add({"size", dimension.name(), "", absl::StrCat("1-", dimension.most())});
    }
    for (const v1::GraphScalar& scalar : version.scalars()) {
      table.Add({"scalar", scalar.name(), EnumName(scalar.dtype()),
                 absl::StrCat(scalar.least(), " to ", scalar.most())});
    }
    Print(table.ToString());
    PrintPlans(version);
  }
  return kExitOk;
}

// Sets an input of the call: its values or its file have as many rows as they need.
absl::Status AddInput(const v1::ModelTensorInfo& info, const RunArgument& argument,
                      v1::ModelCall* call) {
  v1::ModelTensor& tensor = *call->add_inputs();
  tensor.set_name(info.name());
  tensor.set_dtype(info.dtype());
  switch (argument.kind) {
    case RunArgument::kFile:
      RETURN_IF_ERROR(ReadFile(argument.text, tensor.mutable_data()));
      break;
    case RunArgument::kValues: {
      ASSIGN_OR_RETURN(*tensor.mutable_data(),
                       EncodeValues(info.dtype(), argument.text, argument.name));
      break;
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrCat(info.name(), " has no values. Fix: give ", info.name(), "=1,2,3 or =@FILE"));
  }
  uint64_t row = client::SizeOf(info.dtype());
  int dynamic = 0;
  for (const int64_t size : info.shape()) {
    dynamic += size < 0 ? 1 : 0;
    row *= size < 0 ? 1 : static_cast<uint64_t>(size);
  }
  const uint64_t rows = tensor.data().size() / row;
  for (int d = 0; d < info.shape_size(); ++d) {
    const int64_t size = info.shape(d);
    // With another dynamic dimension, the values are one row.
    const bool one_row = d == 0 && dynamic == 2;
    tensor.add_shape(size >= 0 ? static_cast<uint64_t>(size) : one_row ? 1 : rows);
  }
  if (dynamic > 2 || (dynamic == 2 && info.shape(0) >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(info.name(),
                     " has several dynamic dimensions, so that its values do not give its shape. "
                     "Fix: send the request with a client library"));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ModelCall> MakeCall(const v1::ModelVersion& version, const Words& words) {
  v1::ModelCall call;
  call.set_model(words[0]);
  for (size_t i = 1; i < words.size(); ++i) {
    ASSIGN_OR_RETURN(const RunArgument argument, ParseRunArgument(words[i]));
    const v1::ModelTensorInfo* input = nullptr;
    for (const v1::ModelTensorInfo& each : version.inputs()) {
      if (each.name() == argument.name) input = &each;
    }
    if (input != nullptr) {
      RETURN_IF_ERROR(AddInput(*input, argument, &call));
      continue;
    }
    const std::optional<double> value = ParseReal(v1::DTYPE_F64, argument.text);
    if (argument.kind != RunArgument::kValues || !value.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model has no input '", argument.name, "'. Fix: correct the name"));
    }
    (*call.mutable_scalars())[argument.name] = *value;
  }
  return call;
}

int RunModel(const Words& words, const ModelOptions& options) {
  const absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  client::Models models(**client);
  const auto found = models.List(words[0]);
  if (!found.ok()) return CallError(found.status());
  const v1::ModelVersion* const version = FindVersion(found->front(), options.version);
  if (version == nullptr) {
    return CallError(absl::NotFoundError(
        absl::StrCat("model ", words[0],
                     options.version == 0 ? " has no active version" : " has no such version",
                     ". Fix: run `residentctl model list ", words[0], "`")));
  }
  absl::StatusOr<v1::ModelCall> call = MakeCall(*version, words);
  if (!call.ok()) return UsageError(call.status());
  call->set_version(options.version);
  const auto result = models.Run(*call);
  if (!result.ok()) return CallError(result.status());
  Json json = {{"version", result->version()}, {"outputs", Json::object()}};
  Table table({});
  for (int i = 0; i < result->outputs_size(); ++i) {
    const v1::TensorType& type = result->output_types(i);
    const std::string& name = type.name();
    const std::vector<uint64_t> shape(type.shape().begin(), type.shape().end());
    json["outputs"][name] = {{"dtype", EnumName(type.dtype())},
                             {"shape", shape},
                             {"values", ValuesToJson(type.dtype(), result->outputs(i))}};
    table.Add({name, EnumName(type.dtype()), FormatShape(shape),
               FormatValues(type.dtype(), result->outputs(i), kShownElements)});
  }
  if (Common().json) {
    PrintJson(json);
  } else {
    Print(table.ToString());
    Print(absl::StrCat("version ", result->version(), ", ",
                       HumanDuration(absl::Nanoseconds(result->device_ns(0))), " on the device\n"));
  }
  return kExitOk;
}

// `what`: " serves".
int PrintChange(const std::string& name, const absl::StatusOr<v1::ChangeModelResponse>& done) {
  if (!done.ok()) return CallError(done.status());
  if (Common().json) {
    PrintJson(ToJson(*done));
    return kExitOk;
  }
  std::string text = done->version() == 0
                         ? absl::StrCat("no version of ", name, " serves")
                         : absl::StrCat(name, " version ", done->version(), " serves");
  if (done->previous_version() != 0 && done->previous_version() != done->version()) {
    absl::StrAppend(&text, ", in place of version ", done->previous_version());
  }
  Print(absl::StrCat(text, ", revision ", done->revision(), "\n"));
  return kExitOk;
}

using ModelChange = absl::StatusOr<v1::ChangeModelResponse> (*)(client::Models& models,
                                                                const std::string& name,
                                                                const ModelOptions& options);

int ChangeModel(const std::string& name, const ModelOptions& options, ModelChange change) {
  const absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  client::Models models(**client);
  return PrintChange(name, change(models, name, options));
}

void AddLoad(Command& model, const std::shared_ptr<ModelOptions>& options) {
  Command& load = model.Add("load", "load a version of a model");
  load.Flag("name", &options->name, "name of the model");
  load.Flag("weights", &options->weights, "safetensors file with the weights of the graph");
  load.Flag("data", &options->data, "ONNX: files with the external data of the model, F,F");
  load.Flag("sizes", &options->sizes, "ONNX: sizes of dynamic dimensions, NAME=N,NAME=N");
  load.Flag("max", &options->max,
            "ONNX: largest sizes of dimensions that have a size of their own in each request, "
            "NAME=N,NAME=N; each set of sizes has a plan");
  load.Flag("warmup", &options->warmup,
            "ONNX: shapes of inputs whose plans the load makes, INPUT=1x32,1x128;INPUT=...");
  load.Flag("max_batch", &options->max_batch,
            "ONNX: largest size of the dimension that remains dynamic; 0: 64");
  load.Flag("fixed", &options->fixed, "ONNX: inputs that become constants, NAME=1,2;NAME=3");
  load.Flag("instances", &options->instances, "requests that run at the same time at most; 0: 2",
            {.high = 16});
  load.Flag(
      "max_combined_rows", &options->max_combined_rows,
      "rows of several requests that are computed together at most; 0: as many as one request "
      "may have; 1: each request by itself");
  load.Flag("activate", &options->activate, "let the version serve once it is loaded");
  AddDeviceFlag(load, &options->device);
  AddFuseFlag(load, &options->fuse);
  load.Run("FILE", [options](const Words& words) { return LoadModel(words[0], *options); });
}

}  // namespace

void AddModel(Command& program) {
  Command& model = program.Add(
      "model", "load, list, run, activate, share, roll back and remove models",
      "A model is a task graph under a name, with versions (docs/models.md). FILE is a model in "
      "the\n"
      "form of ONNX, if it ends with .onnx, or contains a graph as JSON, and --weights names a\n"
      "safetensors file with the contents of its weights:\n"
      "  residentctl model load encoder.onnx --name encoder --sizes sequence=128\n"
      "  residentctl model load scorer.json --name scorer --weights scorer.safetensors\n"
      "  residentctl model run scorer x=1,2,3,4\n"
      "load makes a version and lets it serve, unless --activate=false. rollback lets the "
      "previous\n"
      "version serve again. VALUE is 1,2,3 or 0.5*1024 or @FILE (raw little-endian elements); an\n"
      "input with a dynamic size has as many rows as the values make, and one with two is one\n"
      "row.\n");
  auto options = std::make_shared<ModelOptions>();
  AddLoad(model, options);
  model.Add("list", "list the models, or one of them").Run("[NAME]", [](const Words& words) {
    return ListModels(words.empty() ? std::string() : words[0]);
  });
  model.Add("describe", "show the inputs and outputs of a model")
      .Run("NAME", [](const Words& words) { return DescribeModel(words[0]); });
  Command& run = model.Add("run", "send a request to a model");
  run.Flag("version", &options->version, "version; 0: the active one");
  run.Run("NAME [INPUT=VALUE]...",
          [options](const Words& words) { return RunModel(words, *options); });
  const auto add = [&](const char* name, const char* help, const char* words, ModelChange change) {
    Command& command = model.Add(name, help);
    if (std::string(name) != "rollback") {
      command.Flag("version", &options->version,
                   std::string(name) == "remove" ? "version; 0: the model with all its versions"
                                                 : "version; 0: the one that was loaded last");
    }
    if (std::string(name) == "activate") AddBakeFlags(command, /*shadows=*/false, options->bake);
    if (std::string(name) == "share") {
      command.Flag("percent", &options->share, "share of the requests that name no version");
    }
    AddRevisionFlag(command, &options->expected_revision);
    command.Run(words, [options, change](const Words& given) {
      return ChangeModel(given[0], *options, change);
    });
  };
  add("activate", "let a version serve", "NAME",
      [](client::Models& models, const std::string& name, const ModelOptions& given) {
        return models.Activate(name, given.version, given.expected_revision, ToMessage(given.bake));
      });
  add("share", "let another version serve a share of the requests; 0%: end it", "NAME",
      [](client::Models& models, const std::string& name, const ModelOptions& given) {
        return models.Share(name, given.version, given.share.percent, given.expected_revision);
      });
  add("rollback", "let the previous version serve again", "NAME",
      [](client::Models& models, const std::string& name, const ModelOptions& given) {
        return models.Rollback(name, given.expected_revision);
      });
  add("remove", "remove a model, or one of its versions", "NAME",
      [](client::Models& models, const std::string& name, const ModelOptions& given) {
        return models.Remove(name, given.version, given.expected_revision);
      });
}

}  // namespace resident::cli
