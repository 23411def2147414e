// buffers: device memory by id or name, and the tensors of safetensors files.
#include <algorithm>
#include <cstdio>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/buffer_word.h"
#include "client/cli/common_options.h"
#include "client/cli/exit_codes.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/cli/values.h"
#include "client/commands/command.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"
#include "runtime/model/safetensors.h"

namespace resident::cli {
namespace {

constexpr uint64_t kUploadPieceBytes = uint64_t{8} << 20;
constexpr std::string_view kStdout = "-";

std::string Properties(const v1::BufferInfo& buffer) {
  std::string text;
  if (buffer.durable()) text = "durable";
  if (buffer.shared()) absl::StrAppend(&text, text.empty() ? "" : " ", "shared");
  return text;
}

int List(const Words&) {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<std::vector<v1::BufferInfo>> buffers = (*client)->ListBuffers();
  if (!buffers.ok()) return CallError(buffers.status());
  if (Common().json) {
    Json list = Json::array();
    for (const v1::BufferInfo& buffer : *buffers) list.push_back(ToJson(buffer));
    PrintJson({{"buffers", list}});
    return kExitOk;
  }
  if (buffers->empty()) {
    Print("no durable buffers; for the buffers of sessions see residentctl status\n");
    return kExitOk;
  }
  Table table({"BUFFER", "DEVICE", "ELEMENTS", "SHAPE", "SIZE", "PROPERTIES", "NAME"},
              {Table::kRight, Table::kRight, Table::kLeft, Table::kLeft, Table::kRight});
  for (const v1::BufferInfo& buffer : *buffers) {
    table.Add({absl::StrCat(buffer.id()), absl::StrCat(buffer.device()), EnumName(buffer.dtype()),
               FormatShape({buffer.shape().begin(), buffer.shape().end()}),
               FormatBytes(buffer.size_bytes()), Properties(buffer), buffer.name()});
  }
  Print(table.ToString());
  return kExitOk;
}

struct NewBuffer {
  std::string dtype = "f32";
  std::string name;
  std::optional<uint32_t> device;
};

int Allocate(const std::string& shape_text, const NewBuffer& wanted) {
  const absl::StatusOr<std::vector<uint64_t>> shape = ParseShape(shape_text);
  if (!shape.ok()) return UsageError(shape.status());
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  // A buffer that is not durable would be freed when residentctl ends.
  client::BufferOptions options;
  options.durable = true;
  options.name = wanted.name;
  options.device = wanted.device;
  absl::StatusOr<client::BufferHandle> buffer =
      (*client)->AllocateAs(*ParseDType(wanted.dtype), *shape, options);
  if (!buffer.ok()) return CallError(buffer.status());
  if (Common().json) {
    PrintJson({{"id", buffer->id()},
               {"device", buffer->device()},
               {"dtype", EnumName(buffer->dtype())},
               {"shape", buffer->shape()},
               {"size_bytes", buffer->size_bytes()}});
  } else {
    Print(absl::StrCat("buffer ", buffer->id(), ", ", FormatBytes(buffer->size_bytes()),
                       " on device ", buffer->device(), "\n"));
  }
  buffer->Release();
  return kExitOk;
}

int Upload(client::Client& client, uint64_t id, const std::string& path) {
  std::string data;
  if (absl::Status status = ReadFile(path, &data); !status.ok()) return UsageError(status);
  Progress progress("uploading", data.size());
  // At least one piece is sent, so that the daemon checks whether the buffer exists.
  uint64_t done = 0;
  do {
    const std::string_view piece = std::string_view(data).substr(done, kUploadPieceBytes);
    absl::Status status = client.UploadBytes(id, done, piece);
    if (!status.ok()) return CallError(status);
    done += piece.size();
    progress.Set(done);
  } while (done < data.size());
  if (Common().json) {
    PrintJson({{"id", id}, {"written_bytes", data.size()}});
  } else {
    Print(absl::StrCat("wrote ", FormatBytes(data.size()), " to buffer ", id, "\n"));
  }
  return kExitOk;
}

// Returns the buffer's size for the progress bar; 0: unknown.
uint64_t FindBufferSize(client::Client& client, uint64_t id) {
  const absl::StatusOr<std::vector<v1::BufferInfo>> buffers = client.ListBuffers();
  if (!buffers.ok()) return 0;
  for (const v1::BufferInfo& buffer : *buffers) {
    if (buffer.id() == id) return buffer.size_bytes();
  }
  return 0;
}

int Download(client::Client& client, uint64_t id, const std::string& path) {
  const bool to_stdout = path == kStdout;
  std::string data;
  bool printed = true;
  absl::Status status;
  {
    Progress progress("downloading", FindBufferSize(client, id));
    status = client.DownloadBytes(id, 0, 0, [&](std::string_view piece) {
      progress.Advance(piece.size());
      if (!to_stdout) {
        data.append(piece);
      } else {
        printed = std::fwrite(piece.data(), 1, piece.size(), stdout) == piece.size();
      }
      return printed;
    });
  }
  if (!printed) return kExitNotWritten;  // FinishOutput prints the error.
  if (!status.ok()) return CallError(status);
  if (to_stdout) return kExitOk;
  if (status = WriteFile(path, data); !status.ok()) return WriteError(status);
  if (Common().json) {
    PrintJson({{"id", id}, {"read_bytes", data.size()}});
  } else {
    Print(absl::StrCat("read ", FormatBytes(data.size()), " from buffer ", id, "\n"));
  }
  return kExitOk;
}

struct LoadOptions {
  std::string prefix;
  std::optional<uint32_t> device;
  bool on_daemon = false;
};

v1::DType ToProto(DType dtype) { return static_cast<v1::DType>(dtype); }

// Allocates a durable buffer for each tensor that has elements. All are allocated before anything
// is sent, so that a lack of memory is noticed at once. The handles free them on an error.
absl::StatusOr<std::vector<client::BufferHandle>> AllocateTensors(client::Client& client,
                                                                  const SafetensorsFile& file,
                                                                  const LoadOptions& load) {
  ASSIGN_OR_RETURN(const std::vector<v1::BufferInfo> existing, client.ListBuffers());
  std::unordered_set<std::string> names;
  for (const v1::BufferInfo& buffer : existing) names.insert(buffer.name());
  std::vector<client::BufferHandle> buffers;
  for (const SafetensorsTensor& tensor : file.tensors()) {
    client::BufferOptions options;
    options.durable = true;
    options.name = load.prefix + tensor.name;
    options.device = load.device;
    if (names.contains(options.name)) {
      return absl::AlreadyExistsError(
          absl::StrCat("a buffer with the name '", options.name,
                       "' exists. Fix: free it, or give another --prefix"));
    }
    if (tensor.size_bytes() == 0) {
      buffers.emplace_back();
      continue;
    }
    ASSIGN_OR_RETURN(client::BufferHandle buffer,
                     client.AllocateAs(ToProto(tensor.dtype), tensor.shape, options));
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

absl::Status UploadTensors(client::Client& client, const SafetensorsFile& file,
                           const std::vector<client::BufferHandle>& buffers) {
  uint64_t total = 0;
  for (const SafetensorsTensor& tensor : file.tensors()) total += tensor.size_bytes();
  Progress progress("uploading", total);
  std::string piece;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const SafetensorsTensor& tensor = file.tensors()[i];
    for (uint64_t done = 0; done < tensor.size_bytes(); done += piece.size()) {
      piece.resize(std::min(kUploadPieceBytes, tensor.size_bytes() - done));
      RETURN_IF_ERROR(file.Read(tensor, done, piece.size(), piece.data()));
      RETURN_IF_ERROR(client.UploadBytes(buffers[i].id(), done, piece));
      progress.Advance(piece.size());
    }
  }
  return absl::OkStatus();
}

// `empty`: the number of tensors without elements, if it is known.
void PrintLoaded(const std::vector<v1::BufferInfo>& buffers, std::optional<size_t> empty) {
  Json list = Json::array();
  Table table({"BUFFER", "DEVICE", "ELEMENTS", "SHAPE", "SIZE", "NAME"},
              {Table::kRight, Table::kRight, Table::kLeft, Table::kLeft, Table::kRight});
  for (const v1::BufferInfo& buffer : buffers) {
    list.push_back(ToJson(buffer));
    table.Add({absl::StrCat(buffer.id()), absl::StrCat(buffer.device()), EnumName(buffer.dtype()),
               FormatShape({buffer.shape().begin(), buffer.shape().end()}),
               FormatBytes(buffer.size_bytes()), buffer.name()});
  }
  if (Common().json) {
    Json json = {{"buffers", list}};
    if (empty.has_value()) json["without_elements"] = *empty;
    PrintJson(json);
    return;
  }
  Print(table.ToString());
  if (empty.value_or(0) > 0) {
    Print(absl::StrCat(*empty, " tensors have no elements and got no buffer\n"));
  }
}

// Makes each tensor of a safetensors file a durable buffer with its name.
int Load(const std::string& path, const LoadOptions& load) {
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return UsageError(file.status());
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<std::vector<client::BufferHandle>> buffers =
      AllocateTensors(**client, *file, load);
  if (!buffers.ok()) return CallError(buffers.status());
  if (absl::Status status = UploadTensors(**client, *file, *buffers); !status.ok()) {
    return CallError(status);
  }
  std::vector<v1::BufferInfo> loaded;
  for (size_t i = 0; i < buffers->size(); ++i) {
    client::BufferHandle& buffer = (*buffers)[i];
    if (file->tensors()[i].size_bytes() == 0) continue;
    loaded.push_back(buffer.info());
    buffer.Release();
  }
  PrintLoaded(loaded, buffers->size() - loaded.size());
  return kExitOk;
}

// The same, for a file that the daemon reads.
int LoadOnDaemon(const std::string& path, const LoadOptions& load) {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<std::vector<v1::BufferInfo>> buffers;
  {
    std::optional<Progress> progress;
    client::Client::LoadOptions options;
    options.prefix = load.prefix;
    options.device = load.device;
    options.progress = [&](uint64_t loaded, uint64_t total) {
      if (!progress.has_value()) progress.emplace("loading", total);
      progress->Set(loaded);
    };
    buffers = (*client)->LoadFile(path, options);
  }
  if (!buffers.ok()) return CallError(buffers.status());
  PrintLoaded(*buffers, std::nullopt);
  return kExitOk;
}

// Calls `copy` for the buffer words[0] and the file words[1].
int Copy(const Words& words, int (*copy)(client::Client&, uint64_t id, const std::string& path)) {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  const absl::StatusOr<uint64_t> id = FindBufferId(**client, words[0]);
  return id.ok() ? copy(**client, *id, words[1]) : CallError(id.status());
}

int ForEach(const Words& words, const std::string& verb,
            absl::Status (client::Client::*action)(uint64_t)) {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  std::vector<uint64_t> ids;
  for (const std::string& word : words) {
    const absl::StatusOr<uint64_t> id = FindBufferId(**client, word);
    if (!id.ok()) return CallError(id.status());
    ids.push_back(*id);
  }
  for (uint64_t id : ids) {
    if (absl::Status status = (**client.*action)(id); !status.ok()) return CallError(status);
  }
  if (Common().json) {
    PrintJson({{verb, ids}});
  } else {
    for (uint64_t id : ids) Print(absl::StrCat(verb, " buffer ", id, "\n"));
  }
  return kExitOk;
}

int CheckAndDownload(const Words& words) {
  if (words[1] == kStdout && Common().json) {
    return UsageError("--json and the buffer's elements cannot both be written to stdout",
                      "give a file in place of -, or omit --json");
  }
  if (words[1] != kStdout) {
    if (absl::Status status = CheckWritable(words[1]); !status.ok()) return UsageError(status);
  }
  return Copy(words, Download);
}

}  // namespace

void AddBuffers(Command& program) {
  Command& buffers = program.Add(
      "buffers", "device memory",
      "Without a command it lists the durable buffers (other buffers are freed when their session\n"
      "ends). alloc creates a durable buffer and prints its id; SHAPE is for example 2x3. upload\n"
      "and download copy raw elements; FILE may be - for stdin or (without --json) stdout. load\n"
      "makes each tensor of a safetensors file a durable buffer with the tensor's name (none for "
      "a\n"
      "tensor without elements). ID is a buffer's id or its name.\n"
      "  residentctl buffers load model.safetensors --prefix=llama.\n"
      "  residentctl run rmsnorm x=@x.f32 w=buffer:llama.norm.weight\n");
  buffers.Run("", List);
  buffers.Add("list", "list the durable buffers").Run("", List);
  Command& alloc = buffers.Add("alloc", "create a durable buffer");
  auto wanted = std::make_shared<NewBuffer>();
  alloc.Flag("dtype", &wanted->dtype, absl::StrCat("element type: ", DTypeNames()),
             {.one_of = absl::StrSplit(DTypeNames(), ", ")});
  alloc.Flag("name", &wanted->name, "the name by which commands find it");
  AddDeviceFlag(alloc, &wanted->device);
  alloc.Run("SHAPE", [wanted](const Words& words) { return Allocate(words[0], *wanted); });
  buffers.Add("upload", "write a file's elements to a buffer")
      .Run("ID FILE", [](const Words& words) { return Copy(words, Upload); });
  buffers.Add("download", "write a buffer's elements to a file").Run("ID FILE", CheckAndDownload);
  Command& load = buffers.Add("load", "load a safetensors file");
  auto options = std::make_shared<LoadOptions>();
  load.Flag("prefix", &options->prefix, "text before the names of the tensors");
  AddDeviceFlag(load, &options->device);
  load.Flag("on_daemon", &options->on_daemon,
            "the daemon reads FILE, a path below its --load_dir; nothing is sent");
  load.Run("FILE", [options](const Words& words) {
    return options->on_daemon ? LoadOnDaemon(words[0], *options) : Load(words[0], *options);
  });
  buffers.Add("free", "free buffers").Run("ID...", [](const Words& words) {
    return ForEach(words, "freed", &client::Client::Free);
  });
  buffers.Add("persist", "save a durable buffer's contents").Run("ID", [](const Words& words) {
    return ForEach(words, "persisted", &client::Client::Persist);
  });
}

}  // namespace resident::cli
