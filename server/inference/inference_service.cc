#include "server/inference/inference_service.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/errors/inference_errors.h"
#include "runtime/base/errors/operator_errors.h"
#include "runtime/base/status_macros.h"
#include "server/inference/infer_call.h"
#include "server/inference/infer_stream.h"
#include "server/inference/model_metadata.h"
#include "server/inference/model_name.h"
#include "server/inference/repository.h"
#include "server/rpc/call.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/listings.h"
#include "server/rpc/status.h"
#include "server/rpc/version.h"

namespace resident {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

ServerUnaryReactor* Finish(CallbackServerContext* context, const absl::Status& status) {
  auto* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(errors::InInferenceWords(status)));
  return reactor;
}

// The operator that a request names, and the model's name.
struct Described {
  ModelName model;
  OperatorView op;
};
absl::StatusOr<Described> Describe(const Registry& registry, const std::string& name,
                                   const std::string& version) {
  Described described;
  ASSIGN_OR_RETURN(described.model, ParseModelName(name, version));
  ASSIGN_OR_RETURN(described.op, registry.Describe(described.model.operator_name));
  return described;
}

// Also that the version, if there is one, can serve.
absl::StatusOr<Described> DescribeVersion(const Registry& registry, const std::string& name,
                                          const std::string& version) {
  ASSIGN_OR_RETURN(Described described, Describe(registry, name, version));
  const uint32_t number = described.model.version;
  if (number == 0) return described;
  const VersionView* const found = described.op.Find(number);
  if (found == nullptr || !IsReady(found->state)) {
    return errors::UnknownVersion(described.op.op->name(), number, described.op.active_version);
  }
  return described;
}

}  // namespace

InferenceService::InferenceService(Core& core, const InferenceOptions& options)
    : state_(core, options) {}
InferenceService::~InferenceService() = default;

ServerUnaryReactor* InferenceService::ServerLive(CallbackServerContext* context,
                                                 const inference::ServerLiveRequest*,
                                                 inference::ServerLiveResponse* response) {
  response->set_live(true);
  return Finish(context, absl::OkStatus());
}

ServerUnaryReactor* InferenceService::ServerReady(CallbackServerContext* context,
                                                  const inference::ServerReadyRequest*,
                                                  inference::ServerReadyResponse* response) {
  response->set_ready(state_.core.ready());
  return Finish(context, absl::OkStatus());
}

ServerUnaryReactor* InferenceService::ModelReady(CallbackServerContext* context,
                                                 const inference::ModelReadyRequest* request,
                                                 inference::ModelReadyResponse* response) {
  const auto described = DescribeVersion(state_.core.registry, request->name(), request->version());
  const bool found =
      described.ok() && (described->model.version != 0 || described->op.active_version != 0);
  response->set_ready(found && state_.core.ready());
  // A model that does not exist is not ready; a version that is not a number is an error.
  const bool invalid = described.status().code() == absl::StatusCode::kInvalidArgument;
  return Finish(context, invalid ? described.status() : absl::OkStatus());
}

ServerUnaryReactor* InferenceService::ServerMetadata(CallbackServerContext* context,
                                                     const inference::ServerMetadataRequest*,
                                                     inference::ServerMetadataResponse* response) {
  response->set_name("residentd");
  response->set_version(kVersion);
  for (const char* extension : {"model_configuration", "model_repository", "statistics",
                                "system_shared_memory", "parameters", "trace", "logging"}) {
    response->add_extensions(extension);
  }
  for (const Device* device : state_.core.devices) {
    if (!device->snapshot().info.traits.maps_device_memory) continue;
    response->add_extensions("cuda_shared_memory");
    break;
  }
  return Finish(context, absl::OkStatus());
}

ServerUnaryReactor* InferenceService::ModelMetadata(CallbackServerContext* context,
                                                    const inference::ModelMetadataRequest* request,
                                                    inference::ModelMetadataResponse* response) {
  const auto described = DescribeVersion(state_.core.registry, request->name(), request->version());
  if (described.ok()) FillMetadata(described->op, described->model.batch, response);
  return Finish(context, described.status());
}

