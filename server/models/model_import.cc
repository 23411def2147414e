#include "server/models/model_import.h"

#include <fcntl.h>
#include <google/protobuf/message_lite.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/process/child_process.h"
#include "runtime/base/process/process_limits.h"
#include "runtime/base/process/unique_fd.h"
#include "runtime/base/sandbox/engine_sandbox.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "server/models/errors.h"
#include "server/onnx/import.h"
#include "server/onnx/nodes/model_error.h"

namespace resident {
namespace {

// Descriptors of the process.
constexpr int kRequestFd = 3;
constexpr int kResponseFd = 4;
// Memory of the process: this, and a multiple of the bytes of the files.
constexpr uint64_t kImportMemory = uint64_t{1} << 30;
constexpr uint64_t kImportMemoryFactor = 6;
// The largest answer: Protobuf's own limit.
constexpr uint64_t kMaxResponseBytes = std::numeric_limits<int32_t>::max();
constexpr std::chrono::milliseconds kLook{20};

absl::StatusOr<UniqueFd> MakeObject(const char* name) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) return errors::ImportNotStarted(strerror(errno));
  return fd;
}

bool Read(int fd, google::protobuf::MessageLite* message) {
  return lseek(fd, 0, SEEK_SET) == 0 && message->ParseFromFileDescriptor(fd);
}

void AddFinding(onnx::Finding found, internal::ImportResponse* response) {
  v1::GraphFinding* const finding = response->add_findings();
  finding->set_code(std::move(found.code));  // Names in a file may be any bytes.
  finding->set_node(ToUtf8(found.node));
  finding->set_tensor(ToUtf8(found.input));
  finding->set_message(ToUtf8(found.message));
}

// The code at the begin of a message, such as "MODEL_E101: ...".
void AddError(const absl::Status& status, internal::ImportResponse* response) {
  const std::string message(status.message());
  const size_t colon = message.find(": ");
  const bool coded = message.starts_with("MODEL_E") && colon != std::string::npos;
  onnx::Finding finding;
  finding.code = coded ? message.substr(0, colon) : onnx::CodeText(109);
  finding.message = coded ? message.substr(colon + 2) : message;
  AddFinding(std::move(finding), response);
  response->set_errors(1);
}

// The dimension without a size remains dynamic.
absl::StatusOr<onnx::ImportedModel> Import(const internal::ImportRequest& request,
                                           internal::ImportResponse* response) {
  const v1::OnnxModel& wanted = request.model();
  onnx::Options options;
  for (const auto& [name, value] : wanted.fixed_inputs()) options.fixed_inputs[name] = value;
  for (const auto& [name, size] : wanted.sizes()) {
    options.max_sizes[name] =
        static_cast<int64_t>(std::min<uint64_t>(size, std::numeric_limits<int64_t>::max()));
  }
  if (wanted.max_batch() != 0) {
    options.max_batch = static_cast<int64_t>(
        std::min<uint64_t>(wanted.max_batch(), std::numeric_limits<int64_t>::max()));
  }
  std::map<std::string, std::string_view> files;
  std::string_view model;
  for (const v1::ModelFilePart& file : request.files()) {
    if (file.name() == wanted.file()) {
      model = file.data();
    } else {
      files[file.name()] = file.data();
    }
  }
  ASSIGN_OR_RETURN(const onnx::CheckedModel checked, onnx::CheckModel(model, files, options));
  if (!checked.report.findings.empty()) {
    for (const onnx::Finding& finding : checked.report.findings) {
      AddFinding(finding, response);
    }
    response->set_errors(checked.report.finding_count);
    return onnx::ImportedModel();
  }
  onnx::Sizes sizes;
  for (const onnx::Symbol& symbol : checked.symbols) {
    sizes.sizes[symbol.name] = symbol.max_size;
    if (wanted.sizes().contains(symbol.name)) continue;
    if (!sizes.batch.empty()) {
      return onnx::ModelError(404, absl::StrCat("dimensions ", errors::Quote(sizes.batch), " and ",
                                                errors::Quote(symbol.name),
                                                " have no size, and only one can remain dynamic. "
                                                "Fix: give the size of the other"));
    }
    sizes.batch = symbol.name;
  }
  return onnx::Specialize(checked, sizes);
}

