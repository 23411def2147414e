// buffers: device memory by id or name, and the tensors of safetensors files.
#include <algorithm>
#include <cstdio>
#include <map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/common_options.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "client/cli/progress.h"
#include "client/cli/values.h"
#include "client/commands/command.h"
#include "client/importers/model_json.h"
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
  if (buffer.imported()) absl::StrAppend(&text, text.empty() ? "" : " ", "imported");
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
  bool skip_unsupported = false;
};

v1::DType ToProto(DType dtype) { return static_cast<v1::DType>(dtype); }

// A tensor of one of the files, and its buffer if it has elements.
struct LoadedTensor {
  const SafetensorsFile* file;
  const SafetensorsTensor* tensor;
  client::BufferHandle buffer;
};

// Allocates a durable buffer for each tensor that has elements. All are allocated before anything
// is sent, so that a lack of memory is noticed at once. The handles free them on an error.
absl::StatusOr<std::vector<LoadedTensor>> AllocateTensors(client::Client& client,
                                                          const std::vector<SafetensorsFile>& files,
                                                          const LoadOptions& load) {
  ASSIGN_OR_RETURN(const std::vector<v1::BufferInfo> existing, client.ListBuffers());
  std::unordered_set<std::string> names;
  for (const v1::BufferInfo& buffer : existing) names.insert(buffer.name());
  std::vector<LoadedTensor> loaded;
  for (const SafetensorsFile& file : files) {
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
      LoadedTensor& made = loaded.emplace_back(LoadedTensor{&file, &tensor, {}});
      if (tensor.size_bytes() == 0) continue;
      ASSIGN_OR_RETURN(made.buffer,
                       client.AllocateAs(ToProto(tensor.dtype), tensor.shape, options));
    }
  }
  return loaded;
}

absl::Status UploadTensors(client::Client& client, const std::vector<LoadedTensor>& loaded) {
  uint64_t total = 0;
  for (const LoadedTensor& each : loaded) total += each.tensor->size_bytes();
  Progress progress("uploading", total);
  std::string piece;
  for (const LoadedTensor& each : loaded) {
    const uint64_t bytes = each.tensor->size_bytes();
    for (uint64_t done = 0; done < bytes; done += piece.size()) {
      piece.resize(std::min(kUploadPieceBytes, bytes - done));
      RETURN_IF_ERROR(each.file->Read(*each.tensor, done, piece.size(), piece.data()));
      RETURN_IF_ERROR(client.UploadBytes(each.buffer.id(), done, piece));
      progress.Advance(piece.size());
    }
  }
  return absl::OkStatus();
}

void NoteSkipped(const std::string& path, const std::string& name, const std::string& dtype) {
  std::fprintf(stderr, "note: %s: tensor '%s' is skipped%s%s\n", path.c_str(), name.c_str(),
               dtype.empty() ? "" : ", because residentd does not have its dtype ", dtype.c_str());
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

// The files of all words, opened, with tensors of different names.
absl::StatusOr<std::vector<SafetensorsFile>> OpenFiles(const Words& words,
                                                       const LoadOptions& load) {
  std::vector<SafetensorsFile> files;
  std::map<std::string, std::string> names;  // To the path.
  for (const std::string& word : words) {
    ASSIGN_OR_RETURN(const std::vector<std::string> paths, SafetensorsPaths(word));
    for (const std::string& path : paths) {
      ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
      if (!load.skip_unsupported) {
        RETURN_IF_ERROR(file.CheckSupported("give --skip_unsupported to load the other tensors"));
      }
      for (const SafetensorsTensor& tensor : file.unsupported()) {
        NoteSkipped(path, tensor.name, tensor.format_dtype);
      }
      for (const SafetensorsTensor& tensor : file.tensors()) {
        const auto [at, added] = names.try_emplace(tensor.name, path);
        if (!added) {
          return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.name, "' is in ",
                                                         at->second, " and in ", path,
                                                         ". Fix: give one of the files"));
        }
      }
      files.push_back(std::move(file));
    }
  }
  return files;
}

// Makes each tensor of safetensors files a durable buffer with its name.
int Load(const Words& words, const LoadOptions& load) {
  const absl::StatusOr<std::vector<SafetensorsFile>> files = OpenFiles(words, load);
  if (!files.ok()) return UsageError(files.status());
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<std::vector<LoadedTensor>> loaded = AllocateTensors(**client, *files, load);
  if (!loaded.ok()) return CallError(loaded.status());
  if (absl::Status status = UploadTensors(**client, *loaded); !status.ok()) {
    return CallError(status);
  }
  std::vector<v1::BufferInfo> buffers;
  for (LoadedTensor& each : *loaded) {
    if (each.tensor->size_bytes() == 0) continue;
    buffers.push_back(each.buffer.info());
    each.buffer.Release();
  }
  PrintLoaded(buffers, loaded->size() - buffers.size());
  return kExitOk;
}

// The same, for files that the daemon reads. Those before one that fails stay loaded.
int LoadOnDaemon(const Words& words, const LoadOptions& load) {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  std::vector<v1::BufferInfo> loaded;
  for (const std::string& path : words) {
    std::optional<Progress> progress;
    std::vector<std::string> skipped;
    client::Client::LoadOptions options;
    options.prefix = load.prefix;
    options.device = load.device;
    options.skip_unsupported = load.skip_unsupported;
    options.skipped = &skipped;
    options.progress = [&](uint64_t done, uint64_t total) {
      if (!progress.has_value()) progress.emplace("loading", total);
      progress->Set(done);
    };
    const absl::StatusOr<std::vector<v1::BufferInfo>> buffers = (*client)->LoadFile(path, options);
    progress.reset();
    if (!buffers.ok()) {
      if (!loaded.empty()) PrintLoaded(loaded, std::nullopt);
      return CallError(buffers.status());
    }
    for (const std::string& name : skipped) NoteSkipped(path, name, "");
    loaded.insert(loaded.end(), buffers->begin(), buffers->end());
  }
  PrintLoaded(loaded, std::nullopt);
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
      "makes each tensor of safetensors files a durable buffer with the tensor's name (none for a\n"
      "tensor without elements); it also takes the index of several files, or the folder of a "
      "model.\n"
      "ID is a buffer's id or its name.\n"
      "  residentctl buffers load model.safetensors --prefix=llama.\n"
      "  residentctl buffers load model.safetensors.index.json\n"
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
  Command& load = buffers.Add("load", "load safetensors files");
  auto options = std::make_shared<LoadOptions>();
  load.Flag("prefix", &options->prefix, "text before the names of the tensors");
  AddDeviceFlag(load, &options->device);
  load.Flag("on_daemon", &options->on_daemon,
            "the daemon reads each FILE, a path below its --load_dir; nothing is sent");
  load.Flag("skip_unsupported", &options->skip_unsupported,
            "leave out tensors whose element type residentd does not have, with a note");
  load.Run("FILE...", [options](const Words& words) {
    return options->on_daemon ? LoadOnDaemon(words, *options) : Load(words, *options);
  });
  buffers.Add("free", "free buffers").Run("ID...", [](const Words& words) {
    return ForEach(words, "freed", &client::Client::Free);
  });
  buffers.Add("persist", "save a durable buffer's contents").Run("ID", [](const Words& words) {
    return ForEach(words, "persisted", &client::Client::Persist);
  });
}

}  // namespace resident::cli
