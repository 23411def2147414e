
#include "server/inference/inference_service.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "inference/open_inference.grpc.pb.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/operators/errors.h"
#include "server/core/status.h"
#include "server/core/version.h"
#include "server/core/viewer.h"
#include "server/inference/errors.h"
#include "server/inference/infer_calls.h"
#include "server/inference/inference_state.h"
#include "server/inference/loaded_models.h"
#include "server/inference/model_metadata.h"
#include "server/inference/repository.h"
#include "server/models/model_loader.h"
#include "server/operators/removal_waits.h"
#include "server/rpc/call.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/unary_call.h"

namespace resident {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

// Serves a call with errors in the words of the protocol.
ServerUnaryReactor* Serve(CallbackServerContext* context, UnaryCall::Handler handler) {
  return UnaryCall::Serve(*context, handler, errors::InInferenceWords);
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
  const VersionRef wanted = described.model.version_ref();
  if (wanted.none()) return described;
  if (wanted.number == 0) {
    const std::string& op = described.model.operator_name;
    ASSIGN_OR_RETURN(const auto resolved, described.op.op->bytecode()
                                              ? registry.ResolveProgram(op, wanted)
                                              : registry.Resolve(op, wanted));
    described.model.version = resolved.version->version;
    // The version may have been installed since.
    ASSIGN_OR_RETURN(described.op, registry.Describe(op));
  }
  const uint32_t number = described.model.version;
  const VersionView* const found = described.op.Find(number);
  if (found == nullptr || !IsReady(found->state)) {
    return errors::UnknownVersion(described.op.op->name(), number, described.op.active_version);
  }
  return described;
}

// The model that a request names, if it was loaded; nullopt: it is an operator, if anything.
absl::StatusOr<std::optional<LoadedModel>> FindLoaded(const Core& core, const std::string& name,
                                                      const std::string& version) {
  ASSIGN_OR_RETURN(const ModelName model, ParseModelName(name, version));
  if (!core.models.Has(model.operator_name)) return std::optional<LoadedModel>();
  return FindLoadedModel(core.models, model);
}

// ModelInfer and ModelStreamInfer read bytes (message_bytes.h); for the other methods, see
// GRPCInferenceService::CallbackService.
using Protocol = inference::GRPCInferenceService;
using InferenceCallbacks = Protocol::WithRawCallbackMethod_ModelInfer<
    Protocol::WithRawCallbackMethod_ModelStreamInfer<Protocol::WithCallbackMethod_ServerLive<
        Protocol::WithCallbackMethod_ServerReady<Protocol::WithCallbackMethod_ModelReady<
            Protocol::WithCallbackMethod_ServerMetadata<Protocol::WithCallbackMethod_ModelMetadata<
                Protocol::WithCallbackMethod_ModelConfig<Protocol::WithCallbackMethod_ModelStatistics<
                    Protocol::WithCallbackMethod_RepositoryIndex<
                        Protocol::WithCallbackMethod_RepositoryModelLoad<
                            Protocol::WithCallbackMethod_RepositoryModelUnload<
                                Protocol::WithCallbackMethod_SystemSharedMemoryStatus<
                                    Protocol::WithCallbackMethod_SystemSharedMemoryRegister<
                                        Protocol::WithCallbackMethod_SystemSharedMemoryUnregister<
                                            Protocol::WithCallbackMethod_CudaSharedMemoryStatus<
                                                Protocol::WithCallbackMethod_CudaSharedMemoryRegister<
                                                    Protocol::
                                                        WithCallbackMethod_CudaSharedMemoryUnregister<
                                                            Protocol::WithCallbackMethod_TraceSetting<
                                                                Protocol::WithCallbackMethod_LogSettings<
                                                                    Protocol::
                                                                        Service>>>>>>>>>>>>>>>>>>>>;

class InferenceService final : public InferenceCallbacks {
 public:
  InferenceService(Buffers& buffers, Installs& installs, Models& models,
                   const InferenceOptions& options, std::function<bool()> ready)
      : state_(buffers, installs, models, options), ready_(std::move(ready)) {}

