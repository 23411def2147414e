// run: one task of any operator, from the command line.
//
// It first requests the operator's description, so that arguments can be given by name, in any
// order, and without their types.
#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/common_options.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "client/cli/values.h"
#include "client/commands/command.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"

namespace resident::cli {
namespace {

struct TaskRunOptions {
  std::optional<uint32_t> device;
  OpVersion op_version;
  bool all = false;
};

// An output of the task, and finally its elements.
struct Output {
  std::string name;
  v1::DType dtype;
  std::vector<uint64_t> shape;
  // Where the elements are: result output `returned`, or `buffer` on the device.
  int returned = -1;
  client::BufferHandle buffer;
  // File to write them to; empty: printed.
  std::string file;
  std::string bytes;
};

// Builds the batch of one task from words and the operator's signature.
class TaskBuilder {
 public:
  TaskBuilder(client::Client& client, const v1::Operator& op, const TaskRunOptions& options)
      : client_(client), op_(op), device_(options.device), batch_(op.name()) {
    batch_.Version(options.op_version.version)
        .ContentHash(options.op_version.content_hash)
        .Label(options.op_version.label);
    if (device_.has_value()) batch_.set_device(*device_);
  }

  // Checks the words and builds the parts that need no call. INVALID_ARGUMENT: the words do
  // not match the signature, or a file cannot be read.
  absl::Status Build(const std::vector<RunArgument>& arguments) {
    RETURN_IF_ERROR(CheckNames(arguments));
    for (int i = 0; i < op_.parameters_size(); ++i) {
      const v1::Parameter& parameter = op_.parameters(i);
      const RunArgument* argument = Find(arguments, parameter.name());
      absl::Status status;
      switch (parameter.kind()) {
        case v1::Parameter::KIND_OUTPUT:
          status = AddOutput(parameter, argument);
          break;
        case v1::Parameter::KIND_SCALAR:
          if (argument == nullptr) {
            if (!HasDefault(parameter)) return Missing(parameter);
            // The daemon uses the defaults.
            if (NoneGivenFrom(arguments, i)) return absl::OkStatus();
            AddDefault(parameter);
            break;
          }
          status = AddScalar(parameter, *argument);
          break;
        default:
          if (argument == nullptr || argument->kind == RunArgument::kNothing) {
            return Missing(parameter);
          }
          status = AddInput(parameter, *argument);
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Uploads the tensors that are read and written in place. Errors are those of calls.
  // REQUIRES: Build() was OK.
  absl::Status UploadInPlace() {
    client::BufferOptions options;
    options.device = device_;
    for (const InPlace& in_place : in_place_) {
      Output& output = outputs_[in_place.output];
      ASSIGN_OR_RETURN(client::BufferHandle buffer,
                       client_.AllocateAs(output.dtype, output.shape, options));
      RETURN_IF_ERROR(client_.UploadBytes(buffer.id(), 0, in_place.bytes));
      batch_.message()
          .mutable_tasks()
          ->mutable_arguments(in_place.argument)
          ->mutable_buffer()
          ->add_buffer_ids(buffer.id());
      output.buffer = std::move(buffer);
    }
    return absl::OkStatus();
  }

  client::TaskBatch& batch() { return batch_; }
  std::vector<Output>& outputs() { return outputs_; }

 private:
  // Elements that must be on the device before the task; both an argument and an output.
  struct InPlace {
    int argument;
    size_t output;
    std::string bytes;
  };

  static const RunArgument* Find(const std::vector<RunArgument>& arguments,
                                 const std::string& name) {
    for (const RunArgument& argument : arguments) {
      if (argument.name == name) return &argument;
    }
    return nullptr;
  }

  bool NoneGivenFrom(const std::vector<RunArgument>& arguments, int first) const {
    for (int i = first; i < op_.parameters_size(); ++i) {
      if (Find(arguments, op_.parameters(i).name()) != nullptr) return false;
    }
    return true;
  }

  static bool HasDefault(const v1::Parameter& parameter) {
    return parameter.default_case() != v1::Parameter::DEFAULT_NOT_SET;
  }

  void AddDefault(const v1::Parameter& parameter) {
    if (parameter.has_default_f64()) {
      batch_.Scalar(parameter.default_f64());
    } else {
      batch_.Integer(parameter.default_i64());
    }
  }

  std::string ParameterNames() const {
    return absl::StrJoin(
        op_.parameters(), ", ",
        [](std::string* out, const v1::Parameter& parameter) { out->append(parameter.name()); });
  }

  absl::Status CheckNames(const std::vector<RunArgument>& arguments) const {
    for (const RunArgument& argument : arguments) {
      int matches = 0;
      for (const v1::Parameter& parameter : op_.parameters()) {
        matches += parameter.name() == argument.name;
      }
      if (matches == 0) {
        return absl::InvalidArgumentError(absl::StrCat(op_.name(), " has no parameter '",
                                                       argument.name, "'. Fix: use its parameters ",
                                                       ParameterNames()));
      }
      if (Find(arguments, argument.name) != &argument) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", argument.name, "' is given twice. Fix: give it once"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Missing(const v1::Parameter& parameter) const {
    return absl::InvalidArgumentError(
        absl::StrCat(op_.name(), " needs ", parameter.name(), ". Fix: give ", parameter.name(),
                     "=VALUE; its parameters are ", ParameterNames()));
  }

  // Whether every dimension of the output is a number or occurs in an input, so that the daemon can
  // derive its shape.
  bool FollowsFromInputs(const v1::Parameter& output) const {
    const auto name = [](const v1::Dim& dim) {
      if (dim.has_spread()) return dim.spread();
      return dim.has_broadcast() ? dim.broadcast() : dim.name();
    };
    std::set<std::string> known;
    for (const v1::Parameter& parameter : op_.parameters()) {
      if (parameter.kind() == v1::Parameter::KIND_OUTPUT) continue;
      for (const v1::Dim& dim : parameter.shape()) known.insert(name(dim));
    }
    return std::all_of(output.shape().begin(), output.shape().end(), [&](const v1::Dim& dim) {
      return dim.has_size() || known.contains(name(dim));
    });
  }

  static v1::DType DTypeFor(const v1::Parameter& parameter, const RunArgument* argument) {
    if (argument != nullptr && argument->dtype.has_value()) return *argument->dtype;
    if (parameter.dtypes().empty()) return v1::DTYPE_F32;
    return static_cast<v1::DType>(parameter.dtypes(0));
  }

  void AddBuffer(const RunArgument& argument) {
    v1::BufferColumn& column = *batch_.message().mutable_tasks()->add_arguments()->mutable_buffer();
    column.add_buffer_ids(argument.buffer);
    if (argument.dtype.has_value()) column.set_dtype(*argument.dtype);
    if (argument.shape.has_value()) {
      column.mutable_shape()->Add(argument.shape->begin(), argument.shape->end());
    }
  }

  absl::Status AddInput(const v1::Parameter& parameter, const RunArgument& argument) {
    if (argument.kind == RunArgument::kBuffer) {
      AddBuffer(argument);
      return absl::OkStatus();
    }
    const v1::DType dtype = DTypeFor(parameter, &argument);
    std::string bytes;
    if (argument.kind == RunArgument::kFile) {
      if (absl::Status status = ReadFile(argument.text, &bytes); !status.ok()) return status;
    } else {
      ASSIGN_OR_RETURN(std::string encoded, EncodeValues(dtype, argument.text, argument.name));
      bytes = std::move(encoded);
    }
    const uint64_t size = client::SizeOf(dtype);
    if (bytes.size() % size != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(argument.text, " has ", bytes.size(),
                       " bytes, which is not a multiple of the size of ", EnumName(dtype),
                       ". Fix: give its element type, for example ", argument.name, ":u8=@FILE"));
    }
    const std::vector<uint64_t> shape =
        argument.shape.value_or(std::vector<uint64_t>{bytes.size() / size});
    if (client::CountElements(shape) * size != bytes.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(argument.name, " has ", bytes.size() / size, " elements, but its shape ",
                       FormatShape(shape), " has ", client::CountElements(shape),
                       ". Fix: give the same number"));
    }
    if (!first_shape_.has_value()) first_shape_ = shape;
    if (parameter.kind() == v1::Parameter::KIND_IN_OUT) {
      in_place_.push_back(
          {batch_.message().tasks().arguments_size(), outputs_.size(), std::move(bytes)});
      batch_.message().mutable_tasks()->add_arguments();
      outputs_.push_back({argument.name, dtype, shape, -1, {}, "", ""});
      return absl::OkStatus();
    }
    batch_.InputBytes(dtype, bytes.data(), bytes.size(), shape);
    if (shape.empty()) {
      // A tensor without dimensions; the batch takes an empty shape for an unknown one.
      v1::OperatorTasks& tasks = *batch_.message().mutable_tasks();
      tasks.mutable_arguments(tasks.arguments_size() - 1)->mutable_inline_()->clear_shape();
    }
    return absl::OkStatus();
  }

  absl::Status AddOutput(const v1::Parameter& parameter, const RunArgument* argument) {
    if (argument != nullptr && argument->kind == RunArgument::kBuffer) {
      AddBuffer(*argument);
      return absl::OkStatus();
    }
    if (argument != nullptr && argument->kind == RunArgument::kValues) {
      return absl::InvalidArgumentError(absl::StrCat(
          parameter.name(), " is an output and takes no values. Fix: give ", parameter.name(),
          "= to print it, ", parameter.name(), "=@FILE, or ", parameter.name(), "=buffer:ID"));
    }
    Output output{parameter.name(), DTypeFor(parameter, argument), {}, returned_++, {}, "", ""};
    if (argument != nullptr && argument->kind == RunArgument::kFile) output.file = argument->text;
    if (argument != nullptr && argument->shape.has_value()) {
      output.shape = *argument->shape;
    } else if (FollowsFromInputs(parameter)) {
      // The result has its type.
      batch_.ReturnInferred(argument == nullptr ? v1::DTYPE_UNSPECIFIED
                                                : argument->dtype.value_or(v1::DTYPE_UNSPECIFIED));
      outputs_.push_back(std::move(output));
      return absl::OkStatus();
    } else if (first_shape_.has_value()) {
      output.shape = *first_shape_;
      if (output.shape.size() > parameter.max_rank()) output.shape.resize(parameter.max_rank());
    } else {
      return absl::InvalidArgumentError(absl::StrCat("the shape of ", parameter.name(),
                                                     " is not known. Fix: give it, for example ",
                                                     parameter.name(), ":1024="));
    }
    batch_.ReturnAs(output.dtype, output.shape);
    outputs_.push_back(std::move(output));
    return absl::OkStatus();
  }

  absl::Status AddScalar(const v1::Parameter& parameter, const RunArgument& argument) {
    const v1::DType dtype = DTypeFor(parameter, nullptr);
    const bool real = IsFloat(static_cast<DType>(dtype));
    std::optional<double> f64;
    int64_t i64 = 0;
    if (real) f64 = ParseReal(dtype, argument.text);
    const bool parsed = argument.kind == RunArgument::kValues &&
                        (real ? f64.has_value() : absl::SimpleAtoi(argument.text, &i64));
    if (!parsed) {
      return absl::InvalidArgumentError(
          absl::StrCat("invalid value '", argument.text, "' for ", parameter.name(),
                       ". Fix: give one ", real ? "number" : "integer", " of ", EnumName(dtype)));
    }
    if (real) {
      batch_.Scalar(*f64);
    } else {
      batch_.Integer(i64);
    }
    return absl::OkStatus();
  }

  client::Client& client_;
  const v1::Operator& op_;
  const std::optional<uint32_t> device_;
  client::TaskBatch batch_;
  std::vector<Output> outputs_;
  std::vector<InPlace> in_place_;
  int returned_ = 0;
  // Shape of the first input whose shape is known here.
  std::optional<std::vector<uint64_t>> first_shape_;
};

absl::Status Collect(client::Client& client, const client::Result& result, Output& output) {
  if (output.returned >= 0) {
    if (output.returned >= result.message().outputs_size()) {
      return absl::InternalError(absl::StrCat("the server returned no ", output.name));
    }
    output.bytes = result.message().outputs(output.returned);
    if (const v1::TensorType* const type = result.output_type(output.returned)) {
      output.dtype = type->dtype();
      output.shape.assign(type->shape().begin(), type->shape().end());
    }
    return absl::OkStatus();
  }
  return client.DownloadBytes(output.buffer.id(), 0, 0, [&](std::string_view piece) {
    output.bytes.append(piece);
    return true;
  });
}

void PrintResult(const v1::Operator& op, const client::Result& result,
                 const std::vector<Output>& outputs, bool all) {
  const bool timed = !result.device_ns().empty();
  if (Common().json) {
    Json json = {{"operator", op.name()},
                 {"version", result.version()},
                 {"device", result.device()},
                 {"device_ns", timed ? Json(result.device_ns()[0]) : Json(nullptr)},
                 {"outputs", Json::object()}};
    if (!result.content_hash().empty()) json["content_hash"] = result.content_hash();
    for (const Output& output : outputs) {
      Json& entry = json["outputs"][output.name];
      entry = {{"dtype", EnumName(output.dtype)}, {"shape", output.shape}};
      if (output.file.empty()) {
        entry["values"] = ValuesToJson(output.dtype, output.bytes);
      } else {
        entry["file"] = output.file;
      }
    }
    PrintJson(json);
    return;
  }
  const size_t max_elements = all ? SIZE_MAX : kShownElements;
  Table table({});
  for (const Output& output : outputs) {
    table.Add({output.name, EnumName(output.dtype), FormatShape(output.shape),
               output.file.empty() ? FormatValues(output.dtype, output.bytes, max_elements)
                                   : absl::StrCat("written to ", output.file)});
  }
  Print(table.ToString());
  Print(absl::StrCat(
      op.name(), " version ", result.version(), " on device ", result.device(),
      timed ? absl::StrCat(", ", HumanDuration(absl::Nanoseconds(result.device_ns()[0])))
            : std::string(),
      "\n"));
}

int RunTask(const Words& words, const TaskRunOptions& options) {
  std::vector<RunArgument> arguments;
  for (size_t i = 1; i < words.size(); ++i) {
    absl::StatusOr<RunArgument> argument = ParseRunArgument(words[i]);
    if (!argument.ok()) return UsageError(argument.status());
    arguments.push_back(*std::move(argument));
  }
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<v1::Operator> op = (*client)->DescribeOperator(words[0]);
  if (!op.ok()) return CallError(op.status());
  if (op->versions_size() > 0 && op->versions(0).kind() == "bytecode") {
    return UsageError(absl::StrCat(op->name(), " is a FLUX program and takes no arguments by name"),
                      absl::StrCat("residentctl flux run --operator=", op->name()));
  }
  for (RunArgument& argument : arguments) {
    if (argument.kind != RunArgument::kBuffer) continue;
    const absl::StatusOr<uint64_t> id = FindBufferId(**client, argument.buffer_word);
    if (!id.ok()) return CallError(id.status());
    argument.buffer = *id;
  }
  TaskBuilder builder(**client, *op, options);
  absl::Status usable = builder.Build(arguments);
  for (const Output& output : builder.outputs()) {
    if (usable.ok()) usable = CheckWritable(output.file);
  }
  if (!usable.ok()) return UsageError(usable);
  if (absl::Status status = builder.UploadInPlace(); !status.ok()) return CallError(status);
  absl::StatusOr<client::Result> result = (*client)->Run(builder.batch());
  if (!result.ok()) return CallError(result.status());
  if (!result->ok()) return TaskError(result->status());
  absl::Status written;
  for (Output& output : builder.outputs()) {
    if (absl::Status status = Collect(**client, *result, output); !status.ok()) {
      return CallError(status);
    }
    if (output.file.empty()) continue;
    absl::Status status = WriteFile(output.file, output.bytes);
    if (status.ok()) continue;
    output.file.clear();  // Print the result instead, so that it is not lost.
    written.Update(status);
  }
  PrintResult(*op, *result, builder.outputs(), options.all);
  return written.ok() ? kExitOk : WriteError(written);
}

}  // namespace

void AddRun(Command& program) {
  Command& run =
      program.Add("run", "run one task and print its result",
                  "VALUE is\n"
                  "  1,2,3      elements; 0.5*1024 is 1,024 times 0.5\n"
                  "  @FILE      raw little-endian elements (for an output: the file to write)\n"
                  "  buffer:ID  a buffer on the device, by its id or name\n"
                  "  nothing    for an output: print it\n"
                  "Outputs that are not named are returned, with the shape and the element type "
                  "that follow from\n"
                  "the inputs. Where the shape does not follow, as for sum, it is that of the "
                  "first input (or its\n"
                  "first dimensions, if the output has fewer). out:1024= sets a shape, and "
                  "out:f16= an element\n"
                  "type. Scalars that have a default may be omitted.\n"
                  "  residentctl run add x=1,2,3 y=10,20,30 alpha=2\n"
                  "  residentctl run sum_rows x:2x3=1,2,3,4,5,6\n"
                  "  residentctl run fill out:4= value=7\n");
  auto options = std::make_shared<TaskRunOptions>();
  AddDeviceFlag(run, &options->device);
  AddOpVersionFlags(run, &options->op_version);
  run.Flag("all", &options->all, "print every element, not the first 16");
  run.Run("OPERATOR [NAME[:DTYPE][:SHAPE]=VALUE]...",
          [options](const Words& words) { return RunTask(words, *options); });
}

}  // namespace resident::cli
