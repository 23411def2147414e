#include "server/rpc/reflection_service.h"

#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "server/rpc/bidi_stream.h"
#include "server/rpc/call.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/message_bytes.h"

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
          "the request is empty. Fix: set one field of message_request");
      break;
  }
  return response;
}

// Reads a request, answers it, reads the next.
class ReflectionStream final : public BidiStream<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  ReflectionStream(Transport& transport, Core& core) : BidiStream(transport, core) {}

  // `services` must outlive the stream.
  void Open(const grpc::CallbackServerContext& context, const std::vector<std::string>& services) {
    Register(MakeRecheck(context, core_, Role::kAdmin, "grpc.reflection.v1alpha.ServerReflection"));
    services_ = &services;
    absl::MutexLock lock(&mu_);
    Read();
  }

 private:
  void OnRequest(grpc::ByteBuffer& bytes) override {
    reflection::ServerReflectionRequest request;
    const absl::Status parsed = ParseMessage(bytes, limits_, &request);
    if (!parsed.ok()) return End(parsed);
    grpc::ByteBuffer response = ToBytes(AnswerTo(request, *services_));
    absl::MutexLock lock(&mu_);
    Write(std::move(response));
  }
  void OnWritten() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { Read(); }

  const MessageLimits limits_ =
      FindMessageLimits(core_, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
  const std::vector<std::string>* services_ = nullptr;
};

}  // namespace

ReflectionService::ReflectionService(Core& core, std::vector<std::string> services)
    : core_(core), services_(std::move(services)) {}
ReflectionService::~ReflectionService() = default;

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
ReflectionService::ServerReflectionInfo(grpc::CallbackServerContext* context) {
  return StartBidiCall<ReflectionStream>(*context, core_, services_);
}

}  // namespace resident
