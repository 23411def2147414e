// lane: opens a local lane, prepares a call, and runs a program that uses it through
// libresidentd_lane. So programs in C, and in any language that can call C, need no gRPC.
#include "client/lane.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "client/cli/values.h"
#include "client/commands/command.h"
#include "client/shared_memory.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"

namespace resident::cli {
namespace {

constexpr int kExitOfSignal = 128;

struct LaneFlags {
  uint32_t device = 0;
  uint32_t slots = 4096;
  uint32_t data_kib = 0;
};

// A tensor of the call, in memory that the program maps.
struct Tensor {
  v1::DType dtype;
  client::Shape shape;
  std::string contents;  // Empty: zeros.
};

const RunArgument* FindArgument(const std::vector<RunArgument>& arguments,
                                const std::string& name) {
  for (const RunArgument& argument : arguments) {
    if (argument.name == name) return &argument;
  }
  return nullptr;
}

absl::Status CheckArguments(const v1::Operator& op, const std::vector<RunArgument>& arguments) {
  for (const RunArgument& argument : arguments) {
    const bool known = std::ranges::any_of(op.parameters(), [&](const v1::Parameter& parameter) {
      return parameter.name() == argument.name;
    });
    if (!known) {
      return absl::InvalidArgumentError(
          absl::StrCat(op.name(), " has no parameter '", argument.name,
                       "'. Fix: residentctl ops describe ", op.name(), " shows its parameters"));
    }
    if (FindArgument(arguments, argument.name) != &argument) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", argument.name, "' is given twice. Fix: give it once"));
    }
  }
  return absl::OkStatus();
}

// `first`: the call's first tensor, or null; an output without a shape has its shape.
absl::StatusOr<Tensor> MakeTensor(const v1::Parameter& parameter, const RunArgument* argument,
                                  const Tensor* first) {
  Tensor tensor;
  tensor.dtype = argument != nullptr && argument->dtype.has_value() ? *argument->dtype
                 : parameter.dtypes().empty()                       ? v1::DTYPE_F32
                                              : static_cast<v1::DType>(parameter.dtypes(0));
  const auto invalid = [&](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat(why, ". Fix: give ", parameter.name(), ":SHAPE= or ", parameter.name(),
                     "=VALUES, for example ", parameter.name(), ":1024="));
  };
  if (argument != nullptr && argument->kind == RunArgument::kBuffer) {
    return invalid(absl::StrCat("'", parameter.name(),
                                "' is a buffer on the device, which the program cannot map"));
  }
  if (argument != nullptr && argument->kind == RunArgument::kFile) {
    RETURN_IF_ERROR(ReadFile(argument->text, &tensor.contents));
  } else if (argument != nullptr && argument->kind == RunArgument::kValues) {
    ASSIGN_OR_RETURN(tensor.contents, EncodeValues(tensor.dtype, argument->text, argument->name));
  }
  const uint64_t size = client::SizeOf(tensor.dtype);
  if (argument != nullptr && argument->shape.has_value()) {
    tensor.shape = *argument->shape;
  } else if (!tensor.contents.empty()) {
    tensor.shape = {tensor.contents.size() / size};
  } else if (first != nullptr && parameter.kind() == v1::Parameter::KIND_OUTPUT) {
    tensor.shape = first->shape;
  } else {
    return invalid(absl::StrCat("the shape of '", parameter.name(), "' is not known"));
  }
  const uint64_t bytes = client::CountElements(tensor.shape) * size;
  if (bytes == 0 || (!tensor.contents.empty() && tensor.contents.size() != bytes)) {
    return invalid(absl::StrCat("'", parameter.name(), "' has ", tensor.contents.size(),
                                " bytes of values, but its shape ", FormatShape(tensor.shape),
                                " has ", bytes));
  }
  return tensor;
}

