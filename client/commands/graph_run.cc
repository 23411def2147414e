#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/cli/format.h"
#include "client/cli/graph_file.h"
#include "client/cli/output.h"
#include "client/cli/values.h"
#include "client/commands/graph_commands.h"
#include "runtime/base/status_macros.h"

namespace resident::cli {
namespace {

// A run, from the words of the command line.
class RunBuilder {
 public:
  // `graph`: the graph that is run, in the request or loaded.
  RunBuilder(client::Client& client, v1::Graph graph) : client_(client), graph_(std::move(graph)) {}

  // Errors: INVALID_ARGUMENT, or those of calls that find a buffer.
  absl::Status Add(const RunArgument& argument) {
    for (const v1::GraphScalar& scalar : graph_.scalars()) {
      if (scalar.name() == argument.name) return AddScalar(argument);
    }
    for (const v1::GraphTensor& tensor : graph_.tensors()) {
      if (tensor.name() == argument.name) return AddTensor(tensor, argument);
    }
    return absl::InvalidArgumentError(absl::StrCat("the graph has no tensor or scalar '",
                                                   argument.name, "'. Fix: correct the name"));
  }

  // After the last word. INVALID_ARGUMENT: a scalar counts values of a prompt that were not given.
  absl::Status Finish() {
    for (const auto& [name, given] : lengths_) {
      const auto [scalar, added] = request_.mutable_scalars()->insert({name, double(given)});
      if (!added && scalar->second > double(given)) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, " is ", scalar->second, ", and only ", given,
                         " values are given. Fix: give as many values, or omit ", name));
      }
    }
    return absl::OkStatus();
  }

  v1::RunGraphRequest& request() { return request_; }
  v1::Graph& graph() { return graph_; }
  // Files of outputs, by tensor.
  const std::map<std::string, std::string>& files() const { return files_; }

 private:
  absl::Status AddScalar(const RunArgument& argument) {
    const std::optional<double> value = ParseReal(v1::DTYPE_F64, argument.text);
    if (argument.kind != RunArgument::kValues || !value.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("invalid value '", argument.text, "' for ",
                                                     argument.name, ". Fix: give one number"));
    }
    (*request_.mutable_scalars())[argument.name] = *value;
    return absl::OkStatus();
  }

  absl::Status AddTensor(const v1::GraphTensor& tensor, const RunArgument& argument) {
    if (tensor.kind() == v1::GraphTensor::KIND_OUTPUT && argument.kind == RunArgument::kFile) {
      files_[argument.name] = argument.text;
      return CheckWritable(argument.text);
    }
    v1::GraphBinding& binding = *request_.add_bindings();
    binding.set_tensor(argument.name);
    switch (argument.kind) {
      case RunArgument::kBuffer: {
        ASSIGN_OR_RETURN(const uint64_t id, FindBufferId(client_, argument.buffer_word));
        binding.set_buffer_id(id);
        return absl::OkStatus();
      }
      case RunArgument::kFile:
        return ReadFile(argument.text, binding.mutable_data());
      case RunArgument::kValues: {
        ASSIGN_OR_RETURN(*binding.mutable_data(),
                         EncodeValues(tensor.dtype(), argument.text, argument.name));
        return FitValues(tensor, argument, binding);
      }
      case RunArgument::kNothing:
        return absl::InvalidArgumentError(absl::StrCat(argument.name, " has no value. Fix: give ",
                                                       argument.name,
                                                       "=1,2,3, =@FILE or =buffer:ID"));
    }
    return absl::OkStatus();
  }

  // Checks the number of values. A prompt, which is a tensor with a scalar of its name and "_len"
  // (before the number of a text), may be shorter: it is filled up with zeros, and sets the scalar.
  absl::Status FitValues(const v1::GraphTensor& tensor, const RunArgument& argument,
                         v1::GraphBinding& binding) {
    uint64_t elements = 1;
    for (const v1::GraphDim& dim : tensor.shape()) {
      if (dim.size() < 1 || dim.size() > UINT32_MAX)
        return absl::OkStatus();  // The daemon checks it.
      elements *= static_cast<uint64_t>(dim.size());
    }
    const uint64_t size = client::SizeOf(tensor.dtype());
    const uint64_t given = binding.data().size() / size;
    if (given == elements || tensor.strides_size() > 0 || tensor.offset() > 0 ||
        !tensor.alias_of().empty()) {
      return absl::OkStatus();
    }
    const size_t number = argument.name.find_last_not_of("0123456789") + 1;
    const std::string length =
        absl::StrCat(argument.name.substr(0, number), "_len", argument.name.substr(number));
    const bool has_length =
        std::any_of(graph_.scalars().begin(), graph_.scalars().end(),
                    [&](const v1::GraphScalar& scalar) { return scalar.name() == length; });
    if (has_length && given > 0 && given < elements) {
      binding.mutable_data()->resize(elements * size, '\0');
      lengths_[length] = given;
      return absl::OkStatus();
    }
    const std::string example =
        given == 0 || given > elements
            ? std::string()
            : absl::StrCat(", for example ", argument.name, "=",
                           argument.text.size() <= 64 ? argument.text : "...", ",0*",
                           elements - given);
    return absl::InvalidArgumentError(absl::StrCat(argument.name, " has ", given, " of its ",
                                                   elements, " elements. Fix: give ", elements,
                                                   example));
  }

  client::Client& client_;
  v1::Graph graph_;
  v1::RunGraphRequest request_;
  // Scalars that say how many values of a prompt were given, by name.
  std::map<std::string, uint64_t> lengths_;
  std::map<std::string, std::string> files_;
};

