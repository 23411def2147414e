// buffers: device memory by id.
#include <cstdio>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/exit_codes.h"
#include "client/cli/flags.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/cli/values.h"
#include "client/commands/command.h"
#include "client/commands/shared_flags.h"
#include "runtime/base/status_macros.h"

ABSL_FLAG(std::string, dtype, "f32", "element type of a new buffer");
ABSL_FLAG(std::string, name, "", "name of a new buffer, for people");

namespace resident::cli {
namespace {

constexpr std::string_view kUsage =
    "residentctl buffers [list | alloc SHAPE | upload ID FILE | download ID FILE | free ID... | "
    "persist ID]";
constexpr uint64_t kUploadPieceBytes = 8u << 20;
constexpr std::string_view kStdout = "-";

absl::StatusOr<uint64_t> ParseId(const std::string& word) {
  uint64_t id;
  if (absl::SimpleAtoi(word, &id)) return id;
  return absl::InvalidArgumentError(absl::StrCat(
      "'", word, "' is no buffer. Fix: an id as in the BUFFER column of residentctl buffers"));
}

std::string Properties(const v1::BufferInfo& buffer) {
  std::string text;
  if (buffer.durable()) text = "durable";
  if (buffer.shared()) absl::StrAppend(&text, text.empty() ? "" : " ", "shared");
  return text;
}

int List(client::Client& client) {
  absl::StatusOr<std::vector<v1::BufferInfo>> buffers = client.ListBuffers();
  if (!buffers.ok()) return CallError(buffers.status());
  if (absl::GetFlag(FLAGS_json)) {
    Json list = Json::array();
    for (const v1::BufferInfo& buffer : *buffers) list.push_back(ToJson(buffer));
    PrintJson({{"buffers", list}});
    return kExitOk;
  }
  if (buffers->empty()) {
    Print("no durable buffers; residentctl status counts the sessions' own\n");
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
  v1::DType dtype;
  std::vector<uint64_t> shape;
};

absl::StatusOr<NewBuffer> ParseNewBuffer(const std::string& shape_text) {
  ASSIGN_OR_RETURN(std::vector<uint64_t> shape, ParseShape(shape_text));
  const std::optional<v1::DType> dtype = ParseDType(absl::GetFlag(FLAGS_dtype));
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dtype '", absl::GetFlag(FLAGS_dtype),
                     "' is no element type. Fix: one of f32 f16 bf16 f64 i32 i64 u8 i8 u32"));
  }
  return NewBuffer{*dtype, std::move(shape)};
}

int Allocate(client::Client& client, const NewBuffer& wanted) {
  // Anything else would be freed when residentctl ends.
  client::BufferOptions options;
  options.durable = true;
  options.name = absl::GetFlag(FLAGS_name);
  options.device = absl::GetFlag(FLAGS_device).index;
  absl::StatusOr<client::BufferHandle> buffer =
      client.AllocateAs(wanted.dtype, wanted.shape, options);
  if (!buffer.ok()) return CallError(buffer.status());
  if (absl::GetFlag(FLAGS_json)) {
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
  // At least one piece: that the buffer is there is for the daemon to say.
  uint64_t done = 0;
  do {
    const std::string_view piece = std::string_view(data).substr(done, kUploadPieceBytes);
    absl::Status status = client.UploadBytes(id, done, piece);
    if (!status.ok()) return CallError(status);
    done += piece.size();
    progress.Set(done);
  } while (done < data.size());
  if (absl::GetFlag(FLAGS_json)) {
    PrintJson({{"id", id}, {"written_bytes", data.size()}});
  } else {
    Print(absl::StrCat("wrote ", FormatBytes(data.size()), " to buffer ", id, "\n"));
  }
  return kExitOk;
}

// For the progress bar; 0: not known.
uint64_t SizeOf(client::Client& client, uint64_t id) {
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
    Progress progress("downloading", SizeOf(client, id));
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
  if (!printed) return kExitNotWritten;  // FinishOutput says why.
  if (!status.ok()) return CallError(status);
  if (to_stdout) return kExitOk;
  if (status = WriteFile(path, data); !status.ok()) return WriteError(status);
  if (absl::GetFlag(FLAGS_json)) {
    PrintJson({{"id", id}, {"read_bytes", data.size()}});
  } else {
    Print(absl::StrCat("read ", FormatBytes(data.size()), " from buffer ", id, "\n"));
  }
  return kExitOk;
}

int ForEach(const std::vector<uint64_t>& ids, std::string_view verb,
            const std::function<absl::Status(uint64_t)>& action) {
  for (uint64_t id : ids) {
    if (absl::Status status = action(id); !status.ok()) return CallError(status);
  }
  const std::string name(verb);
  if (absl::GetFlag(FLAGS_json)) {
    PrintJson({{name, ids}});
  } else {
    for (uint64_t id : ids) Print(absl::StrCat(name, " buffer ", id, "\n"));
  }
  return kExitOk;
}

}  // namespace

int RunBuffers(const std::vector<std::string>& words) {
  const std::string action = words.empty() ? "list" : words[0];
  const size_t count = words.empty() ? 0 : words.size() - 1;
  const bool copies = action == "upload" || action == "download";
  const bool by_id = copies || action == "free" || action == "persist";
  const bool known = by_id || action == "list" || action == "alloc";
  if (!known) return UsageError(absl::StrCat("buffers cannot '", action, "'"), kUsage);
  const bool fits = action == "list"   ? count == 0
                    : action == "free" ? count >= 1
                    : copies           ? count == 2
                                       : count == 1;
  if (!fits) return UsageError(absl::StrCat("wrong number of words for ", action), kUsage);
  std::vector<uint64_t> ids;
  if (by_id) {
    const size_t last = copies ? 2 : words.size();
    for (size_t i = 1; i < last; ++i) {
      absl::StatusOr<uint64_t> id = ParseId(words[i]);
      if (!id.ok()) return UsageError(id.status());
      ids.push_back(*id);
    }
  }
  if (action == "download") {
    if (words[2] != kStdout) {
      if (absl::Status status = CheckWritable(words[2]); !status.ok()) return UsageError(status);
    } else if (absl::GetFlag(FLAGS_json)) {
      return UsageError("--json and the buffer's elements cannot both go to stdout",
                        "name a file in place of -, or leave --json out");
    }
  }
  NewBuffer wanted;
  if (action == "alloc") {
    absl::StatusOr<NewBuffer> parsed = ParseNewBuffer(words[1]);
    if (!parsed.ok()) return UsageError(parsed.status());
    wanted = *std::move(parsed);
  }
  absl::StatusOr<std::unique_ptr<client::Client>> connected = Connect();
  if (!connected.ok()) return CallError(connected.status());
  client::Client& client = **connected;
  if (action == "list") return List(client);
  if (action == "alloc") return Allocate(client, wanted);
  if (action == "upload") return Upload(client, ids[0], words[2]);
  if (action == "download") return Download(client, ids[0], words[2]);
  if (action == "free") {
    return ForEach(ids, "freed", [&](uint64_t id) { return client.Free(id); });
  }
  return ForEach(ids, "persisted", [&](uint64_t id) { return client.Persist(id); });
}

}  // namespace resident::cli