// A scalar's value, or its default.
absl::Status AddScalar(const v1::Parameter& parameter, const RunArgument* argument,
                       client::TaskBatch& batch) {
  const bool real = IsFloat(static_cast<DType>(parameter.dtypes(0)));
  if (argument == nullptr) {
    if (parameter.has_default_f64()) {
      batch.Scalar(parameter.default_f64());
    } else if (parameter.has_default_i64()) {
      batch.Integer(parameter.default_i64());
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", parameter.name(), "' has no value. Fix: give ", parameter.name(), "=NUMBER"));
    }
    return absl::OkStatus();
  }
  int64_t integer = 0;
  std::optional<double> number;
  if (real)
    number = ParseReal(parameter.dtypes(0) == v1::DTYPE_F32 ? v1::DTYPE_F32 : v1::DTYPE_F64,
                       argument->text);
  if (argument->kind != RunArgument::kValues ||
      !(real ? number.has_value() : absl::SimpleAtoi(argument->text, &integer))) {
    return absl::InvalidArgumentError(absl::StrCat("invalid value '", argument->text, "' for ",
                                                   parameter.name(), ". Fix: give one ",
                                                   real ? "number" : "integer"));
  }
  if (real) {
    batch.Scalar(*number);
  } else {
    batch.Integer(integer);
  }
  return absl::OkStatus();
}

// What the program needs: the lane, and the memory of its tensors.
struct Opened {
  std::vector<client::SharedMemory> memory;
  std::vector<client::BufferHandle> buffers;
  std::unique_ptr<client::Lane> lane;
};

absl::StatusOr<Opened> Open(client::Client& daemon, const LaneFlags& flags,
                            const std::vector<Tensor>& tensors, client::TaskBatch& batch,
                            const std::vector<client::Varying>& words) {
  Opened opened;
  ASSIGN_OR_RETURN(opened.lane, daemon.OpenLane({.device = flags.device,
                                                 .slots = flags.slots,
                                                 .data_bytes = uint64_t{flags.data_kib} << 10,
                                                 .attach = false}));
  size_t next = 0;
  // The arguments of tensors have their places in the batch already.
  for (v1::Column& argument : *batch.message().mutable_tasks()->mutable_arguments()) {
    if (!argument.has_buffer()) continue;
    const Tensor& tensor = tensors[next++];
    ASSIGN_OR_RETURN(client::SharedMemory memory,
                     client::SharedMemory::Create(client::CountElements(tensor.shape) *
                                                  client::SizeOf(tensor.dtype)));
    memcpy(memory.data(), tensor.contents.data(), tensor.contents.size());
    ASSIGN_OR_RETURN(
        client::BufferHandle buffer,
        daemon.ImportSharedAs(memory.fd(), tensor.dtype, tensor.shape, {.device = flags.device}));
    argument.mutable_buffer()->add_buffer_ids(buffer.id());
    ASSIGN_OR_RETURN(const uint32_t index, opened.lane->Bind(buffer));
    if (index != opened.memory.size())
      return absl::InternalError("the daemon's indices are not 0, 1, ...");
    opened.memory.push_back(std::move(memory));
    opened.buffers.push_back(std::move(buffer));
  }
  ASSIGN_OR_RETURN(const client::LaneCall call, opened.lane->Prepare(batch, words));
  if (call.number() != 0)
    return absl::InternalError("the first call of a lane has not the number 0");
  return opened;
}

// Runs the program with the lane in its environment; returns its exit status.
int RunProgram(const Opened& opened, const Words& program) {
  std::string memory;
  for (const client::SharedMemory& part : opened.memory) {
    fcntl(part.fd(), F_SETFD, 0);  // The program inherits it.
    absl::StrAppend(&memory, memory.empty() ? "" : ",", part.fd(), ":", part.size_bytes());
  }
  const std::vector<std::string> added = {
      absl::StrCat("RESIDENTD_LANE_SOCKET=", opened.lane->info().local_address()),
      absl::StrCat("RESIDENTD_LANE_TOKEN=", opened.lane->info().token()),
      absl::StrCat("RESIDENTD_LANE_MEMORY=", memory)};
  std::vector<char*> environment, arguments;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (strncmp(*variable, "RESIDENTD_LANE_", strlen("RESIDENTD_LANE_")) != 0)
      environment.push_back(*variable);
  }
  for (const std::string& variable : added)
    environment.push_back(const_cast<char*>(variable.c_str()));
  for (const std::string& word : program) arguments.push_back(const_cast<char*>(word.c_str()));
  environment.push_back(nullptr);
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int error =
      posix_spawnp(&pid, arguments[0], nullptr, nullptr, arguments.data(), environment.data());
  if (error != 0) {
    return UsageError(absl::StrCat("cannot start ", program[0], ": ", strerror(error)),
                      "give the path of a program");
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return kExitFailed;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kExitOfSignal + WTERMSIG(status);
}