internal::ImportResponse Answer(const internal::ImportRequest& request) {
  internal::ImportResponse response;
  const absl::StatusOr<onnx::ImportedModel> imported = Import(request, &response);
  if (!imported.ok()) {
    AddError(imported.status(), &response);
    return response;
  }
  if (response.findings_size() > 0) return response;
  *response.mutable_graph() = imported->graph;
  for (const onnx::Weight& weight : imported->weights) {
    v1::ModelWeightPart* const part = response.add_weights();
    part->set_tensor(weight.tensor);
    part->set_data(*weight.bytes);
  }
  return response;
}

void SetLimit(int resource, uint64_t value) {
  const rlimit limit{value, value};
  setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

}  // namespace

absl::StatusOr<internal::ImportResponse> ImportModel(internal::ImportRequest request,
                                                     const std::function<bool()>& withdrawn,
                                                     const TakeMemory& take) {
  ASSIGN_OR_RETURN(const UniqueFd sent, MakeObject("residentd-import"));
  ASSIGN_OR_RETURN(const UniqueFd answer, MakeObject("residentd-imported"));
  if (!request.SerializeToFileDescriptor(sent.get()) ||
      fcntl(sent.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return errors::ImportNotStarted(strerror(errno));
  }
  uint64_t bytes = 0;
  for (const v1::ModelFilePart& file : request.files()) bytes += file.data().size();
  request = internal::ImportRequest();  // Clear() would keep the memory.
  ChildOptions options;
  options.program = "/proc/self/exe";
  options.arguments = {"residentd", "import",
                       absl::StrCat(kImportMemory + kImportMemoryFactor * bytes)};
  options.environment = PickEnvironment(SanitizerVariables());
  options.fds = {{sent.get(), kRequestFd}, {answer.get(), kResponseFd}};
  ASSIGN_OR_RETURN(const auto child, ChildProcess::Spawn(options));
  const auto until = std::chrono::steady_clock::now() + kImportTimeLimit;
  std::optional<ChildExit> end;
  while (!(end = child->Wait(kLook)).has_value()) {
    if (withdrawn()) return errors::Cancelled();
    if (std::chrono::steady_clock::now() > until) return errors::ImportTooSlow(kImportTimeLimit);
  }
  if (end->status != 0) return errors::ImportFailed(end->ToString());
  struct stat info = {};
  if (fstat(answer.get(), &info) != 0) return errors::ImportFailed("gave no answer");
  RETURN_IF_ERROR(take(static_cast<uint64_t>(info.st_size)));
  internal::ImportResponse response;
  if (!Read(answer.get(), &response)) return errors::ImportFailed("gave no answer");
  return response;
}

int ImportMain(int argc, char** argv) {
  uint64_t memory = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &memory)) return 2;
  RaiseOomScore(kCompilerOomScore);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  SetLimit(RLIMIT_AS, memory);  // A sanitizer reserves terabytes.
#endif
  SetLimit(RLIMIT_CORE, 0);
  SetLimit(RLIMIT_FSIZE, kMaxResponseBytes);
  SetLimit(RLIMIT_CPU, static_cast<uint64_t>(kImportTimeLimit.count()));
  absl::Status confined = ConfineEngineFiles(EngineProfile::kNative);
  if (confined.ok()) confined = ConfineEngineCalls(EngineProfile::kNative);
  if (!confined.ok()) return 3;
  internal::ImportRequest request;
  if (!Read(kRequestFd, &request)) return 4;
  return Answer(request).SerializeToFileDescriptor(kResponseFd) ? 0 : 5;
}

}  // namespace resident
