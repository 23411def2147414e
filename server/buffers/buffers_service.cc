
#include "server/buffers/buffers_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "resident/v1/buffers.grpc.pb.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/process/unique_fd.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "server/buffers/buffers.h"
#include "server/buffers/cuda_import.h"
#include "server/buffers/device_reader.h"
#include "server/buffers/errors.h"
#include "server/buffers/transfers.h"
#include "server/core/status.h"
#include "server/rpc/call.h"
#include "server/rpc/unary_call.h"
#include "server/workload/copy_workload.h"

namespace resident {
namespace {

// Upload reads bytes (message_bytes.h); for the other methods, see v1::Buffers::CallbackService.
using BuffersCallbacks = v1::Buffers::WithCallbackMethod_Allocate<
    v1::Buffers::WithRawCallbackMethod_Upload<v1::Buffers::WithCallbackMethod_Download<
        v1::Buffers::WithCallbackMethod_Free<v1::Buffers::WithCallbackMethod_List<
            v1::Buffers::WithCallbackMethod_Persist<v1::Buffers::WithCallbackMethod_ImportShared<
                v1::Buffers::WithCallbackMethod_ImportCuda<
                    v1::Buffers::WithCallbackMethod_LoadFile<v1::Buffers::Service>>>>>>>>>;

class BuffersService final : public BuffersCallbacks {
 public:
  explicit BuffersService(Buffers& buffers) : core_(buffers.core), buffers_(buffers) {}

  grpc::ServerUnaryReactor* Allocate(grpc::CallbackServerContext* context,
                                     const v1::AllocateRequest* request,
                                     v1::AllocateResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) {
      if (!request->durable() || !core_.buffers.on_disk()) {
        return DoAllocate(*context, *request, *response);
      }
      return call.Post(core_.pools.disk, [this, context, request, response] {
        return DoAllocate(*context, *request, *response);
      });
    });
  }

  grpc::ServerReadReactor<grpc::ByteBuffer>* Upload(grpc::CallbackServerContext* context,
                                                    grpc::ByteBuffer* response) override {
    return StartUpload(*context, core_, *response);
  }

  grpc::ServerWriteReactor<v1::DownloadResponse>* Download(
      grpc::CallbackServerContext* context, const v1::DownloadRequest* request) override {
    return StartDownload(*context, core_, *request);
  }

  grpc::ServerWriteReactor<v1::LoadFileResponse>* LoadFile(
      grpc::CallbackServerContext* context, const v1::LoadFileRequest* request) override {
    return StartLoad(*context, buffers_, *request);
  }

