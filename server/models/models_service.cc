#include "server/models/models_service.h"

#include <optional>
#include <string>
#include <utility>

#include "resident/v1/models.grpc.pb.h"
#include "runtime/base/status_macros.h"
#include "server/core/viewer.h"
#include "server/models/load_model_stream.h"
#include "server/operators/operator_messages.h"
#include "server/rpc/call.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/unary_call.h"

namespace resident {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

// Load reads bytes (message_bytes.h).
using ModelsCallbacks = v1::Models::WithRawCallbackMethod_Load<
    v1::Models::WithCallbackMethod_List<v1::Models::WithCallbackMethod_Activate<
        v1::Models::WithCallbackMethod_Rollback<v1::Models::WithCallbackMethod_Share<
            v1::Models::WithCallbackMethod_Remove<v1::Models::Service>>>>>>;

v1::ModelVersion::State ToMessage(ModelTable::State state) {
  switch (state) {
    case ModelTable::State::kLoaded:
      return v1::ModelVersion::STATE_LOADED;
    case ModelTable::State::kActive:
      return v1::ModelVersion::STATE_ACTIVE;
    case ModelTable::State::kPrevious:
      return v1::ModelVersion::STATE_PREVIOUS;
  }
  return v1::ModelVersion::STATE_UNSPECIFIED;
}

void FillModel(const ModelTable::Model& model, const Viewer& viewer, v1::Model* out) {
  out->set_name(model.name);
  out->set_revision(model.revision);
  out->set_share_version(model.share_version);
  out->set_share_percent(model.share_percent);
  for (const ModelTable::Version& version : model.versions) {
    v1::ModelVersion* const to = out->add_versions();
    version.served->Describe(to);
    to->set_version(version.version);
    to->set_state(ToMessage(version.state));
    to->set_loaded_ms(version.loaded_ms);
    if (viewer.Sees(version.loaded_by)) to->set_loaded_by(version.loaded_by);
  }
}

template <typename Request>
std::optional<uint64_t> ExpectedRevision(const Request& request) {
  if (!request.has_expected_revision()) return std::nullopt;
  return request.expected_revision();
}

class ModelsService final : public ModelsCallbacks {
 public:
  explicit ModelsService(Models& models) : models_(models), core_(models.core) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Load(
      CallbackServerContext* context) override {
    return StartBidiCall<LoadModelStream>(*context, models_);
  }

  ServerUnaryReactor* List(CallbackServerContext* context, const v1::ListModelsRequest* request,
                           v1::ListModelsResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall&) -> absl::Status {
      ASSIGN_OR_RETURN(const auto identity, IdentifyCaller(*context, core_));
      const Viewer viewer = Viewer::Of(*identity);
      if (!request->name().empty()) {
        ASSIGN_OR_RETURN(const ModelTable::Model model, core_.models.Describe(request->name()));
        FillModel(model, viewer, response->add_models());
        return absl::OkStatus();
      }
      for (const ModelTable::Model& model : core_.models.List()) {
        FillModel(model, viewer, response->add_models());
      }
      return absl::OkStatus();
    });
  }

  ServerUnaryReactor* Activate(CallbackServerContext* context,
                               const v1::ActivateModelRequest* request,
                               v1::ChangeModelResponse* response) override {
    return Change(*context, *request, response, [this, request](const std::string& actor) -> Done {
      ASSIGN_OR_RETURN(const BakeOptions bake, ParseBake(request->bake()));
      return models_.Activate(request->name(), request->version(), ExpectedRevision(*request), bake,
                              actor);
    });
  }

  ServerUnaryReactor* Rollback(CallbackServerContext* context,
                               const v1::RollbackModelRequest* request,
                               v1::ChangeModelResponse* response) override {
    return Change(*context, *request, response, [this, request](const std::string& actor) {
      return models_.Rollback(request->name(), ExpectedRevision(*request), actor);
    });
  }

  ServerUnaryReactor* Share(CallbackServerContext* context, const v1::ShareModelRequest* request,
                            v1::ChangeModelResponse* response) override {
    return Change(*context, *request, response, [this, request](const std::string& actor) {
      return models_.Share(request->name(), request->version(), request->percent(),
                           ExpectedRevision(*request), actor);
    });
  }

  ServerUnaryReactor* Remove(CallbackServerContext* context, const v1::RemoveModelRequest* request,
                             v1::ChangeModelResponse* response) override {
    return Change(*context, *request, response, [this, request](const std::string& actor) {
      return models_.Remove(request->name(), request->version(), ExpectedRevision(*request), actor);
    });
  }

 private:
  using Done = absl::StatusOr<ModelTable::Change>;

  template <typename Request, typename Work>
  ServerUnaryReactor* Change(CallbackServerContext& context, const Request& request,
                             v1::ChangeModelResponse* response, Work work) {
    return UnaryCall::Serve(context, [&](UnaryCall& call) -> absl::Status {
      ASSIGN_OR_RETURN(const std::string actor, AuthorizeChange(context, core_, request.name()));
      RETURN_IF_ERROR(call.Enter(core_.gate));
      return call.Post(core_.pools.changes, [response, work, actor]() -> absl::Status {
        ASSIGN_OR_RETURN(const ModelTable::Change change, work(actor));
        response->set_version(change.version);
        response->set_previous_version(change.previous_version);
        response->set_revision(change.revision);
        return absl::OkStatus();
      });
    });
  }

  Models& models_;
  Core& core_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeModelsService(Models& models) {
  return std::make_unique<ModelsService>(models);
}

}  // namespace resident
