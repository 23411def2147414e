#include "server/rpc/reflection_service.h"

#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "server/rpc/call.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/status.h"

namespace resident {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
namespace reflection = grpc::reflection::v1alpha;
using Request = reflection::ServerReflectionRequest;
using Response = reflection::ServerReflectionResponse;

const DescriptorPool& Pool() { return *DescriptorPool::generated_pool(); }

void SetNotFound(const std::string& what, Response* response) {
  response->mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
  response->mutable_error_response()->set_error_message(
      absl::StrCat(what, " is not known. Fix: list the services and follow their types"));
}

// A file and everything that it imports, each once.
void AddFile(const FileDescriptor& file, std::set<std::string>* added, Response* response) {
  if (!added->insert(file.name()).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response->mutable_file_descriptor_response()->add_file_descriptor_proto(
      proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddFile(*file.dependency(i), added, response);
  }
}

void SetFile(const FileDescriptor* file, const std::string& what, Response* response) {
  if (file == nullptr) return SetNotFound(what, response);
  std::set<std::string> added;
  AddFile(*file, &added, response);
}

void SetExtension(const reflection::ExtensionRequest& request, Response* response) {
  const auto* const type = Pool().FindMessageTypeByName(request.containing_type());
  const auto* const extension =
      type == nullptr ? nullptr : Pool().FindExtensionByNumber(type, request.extension_number());
  SetFile(extension == nullptr ? nullptr : extension->file(),
          absl::StrCat("extension ", request.extension_number(), " of ", request.containing_type()),
          response);
}

void SetExtensionNumbers(const std::string& type_name, Response* response) {
  const auto* const type = Pool().FindMessageTypeByName(type_name);
  if (type == nullptr) return SetNotFound(type_name, response);
  auto* const numbers = response->mutable_all_extension_numbers_response();
  numbers->set_base_type_name(type_name);
  std::vector<const google::protobuf::FieldDescriptor*> extensions;
  Pool().FindAllExtensions(type, &extensions);
  for (const auto* extension : extensions) numbers->add_extension_number(extension->number());
}

Response AnswerTo(const Request& request, const std::vector<std::string>& services) {
  Response response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      SetFile(Pool().FindFileByName(request.file_by_filename()), request.file_by_filename(),
              &response);
      break;
    case Request::kFileContainingSymbol:
      SetFile(Pool().FindFileContainingSymbol(request.file_containing_symbol()),
              request.file_containing_symbol(), &response);
      break;
    case Request::kFileContainingExtension:
      SetExtension(request.file_containing_extension(), &response);
      break;
    case Request::kAllExtensionNumbersOfType:
      SetExtensionNumbers(request.all_extension_numbers_of_type(), &response);
      break;
    case Request::kListServices:
      for (const std::string& service : services) {
        response.mutable_list_services_response()->add_service()->set_name(service);
      }
      break;
    case Request::MESSAGE_REQUEST_NOT_SET:
      response.mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
      response.mutable_error_response()->set_error_message(
          "the request asks for nothing. Fix: set one field of message_request");
      break;
  }
  return response;
}

// Reads a request, answers it, reads the next.
class ReflectionStream final : public grpc::ServerBidiReactor<Request, Response>,
                               public LiveStream,
                               public std::enable_shared_from_this<ReflectionStream> {
 public:
  static ReflectionStream* Start(Core& core, const grpc::CallbackServerContext& context,
                                 const std::vector<std::string>& services) {
    std::shared_ptr<ReflectionStream> stream(new ReflectionStream(core, services));
    stream->self_ = stream;
    core.streams.Add(
        stream, RecheckOf(context, core, Role::kAdmin, "grpc.reflection.v1alpha.ServerReflection"));
    absl::MutexLock lock(&stream->mu_);
    stream->StartRead(&stream->request_);
    return stream.get();  // gRPC destroys nothing before this handler has returned.
  }
  ~ReflectionStream() override { core_.streams.Remove(this); }

  void OnReadDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    if (!ok) return FinishWith(absl::OkStatus());
    response_ = AnswerTo(request_, services_);
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    if (!ok) return FinishWith(absl::OkStatus());  // The caller is gone.
    StartRead(&request_);
  }
  void OnCancel() override { End(absl::CancelledError("the call was cancelled")); }
  void OnDone() override { self_.reset(); }
  void End(const absl::Status& status) override {
    absl::MutexLock lock(&mu_);
    if (!finished_) FinishWith(status);
  }

 private:
  ReflectionStream(Core& core, const std::vector<std::string>& services)
      : core_(core), services_(services) {}

  void FinishWith(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    finished_ = true;
    Finish(ToGrpc(status));
  }

  Core& core_;
  const std::vector<std::string>& services_;
  std::shared_ptr<ReflectionStream> self_;  // Until OnDone.
  Request request_;                         // gRPC's while it reads.
  Response response_;                       // gRPC's while it writes.

  absl::Mutex mu_;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

grpc::ServerBidiReactor<Request, Response>* ReflectionService::ServerReflectionInfo(
    grpc::CallbackServerContext* context) {
  return ReflectionStream::Start(core_, *context, services_);
}

}  // namespace resident