  grpc::ServerUnaryReactor* Free(grpc::CallbackServerContext* context,
                                 const v1::FreeRequest* request, v1::FreeResponse*) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
      ASSIGN_OR_RETURN(const auto client, FindSessionClient(*context, core_));
      ASSIGN_OR_RETURN(const auto buffer, core_.buffers.Find(client->id(), request->buffer_id()));
      if (!buffer->durable || !core_.buffers.on_disk()) {
        return core_.buffers.Free(client->id(), buffer->id);
      }
      return call.Post(core_.pools.disk, [this, client, id = buffer->id] {
        return core_.buffers.Free(client->id(), id);
      });
    });
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListBuffersRequest*,
                                 v1::ListBuffersResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall&) -> absl::Status {
      ASSIGN_OR_RETURN(const auto client, FindClient(*context, core_));
      for (const auto& buffer : core_.buffers.List(client->id())) {
        DescribeBuffer(*buffer, response->add_buffers());
      }
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Persist(grpc::CallbackServerContext* context,
                                    const v1::PersistRequest* request,
                                    v1::PersistResponse*) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
      ASSIGN_OR_RETURN(const auto client, FindSessionClient(*context, core_));
      ASSIGN_OR_RETURN(const auto buffer, core_.buffers.Find(client->id(), request->buffer_id()));
      if (!buffer->durable) return errors::NotDurable(request->buffer_id());
      ASSIGN_OR_RETURN(
          auto write, core_.buffers.StartWrite(DurableCopy::Kind::kPersist, client->id(), *buffer));
      RETURN_IF_ERROR(call.Enter(core_.gate));
      StartPersist(client, buffer, std::move(write), call.Defer());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* ImportShared(grpc::CallbackServerContext* context,
                                         const v1::ImportSharedRequest* request,
                                         v1::ImportSharedResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
      ASSIGN_OR_RETURN(const auto client, FindSessionClient(*context, core_));
      RETURN_IF_ERROR(CheckImport(*request));
      if (core_.gate.draining()) return errors::Draining();
      // Mapping is a call to the engine.
      return call.Post(core_.pools.blocking, [this, client, request, response] {
        return DoImport(*client, *request, *response);
      });
    });
  }

  grpc::ServerUnaryReactor* ImportCuda(grpc::CallbackServerContext* context,
                                       const v1::ImportCudaRequest* request,
                                       v1::ImportCudaResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
      ASSIGN_OR_RETURN(const auto client, FindSessionClient(*context, core_));
      RETURN_IF_ERROR(CheckCudaImport(buffers_, *request));
      if (core_.gate.draining()) return errors::Draining();
      // Mapping is a call to the engine.
      return call.Post(core_.pools.blocking, [this, client, request, response]() -> absl::Status {
        ASSIGN_OR_RETURN(const auto buffer, resident::ImportCuda(buffers_, *client, *request));
        DescribeBuffer(*buffer, response->mutable_buffer());
        return absl::OkStatus();
      });
    });
  }

 private:
  absl::Status DoAllocate(const grpc::CallbackServerContext& context,
                          const v1::AllocateRequest& request, v1::AllocateResponse& response) {
    ASSIGN_OR_RETURN(const auto client, FindSessionClient(context, core_));
    if (core_.gate.draining()) return errors::Draining();
    BufferSpec spec;
    RETURN_IF_ERROR(ReadBufferSpec(request.dtype(), request.shape(), &spec));
    std::optional<uint32_t> wanted;
    if (request.has_device()) wanted = request.device();
    spec.durable = request.durable();
    spec.name = request.name();
    ASSIGN_OR_RETURN(const auto buffer, AllocateBuffer(core_, *client, wanted, std::move(spec)));
    DescribeBuffer(*buffer, response.mutable_buffer());
    return absl::OkStatus();
  }

  // Reads the buffer from its device, commits the write and saves the buffer, then answers.
  void StartPersist(const std::shared_ptr<Client>& client,
                    const std::shared_ptr<const Buffer>& buffer,
                    std::unique_ptr<DurableWrite> write, std::shared_ptr<UnaryCall> answer) {
    // The reader and its callbacks refer to each other until the reader ends.
    struct Job {
      std::shared_ptr<DeviceReader> reader;
      std::unique_ptr<DurableWrite> write;
      uint64_t offset = 0;
      absl::Status added;
    };
    auto job = std::make_shared<Job>();
    job->write = std::move(write);
    const auto take = [job](absl::Span<const uint8_t> data, const Budget::Charge&) {
      if (job->added.ok()) job->added = job->write->Add(job->offset, data);
      if (!job->added.ok()) job->reader->Cancel();
      job->offset += data.size();
      job->reader->Next();
    };
    const auto end = [this, job, buffer, answer = std::move(answer)](const absl::Status& read) {
      job->reader.reset();
      absl::Status status = job->added.ok() ? read : job->added;
      if (status.ok()) status = job->write->Commit();
      job->write.reset();
      if (!status.ok() || !core_.buffers.on_disk()) return answer->Finish(status);
      core_.pools.disk.Post(
          [this, answer, buffer] { answer->Finish(core_.buffers.Save(*buffer)); });
    };
    job->reader = std::make_shared<DeviceReader>(
        core_, client, buffer, DeviceReader::Range{0, buffer->size_bytes, kCopyPieceBytes}, take,
        end);
    const std::shared_ptr<DeviceReader> reader = job->reader;
    reader->Start();
  }

  // Whether this daemon accepts the way in which the request identifies the memory.
  absl::Status CheckImport(const v1::ImportSharedRequest& request) const {
    if (!buffers_.allow_shared_memory) return errors::SharedMemoryDisabled();
    const bool local_socket = !core_.local_address.empty();
    if (request.descriptor_token().empty()) {
      if (buffers_.named_shared_memory) return absl::OkStatus();
      return errors::SharedMemoryNotByName(core_.credentials
                                               ? "the daemon's callers have identities"
                                               : "the daemon serves other machines",
                                           local_socket);
    }
    if (!request.name().empty()) return errors::SharedMemoryNameAndToken();
    return local_socket ? absl::OkStatus() : errors::NoLocalSocket();
  }

  absl::Status DoImport(const Client& client, const v1::ImportSharedRequest& request,
                        v1::ImportSharedResponse& response) {
    // The memory of the buffer, kept until the buffer is destroyed, so that it can be mapped into
    // the next engine.
    struct Memory {
      UniqueFd fd;
      SharedSlots::Ticket slot;
    };
    const auto memory = std::make_shared<Memory>();
    // This call consumes the token, also if it fails.
    if (!request.descriptor_token().empty()) {
      ASSIGN_OR_RETURN(const int passed,
                       buffers_.passed_descriptors->Take(
                           PassedDescriptors::Kind::kSharedMemory, request.descriptor_token(),
                           client.session(), PassedDescriptors::Clock::now()));
      memory->fd.Reset(passed);
      RETURN_IF_ERROR(CheckSharedSize(passed, request.size_bytes()));
    }
    BufferSpec spec;
    absl::Status status = ReadBufferSpec(request.dtype(), request.shape(), &spec);
    if (!status.ok()) return status;
    spec.name = request.name().substr(0, kMaxBufferNameBytes);
    status = CheckFits(spec, "size_bytes", request.size_bytes());
    if (!status.ok()) return status;
    std::optional<uint32_t> wanted;
    if (request.has_device()) wanted = request.device();
    // The memory belongs to the client: no device memory is needed.
    ASSIGN_OR_RETURN(const auto place, ChooseBufferDevice(core_, client, wanted, 0));
    spec.device = place.device;

    status = ReserveBufferBytes(client, &spec);
    if (!status.ok()) return status;
    ASSIGN_OR_RETURN(memory->slot, buffers_.shared_memory_slots.Take(
                                       NameHolder(client.account(), client.peer())));
    if (memory->fd.get() < 0) {
      ASSIGN_OR_RETURN(const int opened, OpenSharedMemory(request.name(), request.size_bytes()));
      memory->fd.Reset(opened);
    }
    // Maps only the bytes that were counted: those of the shape, not of the whole object.
    ASSIGN_OR_RETURN(const auto buffer,
                     core_.buffers.Adopt(spec, client.id(), *place.session, Buffer::Place::kHost,
                                         [memory](EngineSession& session, uint64_t bytes) {
                                           return session.MapShared(memory->fd.get(), bytes);
                                         }));
    DescribeBuffer(*buffer, response.mutable_buffer());
    return absl::OkStatus();
  }

  Core& core_;
  Buffers& buffers_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeBuffersService(Buffers& buffers) {
  return std::make_unique<BuffersService>(buffers);
}

}  // namespace resident