ServerUnaryReactor* InferenceService::ModelInfer(CallbackServerContext* context,
                                                 const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  return RunCall::Start(std::make_shared<InferCall>(state_, *response), *context, *request);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* InferenceService::ModelStreamInfer(
    CallbackServerContext* context) {
  return StartBidiCall<InferStream>(*context, state_);
}

ServerUnaryReactor* InferenceService::ModelConfig(CallbackServerContext* context,
                                                  const inference::ModelConfigRequest* request,
                                                  inference::ModelConfigResponse* response) {
  const auto described = DescribeVersion(state_.core.registry, request->name(), request->version());
  if (described.ok()) {
    FillConfig(described->op, described->model.batch, state_.core.limits.max_batch_tasks,
               response->mutable_config());
  }
  return Finish(context, described.status());
}

ServerUnaryReactor* InferenceService::ModelStatistics(
    CallbackServerContext* context, const inference::ModelStatisticsRequest* request,
    inference::ModelStatisticsResponse* response) {
  // Versions in the kernel.
  const auto add = [&](const OperatorView& op, bool batch, uint32_t only) {
    for (const VersionView& version : op.versions) {
      if (!IsReady(version.state) || (only != 0 && version.version != only)) continue;
      state_.statistics.Fill(ModelName{op.op->name(), batch}.text(), version.version,
                             response->add_model_stats());
    }
  };
  if (!request->name().empty()) {
    const auto described =
        DescribeVersion(state_.core.registry, request->name(), request->version());
    if (described.ok()) add(described->op, described->model.batch, described->model.version);
    return Finish(context, described.status());
  }
  for (const OperatorView& op : state_.core.registry.List()) {
    if (!IsModel(*op.op)) continue;
    for (const bool batch : {false, true}) add(op, batch, 0);
  }
  return Finish(context, absl::OkStatus());
}

ServerUnaryReactor* InferenceService::RepositoryIndex(
    CallbackServerContext* context, const inference::RepositoryIndexRequest* request,
    inference::RepositoryIndexResponse* response) {
  if (!request->repository_name().empty()) {
    return Finish(context, errors::UnknownRepository(request->repository_name()));
  }
  const auto caller = IdentifyCaller(*context, state_.core);
  if (!caller.ok()) return Finish(context, caller.status());
  FillIndex(state_.core.registry, request->ready(), MaySeeOthers(**caller), response);
  return Finish(context, absl::OkStatus());
}

ServerUnaryReactor* InferenceService::RepositoryModelLoad(
    CallbackServerContext* context, const inference::RepositoryModelLoadRequest* request,
    inference::RepositoryModelLoadResponse*) {
  const auto model = ParseModelName(request->model_name(), "");
  if (!model.ok()) return Finish(context, model.status());
  const auto actor = AuthorizeChange(*context, state_.core, model->operator_name);
  if (!actor.ok()) return Finish(context, actor.status());
  // The message belongs to the call; its files are moved.
  auto load = ParseLoad(*const_cast<inference::RepositoryModelLoadRequest*>(request));
  if (!load.ok()) return Finish(context, load.status());
  const auto caller = IdentifyCaller(*context, state_.core);
  if (!caller.ok()) return Finish(context, caller.status());
  Core& core = state_.core;

  auto slot = std::make_shared<SharedSlots::Ticket>();
  if (load->install.has_value()) {
    Account& account = *(*caller)->account();
    auto taken =
        core.install_slots.Take(NameHolder(account, context->peer()), account.install_quota());
    if (!taken.ok()) return Finish(context, taken.status());
    *slot = *std::move(taken);
    const absl::Status begun = account.BeginInstall(load->operator_name, absl::Now());
    if (!begun.ok()) return Finish(context, begun);
    load->install->actor = *actor;
  }
  if (!core.gate.Enter(1)) return Finish(context, errors::Draining());
  auto* const reactor = context->DefaultReactor();
  WorkerPool& pool = load->install.has_value() ? core.pools.installs : core.pools.changes;
  pool.Post([&core, context, reactor, slot, actor = *actor, load = *std::move(load)] {
    absl::Status done;
    if (load.install.has_value()) {
      done = InstallAndActivate(core.operators, *load.install, [&core, context] {
        return context->IsCancelled() || core.gate.draining();
      });
      if (done.code() == absl::StatusCode::kCancelled && core.gate.draining()) {
        done = errors::Draining();
      }
    } else {
      done = ActivateLoaded(core.registry, core.operators, load.operator_name, actor);
    }
    // Before the answer, so that the client's next install finds the slot free.
    slot->Release();
    reactor->Finish(ToGrpc(errors::InInferenceWords(done)));
    core.gate.Leave(1);
  });
  return reactor;
}

ServerUnaryReactor* InferenceService::RepositoryModelUnload(
    CallbackServerContext* context, const inference::RepositoryModelUnloadRequest* request,
    inference::RepositoryModelUnloadResponse*) {
  if (!request->repository_name().empty()) {
    return Finish(context, errors::UnknownRepository(request->repository_name()));
  }
  const auto model = ParseModelName(request->model_name(), "");
  if (!model.ok()) return Finish(context, model.status());
  const auto op = state_.core.registry.FindOperator(model->operator_name);
  if (!op.ok()) return Finish(context, op.status());
  if (!state_.options.unload) {
    return Finish(context, errors::UnloadDisabled(model->operator_name));
  }
  const auto actor = AuthorizeChange(*context, state_.core, model->operator_name);
  if (!actor.ok()) return Finish(context, actor.status());
  if (!state_.core.gate.Enter(1)) return Finish(context, errors::Draining());
  auto* const reactor = context->DefaultReactor();
  state_.core.pools.changes.Post(
      [this, context, reactor, name = model->operator_name, actor = *actor] {
        const auto done = [this, reactor](const absl::Status& status) {
          reactor->Finish(ToGrpc(errors::InInferenceWords(status)));
          state_.core.gate.Leave(1);
        };
        auto removal = state_.core.operators.Remove(name, std::nullopt, actor);
        if (!removal.ok()) return done(removal.status());
        removals_.Add({name, std::move(removal->drained), ReadDeadline(*context, Clock::now()),
                       [context] { return context->IsCancelled(); }, done});
      });
  return reactor;
}

ServerUnaryReactor* InferenceService::SystemSharedMemoryStatus(
    CallbackServerContext* context, const inference::SystemSharedMemoryStatusRequest* request,
    inference::SystemSharedMemoryStatusResponse* response) {
  const auto regions = state_.regions->List(RegionKind::kSystem, request->name());
  if (!regions.ok()) return Finish(context, regions.status());
  for (const RegionSpec& region : *regions) {
    auto& status = (*response->mutable_regions())[region.name];
    status.set_name(region.name);
    status.set_key(region.key);
    status.set_offset(region.offset);
    status.set_byte_size(region.bytes);
  }
  return Finish(context, absl::OkStatus());
}

ServerUnaryReactor* InferenceService::SystemSharedMemoryRegister(
    CallbackServerContext* context, const inference::SystemSharedMemoryRegisterRequest* request,
    inference::SystemSharedMemoryRegisterResponse*) {
  return Register(context, {.name = request->name(),
                            .key = request->key(),
                            .offset = request->offset(),
                            .bytes = request->byte_size()});
}

ServerUnaryReactor* InferenceService::SystemSharedMemoryUnregister(
    CallbackServerContext* context, const inference::SystemSharedMemoryUnregisterRequest* request,
    inference::SystemSharedMemoryUnregisterResponse*) {
  return Unregister(context, RegionKind::kSystem, request->name());
}

ServerUnaryReactor* InferenceService::CudaSharedMemoryStatus(
    CallbackServerContext* context, const inference::CudaSharedMemoryStatusRequest* request,
    inference::CudaSharedMemoryStatusResponse* response) {
  const auto regions = state_.regions->List(RegionKind::kCuda, request->name());
  if (!regions.ok()) return Finish(context, regions.status());
  for (const RegionSpec& region : *regions) {
    auto& status = (*response->mutable_regions())[region.name];
    status.set_name(region.name);
    status.set_device_id(static_cast<uint64_t>(region.device));
    status.set_byte_size(region.bytes);
  }
  return Finish(context, absl::OkStatus());
}

ServerUnaryReactor* InferenceService::CudaSharedMemoryRegister(
    CallbackServerContext* context, const inference::CudaSharedMemoryRegisterRequest* request,
    inference::CudaSharedMemoryRegisterResponse*) {
  return Register(context, {.kind = RegionKind::kCuda,
                            .name = request->name(),
                            .bytes = request->byte_size(),
                            .handle = request->raw_handle(),
                            .device = request->device_id()});
}

ServerUnaryReactor* InferenceService::CudaSharedMemoryUnregister(
    CallbackServerContext* context, const inference::CudaSharedMemoryUnregisterRequest* request,
    inference::CudaSharedMemoryUnregisterResponse*) {
  return Unregister(context, RegionKind::kCuda, request->name());
}

ServerUnaryReactor* InferenceService::Register(CallbackServerContext* context, RegionSpec spec) {
  const auto client = FindClient(*context, state_.core);
  if (!client.ok()) return Finish(context, client.status());
  auto* const reactor = context->DefaultReactor();
  // Mapping is a call to the engine.
  state_.core.pools.blocking.Post([this, reactor, spec = std::move(spec), client = *client] {
    reactor->Finish(ToGrpc(state_.regions->Register(spec, *client)));
  });
  return reactor;
}

ServerUnaryReactor* InferenceService::Unregister(CallbackServerContext* context, RegionKind kind,
                                                 const std::string& name) {
  std::shared_ptr<absl::Notification> unused = state_.regions->Unregister(kind, name);
  if (unused->HasBeenNotified()) return Finish(context, absl::OkStatus());
  auto* const reactor = context->DefaultReactor();
  const auto done = [reactor, name](const absl::Status& status) {
    const bool late = status.code() == absl::StatusCode::kDeadlineExceeded;
    reactor->Finish(ToGrpc(late ? errors::UnregisteredButUsed(name) : status));
  };
  removals_.Add({name,
                 {std::move(unused)},
                 ReadDeadline(*context, Clock::now()),
                 [context] { return context->IsCancelled(); },
                 done});
  return reactor;
}

ServerUnaryReactor* InferenceService::TraceSetting(CallbackServerContext* context,
                                                   const inference::TraceSettingRequest* request,
                                                   inference::TraceSettingResponse* response) {
  if (!request->settings().empty()) {
    return Finish(context, errors::SettingsAreReadOnly("tracing",
                                                       "send no settings: the daemon "
                                                       "does not trace requests"));
  }
  (*response->mutable_settings())["trace_level"].add_value("OFF");
  return Finish(context, absl::OkStatus());
}

ServerUnaryReactor* InferenceService::LogSettings(CallbackServerContext* context,
                                                  const inference::LogSettingsRequest* request,
                                                  inference::LogSettingsResponse* response) {
  if (!request->settings().empty()) {
    return Finish(context, errors::SettingsAreReadOnly("the log",
                                                       "send no settings: the daemon "
                                                       "writes its log to stderr"));
  }
  auto& settings = *response->mutable_settings();
  settings["log_file"].set_string_param("");
  for (const char* level : {"log_info", "log_warning", "log_error"}) {
    settings[level].set_bool_param(true);
  }
  settings["log_verbose_level"].set_uint32_param(0);
  settings["log_format"].set_string_param("default");
  return Finish(context, absl::OkStatus());
}

}  // namespace resident
