// SessionsService: resident.v1.Sessions.
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_RPC_SESSIONS_SERVICE_H_
#define RESIDENT_SERVER_RPC_SESSIONS_SERVICE_H_

#include "resident/v1/buffers.grpc.pb.h"
#include "server/core/core.h"

namespace resident {

class SessionsService final : public v1::Sessions::CallbackService {
 public:
  explicit SessionsService(Core& core);
  ~SessionsService() override;

  grpc::ServerWriteReactor<v1::OpenSessionResponse>* Open(
      grpc::CallbackServerContext* context, const v1::OpenSessionRequest* request) override;

 private:
  Core& core_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_SESSIONS_SERVICE_H_