int RunLane(const Words& words, const LaneFlags& flags) {
  std::vector<RunArgument> arguments;
  size_t at = 1;
  for (; at < words.size() && words[at].find('=') != std::string::npos; ++at) {
    absl::StatusOr<RunArgument> argument = ParseRunArgument(words[at]);
    if (!argument.ok()) return UsageError(argument.status());
    arguments.push_back(*std::move(argument));
  }
  const Words program(words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
  if (program.empty()) {
    return UsageError("no program to run", "residentctl lane add x:1024= y:1024= -- ./program");
  }
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  const absl::StatusOr<v1::Operator> op = (*client)->DescribeOperator(words[0]);
  if (!op.ok()) return CallError(op.status());
  if (absl::Status status = CheckArguments(*op, arguments); !status.ok()) return UsageError(status);
  client::TaskBatch batch(op->name());
  std::vector<Tensor> tensors;
  std::vector<client::Varying> varying;
  for (int i = 0; i < op->parameters_size(); ++i) {
    const v1::Parameter& parameter = op->parameters(i);
    const RunArgument* const argument = FindArgument(arguments, parameter.name());
    if (parameter.kind() == v1::Parameter::KIND_SCALAR) {
      if (absl::Status status = AddScalar(parameter, argument, batch); !status.ok())
        return UsageError(status);
      continue;
    }
    absl::StatusOr<Tensor> tensor =
        MakeTensor(parameter, argument, tensors.empty() ? nullptr : &tensors[0]);
    if (!tensor.ok()) return UsageError(tensor.status());
    tensors.push_back(*std::move(tensor));
    varying.push_back(client::Varying::Place(static_cast<uint32_t>(i)));
    batch.message().mutable_tasks()->add_arguments()->mutable_buffer();
  }
  const absl::StatusOr<Opened> opened = Open(**client, flags, tensors, batch, varying);
  if (!opened.ok()) return CallError(opened.status());
  return RunProgram(*opened, program);
}

}  // namespace

void AddLane(Command& program) {
  Command& lane = program.Add(
      "lane", "run a program that calls an operator through a local lane",
      "Opens a lane to a device of a daemon on this machine (--local_address), prepares a call of "
      "the\n"
      "operator, and runs PROGRAM, the first word without '='. The program uses "
      "libresidentd_lane:\n"
      "residentd_lane_attach(NULL, NULL, &lane) attaches to the lane, the call has number 0, and "
      "word w\n"
      "is the place of the operator's w-th tensor. Each tensor is memory of the program:\n"
      "residentd_lane_memory(lane, w, &bytes). Scalars are fixed. The exit status is that of the\n"
      "program. docs/local_lane.md has an example.\n"
      "  residentctl lane add x:1024= y:1024= out:1024= alpha=2 -- ./lane_add\n");
  auto flags = std::make_shared<LaneFlags>();
  lane.Flag("device", &flags->device, "index of the device, as in residentctl status");
  lane.Flag("slots", &flags->slots, "submissions that can be unanswered: a power of two",
            {.low = 64, .high = 65536});
  lane.Flag("data_kib", &flags->data_kib, "size of the data area for ranges: a multiple of 4",
            {.high = 65536});
  lane.Run("OPERATOR [NAME[:DTYPE][:SHAPE]=[VALUE]]... PROGRAM [ARGUMENT]...",
           [flags](const Words& words) { return RunLane(words, *flags); });
}

}  // namespace resident::cli
