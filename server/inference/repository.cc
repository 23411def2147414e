
#include "server/inference/repository.h"

#include <set>
#include <string>
#include <string_view>
#include <utility>

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

// Sets the texts of the header from config.parameters.
absl::Status ReadConfig(const std::string& text, v1::InstallHeader* header) {
  if (text.size() > kMaxLoadConfigBytes) {
    return errors::LoadConfigTooLarge(text.size(), kMaxLoadConfigBytes);
  }
  const nlohmann::json config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (config.is_discarded() || !config.is_object()) {
    return errors::LoadConfig("it is not a JSON object");
  }
  const auto parameters = config.find("parameters");
  if (parameters == config.end() || !parameters->is_object()) {
    return errors::LoadConfig("it has no object 'parameters'");
  }
  for (const auto& [name, value] : parameters->items()) {
    std::string content;
    if (value.is_string()) {
      content = value.get<std::string>();
    } else if (value.is_object() && value.contains("string_value") &&
               value["string_value"].is_string()) {
      content = value["string_value"].get<std::string>();
    } else {
      return errors::LoadConfig(
          absl::StrCat("the parameter '", CutUtf8(ToPrintableLine(name), 64), "' is not a string"));
    }
    if (name == "signature") {
      header->set_signature(content);
    } else if (name == "split") {
      header->set_split(content);
    } else if (name == "summary") {
      header->set_summary(content);
    } else if (name == "expression") {
      header->set_expression(content);
    } else {
      return errors::LoadConfig(
          absl::StrCat("the parameter '", CutUtf8(ToPrintableLine(name), 64), "' is not known"));
    }
  }
  return absl::OkStatus();
}

// The file's name without "file:1/"; empty: it is not one.
std::string FileName(const std::string& parameter) {
  const size_t folder = parameter.find(kVersionFolder);
  return folder == std::string::npos ? "" : parameter.substr(folder + 1);
}

absl::Status AddFiles(inference::RepositoryModelLoadRequest& message, InstallCollector* collector) {
  std::set<std::string> added;  // The folders differ, but have no meaning.
  for (auto& [name, value] : *message.mutable_parameters()) {
    if (!name.starts_with(kFilePrefix)) continue;
    v1::InstallRequest file;
    file.mutable_file()->set_name(FileName(name));
    if (file.file().name().empty() || !value.has_bytes_param()) return errors::LoadFileName(name);
    if (!added.insert(file.file().name()).second) return errors::LoadFileTwice(file.file().name());
    *file.mutable_file()->mutable_data() = std::move(*value.mutable_bytes_param());
    RETURN_IF_ERROR(collector->Add(file));
  }
  return absl::OkStatus();
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
  for (const auto& [name, value] : message.parameters()) {
    if (name == "config") {
      config = &value;
    } else if (name.starts_with(kFilePrefix)) {
      files = true;
    } else {
      return errors::LoadParameter(name);
    }
  }
  if (config == nullptr) {
    if (files) return errors::LoadFilesWithoutConfig();
    return load;
  }
  if (!config->has_string_param()) return errors::LoadConfig("it is not a string");
  v1::InstallRequest first;
  v1::InstallHeader* const header = first.mutable_header();
  header->set_name(load.operator_name);
  RETURN_IF_ERROR(ReadConfig(config->string_param(), header));
  if (header->kind_case() == v1::InstallHeader::KIND_NOT_SET) {
    header->set_main_file(load.operator_name + ".cc");
  }
  header->set_wait_for(v1::VERSION_STATE_ACTIVE);
  InstallCollector collector;
  RETURN_IF_ERROR(collector.Add(first));
  RETURN_IF_ERROR(AddFiles(message, &collector));
  ASSIGN_OR_RETURN(load.install, collector.Finish());
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

}  // namespace resident
