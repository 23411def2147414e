
#include "server/inference/repository.h"

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "resident/v1/operators.pb.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "server/inference/errors.h"
#include "server/inference/model_metadata.h"
#include "server/operators/install_collector.h"

namespace resident {
namespace {

using inference::ModelRepositoryParameter;

constexpr std::string_view kFilePrefix = "file:";
constexpr std::string_view kModelSuffix = ".onnx";
// Parameters of a model's configuration: the size or the bound of a dynamic dimension, a fixed
// input.
constexpr std::string_view kSizePrefix = "sizes.";
constexpr std::string_view kMaxPrefix = "max.";
constexpr std::string_view kFixedPrefix = "fixed.";
// Files are in the folder of a version; its number has no meaning here.
constexpr char kVersionFolder = '/';
// Of the compiler's output in an error, which clients receive in a header.
constexpr size_t kMaxLogBytes = 1024;

std::string DescribeUnavailable(const VersionView& version, bool sees_others) {
  if (version.state == VersionState::kQuarantined) {
    return absl::StrCat("quarantined: ", sees_others ? version.quarantine_reason
                                                     : PublicReason(version.quarantine_reason));
  }
  return "loaded, but not active: a request must name this version";
}

std::string Quoted(const std::string& name) {
  return absl::StrCat("'", CutUtf8(ToPrintableLine(name), 64), "'");
}

// The parameter 'config' as a JSON object.
absl::StatusOr<nlohmann::json> ParseConfig(const ModelRepositoryParameter& parameter) {
  if (!parameter.has_string_param()) return errors::LoadConfig("it is not a string");
  const std::string& text = parameter.string_param();
  if (text.size() > kMaxLoadConfigBytes) {
    return errors::LoadConfigTooLarge(text.size(), kMaxLoadConfigBytes);
  }
  nlohmann::json config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (config.is_discarded() || !config.is_object()) {
    return errors::LoadConfig("it is not a JSON object");
  }
  return config;
}

// A value of config.parameters: a string, or an object with a string_value.
absl::StatusOr<std::string> ReadParameter(const std::string& name, const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("string_value") && value["string_value"].is_string()) {
    return value["string_value"].get<std::string>();
  }
  return errors::LoadConfig(absl::StrCat("the parameter ", Quoted(name), " is not a string"));
}

// Sets the texts of the header from config.parameters.
absl::Status ReadConfig(const nlohmann::json& config, v1::InstallHeader* header) {
  const auto parameters = config.find("parameters");
  if (parameters == config.end() || !parameters->is_object()) {
    return errors::LoadConfig("it has no object 'parameters'");
  }
  for (const auto& [name, value] : parameters->items()) {
    ASSIGN_OR_RETURN(const std::string content, ReadParameter(name, value));
    if (name == "signature") {
      header->set_signature(content);
    } else if (name == "split") {
      header->set_split(content);
    } else if (name == "summary") {
      header->set_summary(content);
    } else if (name == "expression") {
      header->set_expression(content);
    } else {
      return errors::LoadConfig(absl::StrCat("the parameter ", Quoted(name), " is not known"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ReadCount(const std::string& name, const nlohmann::json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() <= UINT32_MAX) {
    return value.get<uint32_t>();
  }
  return errors::LoadModelConfig(absl::StrCat(Quoted(name), " is not a number of 0 or more"));
}

absl::Status ReadModelParameters(const nlohmann::json& parameters, v1::OnnxModel* model) {
  if (!parameters.is_object()) return errors::LoadModelConfig("'parameters' is not an object");
  for (const auto& [name, value] : parameters.items()) {
    ASSIGN_OR_RETURN(const std::string content, ReadParameter(name, value));
    const bool bound = name.starts_with(kMaxPrefix);
    if (bound || name.starts_with(kSizePrefix)) {
      auto& sizes = bound ? *model->mutable_max_sizes() : *model->mutable_sizes();
      uint64_t& number = sizes[name.substr((bound ? kMaxPrefix : kSizePrefix).size())];
      if (absl::SimpleAtoi(content, &number)) continue;
      return errors::LoadModelConfig(absl::StrCat("the size ", Quoted(name), " is not a number"));
    }
    if (!name.starts_with(kFixedPrefix)) {
      return errors::LoadModelConfig(absl::StrCat("the parameter ", Quoted(name), " is not known"));
    }
    (*model->mutable_fixed_inputs())[name.substr(kFixedPrefix.size())] = content;
  }
  return absl::OkStatus();
}

// What a model's configuration may say. A field that would change how it is served is not ignored.
absl::Status ReadModelConfig(const nlohmann::json& config, v1::LoadModelHeader* header) {
  v1::OnnxModel* const model = header->mutable_onnx();
  for (const auto& [name, value] : config.items()) {
    if (name == "name") {
      if (value == header->name()) continue;
      return errors::LoadModelConfig("'name' is not the model's name");
    }
    if (name == "platform" || name == "backend") continue;  // The file says what it is.
    if (name == "parameters") {
      RETURN_IF_ERROR(ReadModelParameters(value, model));
    } else if (name == "max_batch_size") {
      ASSIGN_OR_RETURN(const uint32_t count, ReadCount(name, value));
      model->set_max_batch(count);
    } else if (name == "instance_group") {
      const bool one = value.is_array() && value.size() == 1 && value[0].is_object() &&
                       value[0].size() == 1 && value[0].contains("count");
      if (!one) return errors::LoadModelConfig("'instance_group' is not [{\"count\": N}]");
      ASSIGN_OR_RETURN(const uint32_t count, ReadCount("count", value[0]["count"]));
      header->set_instances(count);
    } else {
      return errors::LoadModelConfig(absl::StrCat("the field ", Quoted(name), " is not known"));
    }
  }
  return absl::OkStatus();
}

// The file's name without "file:1/"; empty: it is not one.
std::string FileName(const std::string& parameter) {
  const size_t folder = parameter.find(kVersionFolder);
  return folder == std::string::npos ? "" : parameter.substr(folder + 1);
}

// Moves each file out of the message.
absl::Status ForEachFile(
    inference::RepositoryModelLoadRequest& message,
    absl::FunctionRef<absl::Status(const std::string& name, std::string data)> add) {
  std::set<std::string> added;  // The folders differ, but have no meaning.
  for (auto& [parameter, value] : *message.mutable_parameters()) {
    if (!parameter.starts_with(kFilePrefix)) continue;
    const std::string name = FileName(parameter);
    if (name.empty() || !value.has_bytes_param()) return errors::LoadFileName(parameter);
    if (!added.insert(name).second) return errors::LoadFileTwice(name);
    RETURN_IF_ERROR(add(name, std::move(*value.mutable_bytes_param())));
  }
  return absl::OkStatus();
}

absl::StatusOr<InstallRequest> ParseInstall(const std::string& name,
                                            const ModelRepositoryParameter& config,
                                            inference::RepositoryModelLoadRequest& message) {
  v1::InstallRequest first;
  v1::InstallHeader* const header = first.mutable_header();
  header->set_name(name);
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseConfig(config));
  RETURN_IF_ERROR(ReadConfig(json, header));
  if (header->kind_case() == v1::InstallHeader::KIND_NOT_SET) {
    header->set_main_file(absl::StrCat(name, ".cc"));
  }
  header->set_wait_for(v1::VERSION_STATE_ACTIVE);
  InstallCollector collector;
  RETURN_IF_ERROR(collector.Add(first));
  RETURN_IF_ERROR(ForEachFile(message, [&](const std::string& file, std::string data) {
    v1::InstallRequest part;
    part.mutable_file()->set_name(file);
    part.mutable_file()->set_data(std::move(data));
    return collector.Add(part);
  }));
  return collector.Finish();
}

// `config`: null: there is none.
absl::StatusOr<std::vector<v1::LoadModelRequest>> ParseModel(
    const std::string& name, const ModelRepositoryParameter* config,
    inference::RepositoryModelLoadRequest& message) {
  v1::LoadModelHeader header;
  header.set_name(name);
  header.set_activate(true);
  v1::OnnxModel* const model = header.mutable_onnx();
  if (config != nullptr) {
    ASSIGN_OR_RETURN(const nlohmann::json json, ParseConfig(*config));
    RETURN_IF_ERROR(ReadModelConfig(json, &header));
  }
  std::vector<v1::LoadModelRequest> messages(1);
  uint64_t bytes = 0;
  RETURN_IF_ERROR(ForEachFile(message, [&](const std::string& file, std::string data) {
    if (file.ends_with(kModelSuffix)) {
      if (!model->file().empty()) return errors::LoadModelTwice(model->file(), file);
      model->set_file(file);
    }
    bytes += data.size();
    v1::ModelFilePart& part = *messages.emplace_back().mutable_file();
    part.set_name(file);
    part.set_data(std::move(data));
    return absl::OkStatus();
  }));
  model->set_file_bytes(bytes);
  *messages.front().mutable_header() = std::move(header);
  return messages;
}

}  // namespace

void FillIndex(const Registry& registry, bool ready_only, bool sees_others,
               inference::RepositoryIndexResponse* out) {
  for (const OperatorView& op : registry.List()) {
    if (!IsModel(*op.op)) continue;
    for (const VersionView& version : op.versions) {
      const bool ready =
          version.state == VersionState::kActive || version.state == VersionState::kPrevious;
      const bool in_kernel = IsReady(version.state) || version.version == op.standby_version;
      if (!in_kernel || (ready_only && !ready)) continue;
      auto* const model = out->add_models();
      model->set_name(op.op->name());
      model->set_version(absl::StrCat(version.version));
      model->set_state(ready ? "READY" : "UNAVAILABLE");
      if (!ready) model->set_reason(ToUtf8(DescribeUnavailable(version, sees_others)));
    }
  }
}

absl::StatusOr<LoadRequest> ParseLoad(inference::RepositoryModelLoadRequest& message) {
  if (!message.repository_name().empty()) {
    return errors::UnknownRepository(message.repository_name());
  }
  ASSIGN_OR_RETURN(const ModelName model, ParseModelName(message.model_name(), ""));
  LoadRequest load;
  load.operator_name = model.operator_name;
  const ModelRepositoryParameter* config = nullptr;
  bool files = false;
  bool onnx = false;
  for (const auto& [name, value] : message.parameters()) {
    if (name == "config") {
      config = &value;
    } else if (name.starts_with(kFilePrefix)) {
      files = true;
      onnx |= name.ends_with(kModelSuffix);
    } else {
      return errors::LoadParameter(name);
    }
  }
  if (onnx) {
    ASSIGN_OR_RETURN(load.model, ParseModel(load.operator_name, config, message));
    return load;
  }
  if (config == nullptr) {
    if (files) return errors::LoadFilesWithoutConfig();
    return load;
  }
  ASSIGN_OR_RETURN(load.install, ParseInstall(load.operator_name, *config, message));
  return load;
}

absl::Status ActivateLoaded(const Registry& registry, OperatorManager& operators,
                            const std::string& name, const std::string& actor) {
  ASSIGN_OR_RETURN(const OperatorView op, registry.Describe(name));
  const VersionView* const standby = op.Find(op.standby_version);
  const bool loaded = standby != nullptr && standby->state == VersionState::kLoaded;
  if (op.active_version != 0 && !loaded) return absl::OkStatus();
  SwitchRequest request;
  request.name = name;
  request.version = op.standby_version;
  request.actor = actor;
  return operators.Activate(request).status();
}

absl::Status InstallAndActivate(OperatorManager& operators, const InstallRequest& request,
                                const std::function<bool()>& withdrawn) {
  std::string log;
  const absl::Status done = operators.Install(
      request,
      [&log](const InstallProgress& progress) {
        if (progress.state == VersionState::kRejected) log = progress.log;
      },
      withdrawn);
  if (done.ok()) return done;
  return errors::InstallRefused(done.code(), std::string(done.message()),
                                std::string(CutUtf8(ToUtf8(log), kMaxLogBytes)));
}

absl::Status LoadModel(ModelLoader& loader) {
  v1::GraphReport report;
  RETURN_IF_ERROR(loader.Load([&report](v1::LoadModelResponse response) {
    if (response.has_report()) report.Swap(response.mutable_report());
  }));
  if (report.accepted()) return absl::OkStatus();
  std::string findings;
  for (const v1::GraphFinding& finding : report.findings()) {
    if (finding.warning()) continue;
    absl::StrAppend(&findings, findings.empty() ? "" : "\n", finding.code(), " ",
                    finding.message());
  }
  return errors::LoadModelRefused(std::string(CutUtf8(findings, kMaxLogBytes)));
}

}  // namespace resident