  ServerUnaryReactor* ServerLive(CallbackServerContext* context,
                                 const inference::ServerLiveRequest*,
                                 inference::ServerLiveResponse* response) override {
    return Serve(context, [&](UnaryCall&) {
      response->set_live(true);
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* ServerReady(CallbackServerContext* context,
                                  const inference::ServerReadyRequest*,
                                  inference::ServerReadyResponse* response) override {
    return Serve(context, [&](UnaryCall&) {
      response->set_ready(ready_());
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* ModelReady(CallbackServerContext* context,
                                 const inference::ModelReadyRequest* request,
                                 inference::ModelReadyResponse* response) override {
    return Serve(context, [&](UnaryCall&) -> absl::Status {
      const auto loaded = FindLoaded(state_.core, request->name(), request->version());
      if (loaded.ok() && loaded->has_value()) {
        const bool serves = (*loaded)->active != 0 || !request->version().empty();
        response->set_ready(serves && ready_());
        return absl::OkStatus();
      }
      const auto described =
          DescribeVersion(state_.core.registry, request->name(), request->version());
      const bool found =
          described.ok() && (described->model.version != 0 || described->op.active_version != 0);
      response->set_ready(found && ready_());
      // A model that does not exist is not ready; a version that is not a number is an error.
      const bool invalid = described.status().code() == absl::StatusCode::kInvalidArgument;
      return invalid ? described.status() : absl::OkStatus();
    });
  }

  ServerUnaryReactor* ServerMetadata(CallbackServerContext* context,
                                     const inference::ServerMetadataRequest*,
                                     inference::ServerMetadataResponse* response) override {
    return Serve(context, [&](UnaryCall&) {
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
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* ModelMetadata(CallbackServerContext* context,
                                    const inference::ModelMetadataRequest* request,
                                    inference::ModelMetadataResponse* response) override {
    return Serve(context, [&](UnaryCall&) -> absl::Status {
      ASSIGN_OR_RETURN(const auto loaded,
                       FindLoaded(state_.core, request->name(), request->version()));
      if (loaded.has_value()) {
        FillMetadata(*loaded, response);
        return absl::OkStatus();
      }
      ASSIGN_OR_RETURN(const Described described,
                       DescribeVersion(state_.core.registry, request->name(), request->version()));
      FillMetadata(described.op, described.model.batch, response);
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* ModelInfer(CallbackServerContext* context, const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override {
    return RunCall::Start(std::make_shared<InferCall>(state_, *response), *context, *request);
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ModelStreamInfer(
      CallbackServerContext* context) override {
    return StartBidiCall<InferStream>(*context, state_);
  }

  ServerUnaryReactor* ModelConfig(CallbackServerContext* context,
                                  const inference::ModelConfigRequest* request,
                                  inference::ModelConfigResponse* response) override {
    return Serve(context, [&](UnaryCall&) -> absl::Status {
      ASSIGN_OR_RETURN(const auto loaded,
                       FindLoaded(state_.core, request->name(), request->version()));
      if (loaded.has_value()) {
        FillConfig(*loaded, response->mutable_config());
        return absl::OkStatus();
      }
      ASSIGN_OR_RETURN(const Described described,
                       DescribeVersion(state_.core.registry, request->name(), request->version()));
      FillConfig(described.op, described.model.batch, state_.core.limits.max_batch_tasks,
                 response->mutable_config());
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* ModelStatistics(CallbackServerContext* context,
                                      const inference::ModelStatisticsRequest* request,
                                      inference::ModelStatisticsResponse* response) override {
    return Serve(context, [&](UnaryCall&) -> absl::Status {
      // Versions in the kernel.
      const auto add = [&](const OperatorView& op, bool batch, uint32_t only) {
        for (const VersionView& version : op.versions) {
          if (!IsReady(version.state) || (only != 0 && version.version != only)) continue;
          state_.statistics.Fill(ModelName{op.op->name(), batch}.text(), version.version,
                                 response->add_model_stats());
        }
      };
      const auto add_loaded = [&](const ModelTable::Model& model, uint32_t only) {
        for (const ModelTable::Version& version : model.versions) {
          if (only != 0 && version.version != only) continue;
          inference::ModelStatistics* const stats = response->add_model_stats();
          state_.statistics.Fill(model.name, version.version, stats);
          // Of requests over all interfaces, because they share executions.
          v1::ModelVersion info;
          version.served->Describe(&info);
          stats->set_inference_count(info.rows());
          stats->set_execution_count(info.executions());
        }
      };
      if (!request->name().empty()) {
        ASSIGN_OR_RETURN(const auto loaded,
                         FindLoaded(state_.core, request->name(), request->version()));
        if (loaded.has_value()) {
          ASSIGN_OR_RETURN(const ModelTable::Model model,
                           state_.core.models.Describe(request->name()));
          add_loaded(model, request->version().empty() ? 0 : loaded->version);
          return absl::OkStatus();
        }
        ASSIGN_OR_RETURN(
            const Described described,
            DescribeVersion(state_.core.registry, request->name(), request->version()));
        add(described.op, described.model.batch, described.model.version);
        return absl::OkStatus();
      }
      for (const OperatorView& op : state_.core.registry.List()) {
        if (!IsModel(*op.op)) continue;
        for (const bool batch : {false, true}) add(op, batch, 0);
      }
      for (const ModelTable::Model& model : state_.core.models.List()) add_loaded(model, 0);
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* RepositoryIndex(CallbackServerContext* context,
                                      const inference::RepositoryIndexRequest* request,
                                      inference::RepositoryIndexResponse* response) override {
    return Serve(context, [&](UnaryCall&) -> absl::Status {
      if (!request->repository_name().empty()) {
        return errors::UnknownRepository(request->repository_name());
      }
      ASSIGN_OR_RETURN(const auto caller, IdentifyCaller(*context, state_.core));
      FillIndex(state_.core.registry, request->ready(), MaySeeOthers(*caller), response);
      FillIndex(state_.core.models, request->ready(), response);
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* RepositoryModelLoad(CallbackServerContext* context,
                                          const inference::RepositoryModelLoadRequest* request,
                                          inference::RepositoryModelLoadResponse*) override {
    return Serve(context, [&](UnaryCall& call) -> absl::Status {
      Core& core = state_.core;
      ASSIGN_OR_RETURN(const ModelName model, ParseModelName(request->model_name(), ""));
      ASSIGN_OR_RETURN(const std::string actor,
                       AuthorizeChange(*context, core, model.operator_name));
      // The message belongs to the call; its files are moved.
      ASSIGN_OR_RETURN(LoadRequest load,
                       ParseLoad(*const_cast<inference::RepositoryModelLoadRequest*>(request)));
      ASSIGN_OR_RETURN(const auto caller, IdentifyCaller(*context, core));
      if (!load.model.empty()) return StartLoad(call, *context, caller, load.model);
      if (!load.install.has_value() && core.models.Has(load.operator_name)) {
        RETURN_IF_ERROR(call.Enter(core.gate));
        return call.Post(core.pools.changes, [this, actor, name = std::move(load.operator_name)] {
          return state_.models.Activate(name, /*version=*/0, std::nullopt, /*bake=*/{}, actor)
              .status();
        });
      }
      if (!load.install.has_value()) {
        RETURN_IF_ERROR(call.Enter(core.gate));
        return call.Post(core.pools.changes, [&core, actor, name = std::move(load.operator_name)] {
          return ActivateLoaded(core.registry, core.operators, name, actor);
        });
      }
      Account& account = *caller->account();
      const auto slot = std::make_shared<SharedSlots::Ticket>();
      ASSIGN_OR_RETURN(*slot, state_.installs.install_slots.Take(
                                  NameHolder(account, context->peer()), account.install_quota()));
      RETURN_IF_ERROR(account.BeginInstall(load.operator_name, absl::Now()));
      load.install->actor = actor;
      RETURN_IF_ERROR(call.Enter(core.gate));
      return call.Post(core.pools.installs, [&core, context, slot, load = std::move(load)] {
        absl::Status done = InstallAndActivate(core.operators, *load.install, [&core, context] {
          return context->IsCancelled() || core.gate.draining();
        });
        if (done.code() == absl::StatusCode::kCancelled && core.gate.draining()) {
          done = errors::Draining();
        }
        // Before the answer, so that the client's next install finds the slot free.
        slot->Release();
        return done;
      });
    });
  }

  ServerUnaryReactor* RepositoryModelUnload(CallbackServerContext* context,
                                            const inference::RepositoryModelUnloadRequest* request,
                                            inference::RepositoryModelUnloadResponse*) override {
    return Serve(context, [&](UnaryCall& call) -> absl::Status {
      Core& core = state_.core;
      if (!request->repository_name().empty()) {
        return errors::UnknownRepository(request->repository_name());
      }
      ASSIGN_OR_RETURN(ModelName model, ParseModelName(request->model_name(), ""));
      const bool loaded = core.models.Has(model.operator_name);
      if (!loaded) RETURN_IF_ERROR(core.registry.FindOperator(model.operator_name).status());
      if (!state_.options.unload) return errors::UnloadDisabled(model.operator_name);
      ASSIGN_OR_RETURN(std::string actor, AuthorizeChange(*context, core, model.operator_name));
      RETURN_IF_ERROR(call.Enter(core.gate));
      if (loaded) {
        return call.Post(core.pools.changes, [this, actor, name = std::move(model.operator_name)] {
          return state_.models.Remove(name, /*version=*/0, std::nullopt, actor).status();
        });
      }
      core.pools.changes.Post([this, context, name = std::move(model.operator_name),
                               actor = std::move(actor), answer = call.Defer()] {
        auto removal = state_.core.operators.Remove(name, std::nullopt, actor, {});
        if (!removal.ok()) return answer->Finish(removal.status());
        removals_.Add({name, std::move(removal->drained), ReadDeadline(*context, Clock::now()),
                       [answer] { return answer->cancelled(); },
                       [answer](const absl::Status& status) { answer->Finish(status); }});
      });
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* SystemSharedMemoryStatus(
      CallbackServerContext* context, const inference::SystemSharedMemoryStatusRequest* request,
      inference::SystemSharedMemoryStatusResponse* response) override {
    return Serve(context, [&](UnaryCall&) -> absl::Status {
      ASSIGN_OR_RETURN(const std::vector<RegionSpec> regions,
                       state_.regions->List(RegionKind::kSystem, request->name()));
      for (const RegionSpec& region : regions) {
        auto& status = (*response->mutable_regions())[region.name];
        status.set_name(region.name);
        status.set_key(region.key);
        status.set_offset(region.offset);
        status.set_byte_size(region.bytes);
      }
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* SystemSharedMemoryRegister(
      CallbackServerContext* context, const inference::SystemSharedMemoryRegisterRequest* request,
      inference::SystemSharedMemoryRegisterResponse*) override {
    return Register(context, {.name = request->name(),
                              .key = request->key(),
                              .offset = request->offset(),
                              .bytes = request->byte_size()});
  }

  ServerUnaryReactor* SystemSharedMemoryUnregister(
      CallbackServerContext* context, const inference::SystemSharedMemoryUnregisterRequest* request,
      inference::SystemSharedMemoryUnregisterResponse*) override {
    return Unregister(context, RegionKind::kSystem, request->name());
  }

  ServerUnaryReactor* CudaSharedMemoryStatus(
      CallbackServerContext* context, const inference::CudaSharedMemoryStatusRequest* request,
      inference::CudaSharedMemoryStatusResponse* response) override {
    return Serve(context, [&](UnaryCall&) -> absl::Status {
      ASSIGN_OR_RETURN(const std::vector<RegionSpec> regions,
                       state_.regions->List(RegionKind::kCuda, request->name()));
      for (const RegionSpec& region : regions) {
        auto& status = (*response->mutable_regions())[region.name];
        status.set_name(region.name);
        status.set_device_id(static_cast<uint64_t>(region.device));
        status.set_byte_size(region.bytes);
      }
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* CudaSharedMemoryRegister(
      CallbackServerContext* context, const inference::CudaSharedMemoryRegisterRequest* request,
      inference::CudaSharedMemoryRegisterResponse*) override {
    return Register(context, {.kind = RegionKind::kCuda,
                              .name = request->name(),
                              .bytes = request->byte_size(),
                              .handle = request->raw_handle(),
                              .device = request->device_id()});
  }

  ServerUnaryReactor* CudaSharedMemoryUnregister(
      CallbackServerContext* context, const inference::CudaSharedMemoryUnregisterRequest* request,
      inference::CudaSharedMemoryUnregisterResponse*) override {
    return Unregister(context, RegionKind::kCuda, request->name());
  }

  ServerUnaryReactor* TraceSetting(CallbackServerContext* context,
                                   const inference::TraceSettingRequest* request,
                                   inference::TraceSettingResponse* response) override {
    return Serve(context, [&](UnaryCall&) -> absl::Status {
      if (!request->settings().empty()) {
        return errors::SettingsAreReadOnly("tracing",
                                           "send no settings: the daemon does not trace requests");
      }
      (*response->mutable_settings())["trace_level"].add_value("OFF");
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* LogSettings(CallbackServerContext* context,
                                  const inference::LogSettingsRequest* request,
                                  inference::LogSettingsResponse* response) override {
    return Serve(context, [&](UnaryCall&) -> absl::Status {
      if (!request->settings().empty()) {
        return errors::SettingsAreReadOnly("the log",
                                           "send no settings: the daemon writes its log to stderr");
      }
      auto& settings = *response->mutable_settings();
      settings["log_file"].set_string_param("");
      for (const char* level : {"log_info", "log_warning", "log_error"}) {
        settings[level].set_bool_param(true);
      }
      settings["log_verbose_level"].set_uint32_param(0);
      settings["log_format"].set_string_param("default");
      return absl::OkStatus();
    });
  }

 private:
  // Loads a model, with the place, the quota and the threads of an install.
  absl::Status StartLoad(UnaryCall& call, const CallbackServerContext& context,
                         const std::shared_ptr<Identity>& caller,
                         std::vector<v1::LoadModelRequest>& messages) {
    Core& core = state_.core;
    Account& account = *caller->account();
    std::string holder = NameHolder(account, context.peer());
    const auto slot = std::make_shared<SharedSlots::Ticket>();
    ASSIGN_OR_RETURN(*slot, state_.installs.install_slots.Take(holder, account.install_quota()));
    ASSIGN_OR_RETURN(const auto client, FindClient(context, core));
    const auto loader =
        std::make_shared<ModelLoader>(state_.models, caller, client, std::move(holder));
    for (v1::LoadModelRequest& message : messages) RETURN_IF_ERROR(loader->Add(message));
    RETURN_IF_ERROR(loader->Finish());
    RETURN_IF_ERROR(call.Enter(core.gate));
    const std::shared_ptr<UnaryCall> answer = call.Defer();
    answer->OnCancel([loader] { loader->Withdraw(); });
    core.pools.installs.Post([&core, loader, slot, answer] {
      absl::Status done = LoadModel(*loader);
      if (done.code() == absl::StatusCode::kCancelled && core.gate.draining()) {
        done = errors::Draining();
      }
      // Before the answer, so that the client's next load finds the slot free.
      slot->Release();
      answer->Finish(done);
    });
    return absl::OkStatus();
  }

  // For regions of both kinds.
  ServerUnaryReactor* Register(CallbackServerContext* context, RegionSpec spec) {
    return Serve(context, [&](UnaryCall& call) -> absl::Status {
      ASSIGN_OR_RETURN(const auto client, FindClient(*context, state_.core));
      // Mapping is a call to the engine.
      return call.Post(state_.core.pools.blocking, [this, client, spec = std::move(spec)] {
        return state_.regions->Register(spec, *client);
      });
    });
  }

  ServerUnaryReactor* Unregister(CallbackServerContext* context, RegionKind kind,
                                 const std::string& name) {
    return Serve(context, [&](UnaryCall& call) {
      std::shared_ptr<absl::Notification> unused = state_.regions->Unregister(kind, name);
      if (unused->HasBeenNotified()) return absl::OkStatus();
      const auto answer = call.Defer();
      removals_.Add({name,
                     {std::move(unused)},
                     ReadDeadline(*context, Clock::now()),
                     [answer] { return answer->cancelled(); },
                     [answer, name](const absl::Status& status) {
                       const bool late = status.code() == absl::StatusCode::kDeadlineExceeded;
                       answer->Finish(late ? errors::UnregisteredButUsed(name) : status);
                     }});
      return absl::OkStatus();
    });
  }

  InferenceState state_;
  const std::function<bool()> ready_;
  RemovalWaits removals_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInferenceService(Buffers& buffers, Installs& installs,
                                                    Models& models, const InferenceOptions& options,
                                                    std::function<bool()> ready) {
  if (!options.enabled) return nullptr;
  return std::make_unique<InferenceService>(buffers, installs, models, options, std::move(ready));
}

}  // namespace resident