const char* EndText(v1::GraphResult::End end) {
  switch (end) {
    case v1::GraphResult::END_STOP:
      return "stop value";
    case v1::GraphResult::END_SCALAR_RANGE:
      return "a scalar is at the end of its range";
    default:
      return "all steps";
  }
}

Json ToJson(const v1::GraphValue& value) {
  return {{"dtype", EnumName(value.dtype())},
          {"shape", std::vector<uint64_t>(value.shape().begin(), value.shape().end())},
          {"values", ValuesToJson(value.dtype(), value.data())}};
}

std::string ToText(const v1::GraphValue& value, size_t max_elements) {
  return absl::StrCat(value.tensor(), " ", FormatValues(value.dtype(), value.data(), max_elements));
}

Json ToJson(const google::protobuf::RepeatedPtrField<v1::GraphVersion>& versions) {
  Json json = Json::array();
  for (const v1::GraphVersion& version : versions) {
    json.push_back({{"operator", version.operator_()},
                    {"version", version.version()},
                    {"tasks", version.tasks()}});
  }
  return json;
}

void PrintResult(const v1::GraphResult& result, const std::map<std::string, std::string>& files,
                 bool all) {
  uint64_t tasks = 0;
  for (const v1::GraphVersion& version : result.versions()) tasks += version.tasks();
  if (Common().json) {
    Json json = {{"steps", result.steps()},   {"end", v1::GraphResult::End_Name(result.end())},
                 {"device", result.device()}, {"device_ns", result.device_ns()},
                 {"outputs", Json::object()}, {"versions", ToJson(result.versions())}};
    for (const v1::GraphValue& value : result.outputs()) {
      Json& entry = json["outputs"][value.tensor()] = ToJson(value);
      const auto file = files.find(value.tensor());
      if (file == files.end()) continue;
      entry.erase("values");
      entry["file"] = file->second;
    }
    PrintJson(json);
    return;
  }
  Table table({});
  for (const v1::GraphValue& value : result.outputs()) {
    const auto file = files.find(value.tensor());
    table.Add({value.tensor(), EnumName(value.dtype()),
               FormatShape({value.shape().begin(), value.shape().end()}),
               file == files.end()
                   ? FormatValues(value.dtype(), value.data(), all ? SIZE_MAX : kShownElements)
                   : absl::StrCat("written to ", file->second)});
  }
  Print(table.ToString());
  Print(absl::StrCat(result.steps(), result.steps() == 1 ? " step" : " steps", " (",
                     EndText(result.end()), "), ", tasks, tasks == 1 ? " task" : " tasks",
                     " on device ", result.device(), ", ",
                     HumanDuration(absl::Nanoseconds(result.device_ns())), " of worker time\n"));
}

// The graph of a run: in a file, or loaded.
struct Source {
  v1::Graph graph;
  std::string loaded_id;  // Empty: it is in a file.
};

// Whether a word is meant as a file, not as a loaded graph.
bool IsFile(const std::string& word) {
  return word == "-" || absl::StrContains(word, '/') || absl::EndsWith(word, ".json") ||
         access(word.c_str(), F_OK) == 0;
}

absl::StatusOr<Source> FindLoaded(client::Client& client, const std::string& word) {
  ASSIGN_OR_RETURN(const v1::LoadedGraph found, FindLoadedGraph(client, word));
  ASSIGN_OR_RETURN(v1::DescribeGraphResponse described, client.DescribeGraph(found.graph_id()));
  return Source{std::move(*described.mutable_graph()), found.graph_id()};
}

}  // namespace

