#include "server/models/model_import.h"

#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
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
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
constexpr int kPlanFd = 5;
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

// What an ImportSource has. The bytes of files lie in its memory.
struct Source {
  v1::OnnxModel model;
  onnx::Files files;
};

// Nullopt: it is malformed, or truncated. Other processes read the same object at the same time.
std::optional<Source> ReadSource(std::string_view content) {
  uint64_t bytes = 0;
  if (content.size() < sizeof(bytes)) return std::nullopt;
  std::memcpy(&bytes, content.data(), sizeof(bytes));
  content.remove_prefix(sizeof(bytes));
  internal::ImportRequest request;
  if (bytes > content.size() || bytes > INT32_MAX ||
      !request.ParseFromArray(content.data(), static_cast<int>(bytes)) ||
      request.files_size() != request.file_bytes_size()) {
    return std::nullopt;
  }
  content.remove_prefix(bytes);
  Source source;
  for (int i = 0; i < request.files_size(); ++i) {
    if (request.file_bytes(i) > content.size()) return std::nullopt;
    source.files[request.files(i).name()] = content.substr(0, request.file_bytes(i));
    content.remove_prefix(request.file_bytes(i));
  }
  source.model.Swap(request.mutable_model());
  return source;
}

// The contents of an object, for as long as the process runs.
std::string_view MapObject(int fd) {
  struct stat info = {};
  if (fstat(fd, &info) != 0 || info.st_size == 0) return {};
  const auto size = static_cast<size_t>(info.st_size);
  void* const memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return {};
  return {static_cast<const char*>(memory), size};
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

absl::StatusOr<onnx::Options> ReadOptions(const v1::OnnxModel& wanted) {
  const auto bounded = [](uint64_t size) {
    return static_cast<int64_t>(std::min<uint64_t>(size, std::numeric_limits<int64_t>::max()));
  };
  onnx::Options options;
  for (const auto& [name, value] : wanted.fixed_inputs()) options.fixed_inputs[name] = value;
  for (const auto& [name, size] : wanted.sizes()) options.max_sizes[name] = bounded(size);
  for (const auto& [name, size] : wanted.max_sizes()) {
    if (options.max_sizes.insert({name, bounded(size)}).second) continue;
    return onnx::ModelError(108, absl::StrCat("dimension ", errors::Quote(name),
                                              " has a size and a bound. Fix: give one of them"));
  }
  if (wanted.max_batch() != 0) options.max_batch = bounded(wanted.max_batch());
  return options;
}

// The axes of a port that have other sizes in other plans. `batch`: the dimension that remains
// dynamic.
void AddPort(const onnx::TensorSpec& spec, const std::string& batch, internal::PlanRules* rules) {
  internal::PlanRules::Port& port = *rules->add_ports();
  port.set_tensor(spec.tensor);
  for (const onnx::TensorSpec::Dim& dim : spec.shape) {
    int32_t axis = dim.size == 0 && dim.symbol != batch ? -2 : -1;
    for (int i = 0; i < rules->dimensions_size(); ++i) {
      if (dim.symbol == rules->dimensions(i).name()) axis = i;
    }
    // A size that is given is equal in all plans.
    if (axis == -2 && !dim.symbol.empty()) axis = -1;
    port.add_axes(axis);
  }
}

// The dimension that has neither a size nor a bound remains dynamic; one with a bound has the size
// that the plan wants.
absl::StatusOr<onnx::ImportedModel> Import(Source source, const internal::ImportPlan& plan,
                                           internal::ImportResponse* response) {
  const v1::OnnxModel& wanted = source.model;
  ASSIGN_OR_RETURN(onnx::Options options, ReadOptions(wanted));
  options.accepted = plan.sizes_size() > 0;
  options.shares_weights = !wanted.max_sizes().empty();
  const std::string_view model = source.files[wanted.file()];
  source.files.erase(wanted.file());
  ASSIGN_OR_RETURN(const onnx::CheckedModel checked,
                   onnx::CheckModel(model, source.files, options));
  if (!checked.report.findings.empty()) {
    for (const onnx::Finding& finding : checked.report.findings) {
      AddFinding(finding, response);
    }
    response->set_errors(checked.report.finding_count);
    return onnx::ImportedModel();
  }
  onnx::Sizes sizes;
  internal::PlanRules& rules = *response->mutable_rules();
  for (const onnx::Symbol& symbol : checked.symbols) {
    int64_t& size = sizes.sizes[symbol.name] = symbol.max_size;
    if (wanted.sizes().contains(symbol.name)) continue;
    if (wanted.max_sizes().contains(symbol.name)) {
      if (const int i = rules.dimensions_size(); i < plan.sizes_size()) size = plan.sizes(i);
      internal::PlanRules::Dimension& dimension = *rules.add_dimensions();
      dimension.set_name(symbol.name);
      dimension.set_most(symbol.max_size);
      continue;
    }
    if (!sizes.batch.empty()) {
      return onnx::ModelError(404, absl::StrCat("dimensions ", errors::Quote(sizes.batch), " and ",
                                                errors::Quote(symbol.name),
                                                " have no size, and only one can remain dynamic. "
                                                "Fix: give the size or the bound of the other"));
    }
    sizes.batch = symbol.name;
  }
  ASSIGN_OR_RETURN(onnx::ImportedModel imported, onnx::Specialize(checked, sizes));
  if (plan.sizes_size() > 0 || rules.dimensions_size() == 0) return imported;
  for (const onnx::TensorSpec& input : checked.inputs) AddPort(input, sizes.batch, &rules);
  for (const onnx::TensorSpec& output : checked.outputs) AddPort(output, sizes.batch, &rules);
  return imported;
}

internal::ImportResponse Answer(Source source, const internal::ImportPlan& plan) {
  internal::ImportResponse response;
  const absl::StatusOr<onnx::ImportedModel> imported = Import(std::move(source), plan, &response);
  if (!imported.ok()) {
    AddError(imported.status(), &response);
    return response;
  }
  if (response.findings_size() > 0) return response;
  *response.mutable_graph() = imported->graph;
  const std::set<std::string_view> known(plan.weights().begin(), plan.weights().end());
  for (const onnx::Weight& weight : imported->weights) {
    if (known.contains(weight.tensor)) continue;
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

absl::StatusOr<std::shared_ptr<const ImportSource>> ImportSource::Make(
    internal::ImportRequest request) {
  ASSIGN_OR_RETURN(UniqueFd fd, MakeObject("residentd-import"));
  {
    google::protobuf::io::FileOutputStream file(fd.get());
    google::protobuf::io::CodedOutputStream coded(&file);
    coded.SetSerializationDeterministic(true);
    std::vector<std::string> contents;
    for (v1::ModelFilePart& part : *request.mutable_files()) {
      request.add_file_bytes(part.data().size());
      contents.push_back(std::move(*part.mutable_data()));
      part.clear_data();
    }
    coded.WriteLittleEndian64(request.ByteSizeLong());
    request.SerializeToCodedStream(&coded);
    for (const std::string& content : contents) {
      coded.WriteRaw(content.data(), static_cast<int>(content.size()));
    }
    coded.Trim();
    if (!file.Flush()) return errors::ImportNotStarted(strerror(file.GetErrno()));
  }
  return Seal(std::move(fd));
}

absl::StatusOr<std::shared_ptr<const ImportSource>> ImportSource::FromContent(
    std::string_view content) {
  ASSIGN_OR_RETURN(UniqueFd fd, MakeObject("residentd-import"));
  while (!content.empty()) {
    const ssize_t written = write(fd.get(), content.data(), content.size());
    if (written < 0 && errno != EINTR) return errors::ImportNotStarted(strerror(errno));
    if (written > 0) content.remove_prefix(static_cast<size_t>(written));
  }
  return Seal(std::move(fd));
}

absl::StatusOr<std::shared_ptr<const ImportSource>> ImportSource::Seal(UniqueFd fd) {
  std::shared_ptr<ImportSource> source(new ImportSource(std::move(fd)));
  struct stat info = {};
  if (fcntl(source->fd(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW) != 0 ||
      fstat(source->fd(), &info) != 0) {
    return errors::ImportNotStarted(strerror(errno));
  }
  source->bytes_ = static_cast<size_t>(info.st_size);
  void* const memory = mmap(nullptr, source->bytes_, PROT_READ, MAP_SHARED, source->fd(), 0);
  if (memory == MAP_FAILED) return errors::ImportNotStarted(strerror(errno));
  source->memory_ = memory;
  return source;
}

ImportSource::~ImportSource() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

absl::StatusOr<internal::ImportResponse> ImportModel(const ImportSource& source,
                                                     const internal::ImportPlan& plan,
                                                     const std::function<bool()>& withdrawn,
                                                     const TakeMemory& take) {
  ASSIGN_OR_RETURN(const UniqueFd wanted, MakeObject("residentd-plan"));
  ASSIGN_OR_RETURN(const UniqueFd answer, MakeObject("residentd-imported"));
  if (!plan.SerializeToFileDescriptor(wanted.get()))
    return errors::ImportNotStarted(strerror(errno));
  ChildOptions options;
  options.program = "/proc/self/exe";
  options.arguments = {"residentd", "import",
                       absl::StrCat(kImportMemory + kImportMemoryFactor * source.content().size())};
  options.environment = PickEnvironment(SanitizerVariables());
  options.fds = {{source.fd(), kRequestFd}, {answer.get(), kResponseFd}, {wanted.get(), kPlanFd}};
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
  RaiseOomScore(kHelperOomScore);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  SetLimit(RLIMIT_AS, memory);  // A sanitizer reserves terabytes.
#endif
  SetLimit(RLIMIT_CORE, 0);
  SetLimit(RLIMIT_FSIZE, kMaxResponseBytes);
  SetLimit(RLIMIT_CPU, static_cast<uint64_t>(kImportTimeLimit.count()));
  absl::Status confined = ConfineEngineFiles(EngineProfile::kNative);
  if (confined.ok()) confined = ConfineEngineCalls(EngineProfile::kNative);
  if (!confined.ok()) return 3;
  std::optional<Source> source = ReadSource(MapObject(kRequestFd));
  internal::ImportPlan plan;
  if (!source.has_value() || !Read(kPlanFd, &plan)) return 4;
  return Answer(*std::move(source), plan).SerializeToFileDescriptor(kResponseFd) ? 0 : 5;
}

}  // namespace resident
