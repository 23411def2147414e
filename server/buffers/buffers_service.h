// BuffersService: resident.v1.Buffers.
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_BUFFERS_BUFFERS_SERVICE_H_
#define RESIDENT_SERVER_BUFFERS_BUFFERS_SERVICE_H_

#include <memory>

#include "resident/v1/buffers.grpc.pb.h"
#include "server/buffers/buffers.h"
#include "server/rpc/unary_call.h"

namespace resident {

// Upload reads bytes (message_bytes.h); for the other methods, see v1::Buffers::CallbackService.
using BuffersCallbacks = v1::Buffers::WithCallbackMethod_Allocate<
    v1::Buffers::WithRawCallbackMethod_Upload<v1::Buffers::WithCallbackMethod_Download<
        v1::Buffers::WithCallbackMethod_Free<v1::Buffers::WithCallbackMethod_List<
            v1::Buffers::WithCallbackMethod_Persist<v1::Buffers::WithCallbackMethod_ImportShared<
                v1::Buffers::WithCallbackMethod_LoadFile<v1::Buffers::Service>>>>>>>>;

class BuffersService final : public BuffersCallbacks {
 public:
  explicit BuffersService(Buffers& buffers);
  ~BuffersService() override;

  grpc::ServerUnaryReactor* Allocate(grpc::CallbackServerContext* context,
                                     const v1::AllocateRequest* request,
                                     v1::AllocateResponse* response) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* Upload(grpc::CallbackServerContext* context,
                                                    grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<v1::DownloadResponse>* Download(
      grpc::CallbackServerContext* context, const v1::DownloadRequest* request) override;
  grpc::ServerUnaryReactor* Free(grpc::CallbackServerContext* context,
                                 const v1::FreeRequest* request,
                                 v1::FreeResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListBuffersRequest* request,
                                 v1::ListBuffersResponse* response) override;
  grpc::ServerUnaryReactor* Persist(grpc::CallbackServerContext* context,
                                    const v1::PersistRequest* request,
                                    v1::PersistResponse* response) override;
  grpc::ServerUnaryReactor* ImportShared(grpc::CallbackServerContext* context,
                                         const v1::ImportSharedRequest* request,
                                         v1::ImportSharedResponse* response) override;
  grpc::ServerWriteReactor<v1::LoadFileResponse>* LoadFile(
      grpc::CallbackServerContext* context, const v1::LoadFileRequest* request) override;

 private:
  absl::Status DoAllocate(const grpc::CallbackServerContext& context,
                          const v1::AllocateRequest& request, v1::AllocateResponse& response);
  // Reads the buffer from its device, commits the write and saves the buffer, then answers.
  void StartPersist(const std::shared_ptr<Client>& client,
                    const std::shared_ptr<const Buffer>& buffer,
                    std::unique_ptr<DurableWrite> write, std::shared_ptr<UnaryCall> answer);
  // Whether this daemon accepts the way in which the request identifies the memory.
  absl::Status CheckImport(const v1::ImportSharedRequest& request) const;
  absl::Status DoImport(const Client& client, const v1::ImportSharedRequest& request,
                        v1::ImportSharedResponse& response);

  Core& core_;
  Buffers& buffers_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_BUFFERS_BUFFERS_SERVICE_H_