std::optional<int> PrepareGraphRun(const Words& words, const GraphRunOptions& options,
                                   PreparedGraphRun* run) {
  Source source;
  const bool in_file = IsFile(words[0]);
  if (in_file) {
    std::string text;
    if (absl::Status status = ReadFile(words[0], &text); !status.ok()) return UsageError(status);
    absl::StatusOr<v1::Graph> graph = ParseGraph(words[0], text);
    if (!graph.ok()) return UsageError(graph.status());
    source.graph = *std::move(graph);
    ApplyFuseFlag(options.fuse, &source.graph);
  } else if (!options.fuse) {
    return UsageError(absl::InvalidArgumentError(absl::StrCat(
        "--fuse=false applies to a graph in a file, and '", words[0],
        "' is loaded. Fix: load the graph with --fuse=false, which gives it another id")));
  }
  std::vector<RunArgument> arguments;
  for (size_t i = 1; i < words.size(); ++i) {
    absl::StatusOr<RunArgument> argument = ParseRunArgument(words[i]);
    if (!argument.ok()) return UsageError(argument.status());
    arguments.push_back(*std::move(argument));
  }
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  if (!in_file) {
    absl::StatusOr<Source> loaded = FindLoaded(**client, words[0]);
    if (!loaded.ok()) return CallError(loaded.status());
    source = *std::move(loaded);
  }
  RunBuilder builder(**client, std::move(source.graph));
  v1::RunGraphRequest& request = builder.request();
  request.set_max_steps(options.steps);
  if (options.device.has_value()) request.set_device(*options.device);
  for (const RunArgument& argument : arguments) {
    const absl::Status added = builder.Add(argument);
    if (absl::IsInvalidArgument(added)) return UsageError(added);
    if (!added.ok()) return CallError(added);
  }
  if (const absl::Status finished = builder.Finish(); !finished.ok()) return UsageError(finished);
  if (in_file) {
    *request.mutable_graph() = std::move(builder.graph());
  } else {
    request.set_graph_id(source.loaded_id);
    run->loaded = std::move(builder.graph());
  }
  run->request = std::move(request);
  run->files = builder.files();
  run->client = *std::move(client);
  return std::nullopt;
}

absl::Status WriteOutputs(const v1::GraphResult& result,
                          const std::map<std::string, std::string>& files) {
  for (const v1::GraphValue& value : result.outputs()) {
    const auto file = files.find(value.tensor());
    if (file != files.end()) RETURN_IF_ERROR(WriteFile(file->second, value.data()));
  }
  return absl::OkStatus();
}

void AddGraphRunFlags(Command& command, GraphRunOptions* options) {
  AddDeviceFlag(command, &options->device);
  command.Flag("steps", &options->steps, "most steps; default: those of the loop");
  AddFuseFlag(command, &options->fuse);
}

void AddFuseFlag(Command& command, bool* fuse) {
  command.Flag("fuse", fuse, "execute one operator in place of several nodes, where there is one");
}

void ApplyFuseFlag(bool fuse, v1::Graph* graph) {
  if (!fuse) graph->set_fuse(false);
}

namespace {

int RunGraph(const Words& words, const GraphRunOptions& options, bool all) {
  PreparedGraphRun run;
  if (const std::optional<int> failed = PrepareGraphRun(words, options, &run)) return *failed;
  const size_t max_elements = all ? SIZE_MAX : kShownElements;
  const absl::StatusOr<v1::GraphResult> result =
      run.client->RunGraph(run.request, [&](const v1::GraphStep& step) {
        if (Common().json) {
          Json json = {{"step", step.step()},
                       {"records", Json::object()},
                       {"versions", ToJson(step.versions())}};
          for (const v1::GraphValue& value : step.records()) {
            json["records"][value.tensor()] = ToJson(value);
          }
          PrintJsonLine(json);
          return;
        }
        std::string line = absl::StrCat("step ", step.step());
        for (const v1::GraphValue& value : step.records()) {
          absl::StrAppend(&line, ": ", ToText(value, max_elements));
        }
        Print(line + "\n");
      });
  if (!result.ok()) return CallError(result.status());
  if (absl::Status status = WriteOutputs(*result, run.files); !status.ok())
    return WriteError(status);
  PrintResult(*result, run.files, all);
  return kExitOk;
}

}  // namespace

void AddGraphRun(Command& graph) {
  auto options = std::make_shared<GraphRunOptions>();
  Command& run = graph.Add("run", "run a graph once and print its outputs");
  AddGraphRunFlags(run, options.get());
  auto all = std::make_shared<bool>(false);
  run.Flag("all", all.get(), "print every element, not the first 16");
  run.Run(kGraphRunWords,
          [options, all](const Words& words) { return RunGraph(words, *options, *all); });
}

}  // namespace resident::cli
