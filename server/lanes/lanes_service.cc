#include "server/lanes/lanes_service.h"

#include <atomic>
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/rpc/bidi_stream.h"
#include "server/rpc/call.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/unary_call.h"

namespace resident {
namespace {

// One lane: lasts from its first message until the client or the daemon ends it.
class LaneStream final : public BidiStream<NoMessage, v1::OpenLaneResponse> {
 public:
  LaneStream(Transport& transport, Core& core) : BidiStream(transport, core) {}

  void Open(const grpc::CallbackServerContext& context, const v1::OpenLaneRequest& request,
            LaneTable& lanes) {
    lanes_ = &lanes;
    LiveStreams::Recheck recheck =
        MakeRecheck(context, core_, Role::kSubmit, "resident.v1.Lanes/Open");
    if (recheck != nullptr) {
      recheck = [recheck = std::move(recheck), &lanes, id = lane_id_] {
        const absl::Status status = recheck();
        if (status.ok() && id->load() != 0) lanes.Recheck(id->load());
        return status;
      };
    }
    Register(std::move(recheck));
    v1::OpenLaneResponse first;
    const absl::Status opened = OpenLane(context, request, &first);
    absl::MutexLock lock(&mu_);
    if (!opened.ok()) return Conclude(opened);
    if (!ending()) Write(std::move(first));
  }

  void OnDone() override {
    if (lane_id_->load() != 0) lanes_->Close(lane_id_->load());
  }

 private:
  absl::Status OpenLane(const grpc::CallbackServerContext& context,
                        const v1::OpenLaneRequest& request, v1::OpenLaneResponse* first) {
    ASSIGN_OR_RETURN(const auto client, FindSessionClient(context, core_));
    RETURN_IF_ERROR(lanes_->Open(
        client, request,
        [weak = std::weak_ptr<LaneStream>(Ref(this))](const absl::Status& status) {
          const auto self = weak.lock();
          if (self == nullptr) return;
          absl::MutexLock lock(&self->mu_);
          if (!self->ending()) self->Conclude(status);
        },
        first));
    lane_id_->store(first->lane_id());
    return absl::OkStatus();
  }

  LaneTable* lanes_ = nullptr;  // Set by Open.
  // 0: not open.
  const std::shared_ptr<std::atomic<uint64_t>> lane_id_ =
      std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace

grpc::ServerWriteReactor<v1::OpenLaneResponse>* LanesService::Open(
    grpc::CallbackServerContext* context, const v1::OpenLaneRequest* request) {
  return StartWriteCall<LaneStream>(*context, core_, *request, lanes_);
}

grpc::ServerUnaryReactor* LanesService::Bind(grpc::CallbackServerContext* context,
                                             const v1::BindLaneRequest* request,
                                             v1::BindLaneResponse* response) {
  return UnaryCall::Serve(*context, [&](UnaryCall&) -> absl::Status {
    ASSIGN_OR_RETURN(const auto client, FindSessionClient(*context, core_));
    return lanes_.Bind(*client, *request, response);
  });
}

grpc::ServerUnaryReactor* LanesService::Prepare(grpc::CallbackServerContext* context,
                                                const v1::PrepareLaneRequest* request,
                                                v1::PrepareLaneResponse* response) {
  return UnaryCall::Serve(*context, [&](UnaryCall&) -> absl::Status {
    ASSIGN_OR_RETURN(const auto client, FindSessionClient(*context, core_));
    return lanes_.Prepare(*client, *request, response);
  });
}

grpc::ServerUnaryReactor* LanesService::Release(grpc::CallbackServerContext* context,
                                                const v1::ReleaseLaneRequest* request,
                                                v1::ReleaseLaneResponse*) {
  return UnaryCall::Serve(*context, [&](UnaryCall&) -> absl::Status {
    ASSIGN_OR_RETURN(const auto client, FindSessionClient(*context, core_));
    return lanes_.Release(*client, *request);
  });
}

}  // namespace resident
