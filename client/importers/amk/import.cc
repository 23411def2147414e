#include "client/importers/amk/import.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <string_view>
#include <unordered_map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "client/importers/amk/importer.h"
#include "google/protobuf/util/json_util.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/limits.h"

namespace resident::cli {

using absl::StrCat;

namespace amk {
namespace {

// Space in a name for what the importer appends.
constexpr size_t kMaxNameStem = graph::kMaxNameBytes - 28;

}  // namespace

std::string Importer::UniqueName(std::string stem, size_t index) {
  if (stem.size() > kMaxNameStem) {
    stem.resize(kMaxNameStem);
    // Do not end within a character of several bytes.
    while (!stem.empty() && (static_cast<unsigned char>(stem.back()) & 0xC0) == 0x80) {
      stem.pop_back();
    }
    if (!stem.empty() && (static_cast<unsigned char>(stem.back()) & 0x80) != 0) stem.pop_back();
  }
  std::string name = stem.empty() ? StrCat("buffer", index) : stem;
  for (size_t i = 0; !names_.insert(name).second; ++i) {
    name = i == 0 ? StrCat(stem, "#", index) : StrCat(stem, "#", index, "#", i);
  }
  return name;
}

absl::Status Importer::ReadVersions(const Json& file) {
  for (const char* const key : {"ir_version", "abi_version"}) {
    const Json& version = Field(file, key);
    if (version.is_null()) continue;
    if (!version.is_string()) return Refuse(StrCat("'", key, "' is not a text"));
    const std::string text = version.get<std::string>();
    if (text != "0" && !absl::StartsWith(text, "0.")) {
      return Refuse(StrCat("'", key, "' is ", Quoted(text), "; 0.x is supported"));
    }
  }
  return absl::OkStatus();
}

absl::Status Importer::ReadBuffers(const Json& list) {
  if (list.is_null()) return absl::OkStatus();
  if (!list.is_array()) return Refuse("'buffers' is not an array");
  if (list.size() > graph::kMaxTensors) {
    return Refuse(StrCat("there are ", list.size(), " buffers; at most ", graph::kMaxTensors));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (absl::Status status = ReadBuffer(list[i], i); !status.ok()) {
      return Refuse(StrCat("buffer ", i, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status Importer::ReadBuffer(const Json& json, size_t index) {
  if (!json.is_object()) return Refuse("it is not an object");
  if (Integer(Field(json, "id")) != static_cast<int64_t>(index)) {
    return Refuse("its id is not its index");
  }
  const Json& name = Field(json, "name");
  if (!name.is_null() && !name.is_string()) return Refuse("its name is not a text");

  struct KindName {
    std::string_view name;
    v1::GraphTensor::Kind kind;
  };
  static constexpr KindName kKinds[] = {
      {"WEIGHT", v1::GraphTensor::KIND_WEIGHT},    {"ACTIVATION", v1::GraphTensor::KIND_ACTIVATION},
      {"KV_CACHE", v1::GraphTensor::KIND_STATE},   {"IO_INPUT", v1::GraphTensor::KIND_INPUT},
      {"IO_OUTPUT", v1::GraphTensor::KIND_OUTPUT}, {"CONST", v1::GraphTensor::KIND_CONST}};
  const Json& kind = Field(json, "kind");
  const KindName* const found =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const KindName& candidate) {
        return kind.is_string() && kind.get<std::string>() == candidate.name;
      });
  if (found == std::end(kKinds)) return Refuse("its kind is unknown");

  const Json& dtype = Field(json, "dtype");
  size_t type = 0;
  while (type < kFileTypes &&
         !(dtype.is_string() && dtype.get<std::string>() == kTypeNames[type])) {
    ++type;
  }
  if (type == kFileTypes) return Refuse("its dtype is unknown");

  Operand buffer;
  buffer.type = static_cast<Type>(type);
  ASSIGN_OR_RETURN(buffer.shape, ParseShape(Field(json, "shape")));
  if (buffer.type == Type::kI4) {
    // The file has the shape in weights; two of them share a byte.
    if (buffer.shape.empty() || buffer.shape.back() % 2 != 0) {
      return Refuse("its last dimension is odd, and two I4 elements share a byte");
    }
    buffer.shape.back() /= 2;
  }
  buffer.strides = DenseStrides(buffer.shape);
  buffer.tensor = UniqueName(name.is_string() ? name.get<std::string>() : "", index);
  buffers_.push_back(buffer);
  if (kDTypes[type] == v1::DTYPE_UNSPECIFIED) {
    // A task that uses it is refused.
    Note(StrCat("buffer ", index, " is left out: its dtype ", TypeName(buffer.type),
                " does not exist here"));
    return absl::OkStatus();
  }
  v1::GraphTensor& tensor = *result_.graph.add_tensors();
  tensor.set_name(buffer.tensor);
  tensor.set_kind(found->kind);
  tensor.set_dtype(kDTypes[type]);
  for (const int64_t size : buffer.shape) tensor.add_shape()->set_size(size);
  return absl::OkStatus();
}

absl::Status Importer::ReadCounters(const Json& list) {
  if (list.is_null()) return absl::OkStatus();
  if (!list.is_array()) return Refuse("'counters' is not an array");
  if (list.size() > graph::kMaxCounters) {
    return Refuse(StrCat("there are ", list.size(), " counters; at most ", graph::kMaxCounters));
  }
  counters_ = list.size();
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string what = StrCat("counter ", i);
    if (!list[i].is_object()) return Refuse(StrCat(what, ": it is not an object"));
    if (Integer(Field(list[i], "id")) != static_cast<int64_t>(i)) {
      return Refuse(StrCat(what, ": its id is not its index"));
    }
    v1::GraphCounter& counter = *result_.graph.add_counters();
    const Json& initial = Field(list[i], "init");
    if (initial.is_null()) continue;
    ASSIGN_OR_RETURN(const uint32_t value, Index(initial, StrCat(what, ": its init")));
    counter.set_initial(value);
  }
  return absl::OkStatus();
}

absl::Status Importer::ReadTasks(const Json& list) {
  if (!list.is_array()) return Refuse("'tasks' is not an array");
  if (list.size() > graph::kMaxNodes) {
    return Refuse(StrCat("there are ", list.size(), " tasks; at most ", graph::kMaxNodes));
  }
  tasks_.resize(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (absl::Status status = ReadTask(list[i], i, &tasks_[i]); !status.ok()) {
      return Refuse(StrCat("task ", i, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status Importer::ReadTask(const Json& json, size_t index, Task* task) {
  if (!json.is_object()) return Refuse("it is not an object");
  if (Integer(Field(json, "id")) != static_cast<int64_t>(index)) {
    return Refuse("its id is not its index");
  }
  const Json& name = Field(json, "op");
  const std::optional<Op> op =
      name.is_string() ? FindOp(name.get<std::string>()) : std::optional<Op>();
  if (!op.has_value()) {
    return Refuse(name.is_string()
                      ? StrCat("the opcode ", Quoted(name.get<std::string>()), " is unknown")
                      : std::string("its op is not the name of an opcode"));
  }
  task->op = *op;
  const OpInfo& info = GetOpInfo(*op);
  for (const bool input : {true, false}) {
    const char* const what = input ? "inputs" : "outputs";
    const Json& ids = Field(json, what);
    if (!ids.is_array()) return Refuse(StrCat("(", info.name, "): '", what, "' is not an array"));
    const size_t min = input ? info.min_inputs : (*op == Op::kNop ? 0 : 1);
    const size_t max = input ? info.max_inputs : min;
    if (ids.size() < min || ids.size() > max) {
      return Refuse(StrCat("(", info.name, "): it has ", ids.size(), " ", what, "; expected ", min,
                           min == max ? "" : StrCat(" to ", max)));
    }
    for (const Json& id : ids) {
      ASSIGN_OR_RETURN(const uint32_t buffer,
                       Index(id, StrCat("(", info.name, "): a buffer's id")));
      if (buffer >= buffers_.size()) {
        return Refuse(StrCat("(", info.name, "): buffer ", buffer, " does not exist"));
      }
      (input ? task->inputs : task->outputs).push_back(buffer);
    }
  }
  ASSIGN_OR_RETURN(task->out_counter,
                   Index(Field(json, "out_counter"), StrCat("(", info.name, "): its out_counter")));
  const Json& waits = Field(json, "waits");
  if (!waits.is_null() && !waits.is_array()) {
    return Refuse(StrCat("(", info.name, "): 'waits' is not an array"));
  }
  for (const Json& wait : waits) {
    if (!wait.is_object()) return Refuse(StrCat("(", info.name, "): a wait is not an object"));
    ASSIGN_OR_RETURN(const uint32_t counter,
                     Index(Field(wait, "counter"), StrCat("(", info.name, "): a wait's counter")));
    ASSIGN_OR_RETURN(
        const uint32_t threshold,
        Index(Field(wait, "threshold"), StrCat("(", info.name, "): a wait's threshold")));
    if (threshold == 0) {
      return Refuse(StrCat("(", info.name, "): a wait's threshold is 0; it is at least 1"));
    }
    task->waits.emplace_back(counter, threshold);
  }
  if (const Json& sm = Field(json, "sm"); !sm.is_null()) {
    ASSIGN_OR_RETURN(task->sm, Index(sm, StrCat("(", info.name, "): its sm")));
  }
  task->params = &Field(json, "params");
  if (!task->params->is_null() && !task->params->is_object()) {
    return Refuse(StrCat("(", info.name, "): 'params' is not an object"));
  }
  return absl::OkStatus();
}

absl::Status Importer::ReadBlocks(const Json& target) {
  size_t assigned = 0;
  uint32_t blocks = 0;
  for (const Task& task : tasks_) {
    if (!task.sm.has_value()) continue;
    ++assigned;
    blocks = std::max(blocks, *task.sm + 1);
  }
  if (assigned == 0) return absl::OkStatus();
  if (assigned < tasks_.size()) {
    Note(StrCat("the assignment to SMs is left out: ", tasks_.size() - assigned, " of ",
                tasks_.size(), " tasks have none"));
    return absl::OkStatus();
  }
  if (!target.is_null()) {
    if (!target.is_object()) return Refuse("'target' is not an object");
    ASSIGN_OR_RETURN(blocks, Index(Field(target, "num_sms"), "the target's num_sms"));
  }
  assigned_ = true;
  result_.graph.set_blocks(blocks);
  return absl::OkStatus();
}

std::vector<uint32_t> Importer::SortTasks() const {
  const size_t count = tasks_.size();
  // A counter is complete when all tasks that increment it have ended.
  std::vector<uint32_t> producers(counters_, 0);
  for (const Task& task : tasks_) {
    if (task.out_counter < counters_) ++producers[task.out_counter];
  }
  std::vector<std::vector<uint32_t>> waiters(counters_);
  std::vector<uint32_t> missing(count, 0);
  std::vector<uint32_t> next_in_block(count, graph::kMaxNodes);
  std::unordered_map<uint32_t, uint32_t> last_in_block;
  for (uint32_t i = 0; i < count; ++i) {
    for (const auto& [counter, threshold] : tasks_[i].waits) {
      if (counter >= counters_ || producers[counter] == 0) continue;
      waiters[counter].push_back(i);
      ++missing[i];
    }
    if (!assigned_) continue;
    const auto [last, first] = last_in_block.emplace(*tasks_[i].sm, i);
    if (!first) {
      next_in_block[last->second] = i;
      last->second = i;
      ++missing[i];
    }
  }
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ready;
  for (uint32_t i = 0; i < count; ++i) {
    if (missing[i] == 0) ready.push(i);
  }
  std::vector<uint32_t> order;
  order.reserve(count);
  while (!ready.empty()) {
    const uint32_t i = ready.top();
    ready.pop();
    order.push_back(i);
    const auto release = [&](uint32_t task) {
      if (--missing[task] == 0) ready.push(task);
    };
    if (next_in_block[i] < count) release(next_in_block[i]);
    const uint32_t counter = tasks_[i].out_counter;
    if (counter >= counters_ || --producers[counter] != 0) continue;
    for (const uint32_t waiter : waiters[counter]) release(waiter);
  }
  if (order.size() == count) return order;
  order.clear();
  for (uint32_t i = 0; i < count; ++i) order.push_back(i);
  return order;
}

absl::Status Importer::CheckParams(Op op, const Params& params) {
  for (std::string_view rest = GetOpInfo(op).required; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    const std::string key(rest.substr(0, end));
    if (!params.Has(key.c_str())) return Refuse(StrCat("the parameter '", key, "' is missing"));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (!params.json().is_object()) return absl::OkStatus();
  for (const auto& [key, value] : params.json().items()) {
    if (!IsKnownParam(key)) {
      Note(StrCat("task ", task_, " (", GetOpInfo(op).name, "): the unknown parameter ",
                  Quoted(key), " has no effect"));
    }
  }
  return absl::OkStatus();
}

void Importer::Finish(uint32_t index) {
  const Task& task = tasks_[index];
  v1::Graph& graph = result_.graph;
  const std::string name = StrCat("task", index, ".", GetOpInfo(task.op).name);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    v1::GraphNode& node = nodes_[i];
    node.set_name(nodes_.size() == 1 ? name : StrCat(name, ".", i));
    // The nodes of a task follow each other: each waits for a counter of the one before it.
    if (i == 0) {
      for (const auto& [counter, threshold] : task.waits) {
        v1::GraphWait& wait = *node.add_waits();
        wait.set_counter(counter);
        wait.set_threshold(threshold);
      }
    } else {
      v1::GraphWait& wait = *node.add_waits();
      wait.set_counter(static_cast<uint32_t>(graph.counters_size()) - 1);
      wait.set_threshold(1);
    }
    if (i + 1 == nodes_.size()) {
      node.set_signals(task.out_counter);
    } else {
      node.set_signals(static_cast<uint32_t>(graph.counters_size()));
      graph.add_counters();
    }
    if (assigned_) node.set_block(*task.sm);
    *graph.add_nodes() = std::move(node);
  }
}

absl::Status Importer::ConvertTask(uint32_t index) {
  const Task& task = tasks_[index];
  task_ = index;
  temporaries_ = 0;
  nodes_.clear();
  const Params params(*task.params);
  RETURN_IF_ERROR(CheckParams(task.op, params));
  if (task.op == Op::kNop) {
    // A node has to call an operator: the one with the least work, on memory of its own.
    Call("zero", {Temporary(Type::kU8, {1})});
  } else {
    Operands inputs;
    for (const uint32_t id : task.inputs) {
      ASSIGN_OR_RETURN(Operand input, BufferOperand(id));
      inputs.push_back(std::move(input));
    }
    ASSIGN_OR_RETURN(const Operand out, BufferOperand(task.outputs[0]));
    RETURN_IF_ERROR(Lower(task.op, inputs, out, params, /*scratch=*/false));
  }
  if (result_.graph.nodes_size() + nodes_.size() > graph::kMaxNodes) {
    return Refuse(StrCat("the graph has more than ", graph::kMaxNodes, " nodes"));
  }
  Finish(index);
  return absl::OkStatus();
}

absl::StatusOr<AmkGraph> Importer::Import(const Json& file) {
  if (!file.is_object()) return Refuse("the file is not an object");
  RETURN_IF_ERROR(ReadVersions(file));
  v1::Graph& graph = result_.graph;
  graph.set_format(graph::kFormat);
  if (const Json& meta = Field(file, "meta"); meta.is_object()) {
    const Json& name = Field(meta, "name");
    if (name.is_string() && name.get<std::string>().size() <= graph::kMaxNameBytes) {
      graph.set_name(name.get<std::string>());
    }
  }
  RETURN_IF_ERROR(ReadBuffers(Field(file, "buffers")));
  RETURN_IF_ERROR(ReadCounters(Field(file, "counters")));
  RETURN_IF_ERROR(ReadTasks(Field(file, "tasks")));
  RETURN_IF_ERROR(ReadBlocks(Field(file, "target")));
  if (!Field(file, "pages").is_null()) {
    Note("the allocation of pages is left out: each buffer has memory of its own");
  }
  // Counters that the importer adds follow those of the file, so that a task that signals a counter
  // that does not exist must be refused here.
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const Task& task = tasks_[i];
    const auto fail = [&](const std::string& what) {
      return Refuse(StrCat("task ", i, " (", GetOpInfo(task.op).name, "): ", what));
    };
    if (task.out_counter >= counters_) {
      return fail(StrCat("it increments counter ", task.out_counter, ", which does not exist"));
    }
    for (const auto& [counter, threshold] : task.waits) {
      if (counter >= counters_) {
        return fail(StrCat("it waits for counter ", counter, ", which does not exist"));
      }
    }
  }
  for (const uint32_t index : SortTasks()) {
    if (absl::Status status = ConvertTask(index); !status.ok()) {
      return Refuse(
          StrCat("task ", index, " (", GetOpInfo(tasks_[index].op).name, "): ", status.message()));
    }
  }
  return std::move(result_);
}

}  // namespace amk

absl::StatusOr<AmkGraph> ImportAmk(const std::string& path, const std::string& text) {
  const absl::StatusOr<amk::Json> file = amk::ParseFile(text);
  absl::StatusOr<AmkGraph> imported =
      file.ok() ? amk::Importer().Import(*file) : absl::StatusOr<AmkGraph>(file.status());
  if (imported.ok()) return imported;
  return amk::Refuse(
      StrCat(path, ": ", imported.status().message(),
             ". Fix: correct the file; docs/graph_amk.md lists what can be imported"));
}

absl::StatusOr<std::string> GraphJson(const v1::Graph& graph) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(graph, &text, options);
  if (!status.ok()) {
    return absl::InternalError(std::string(status.message().data(), status.message().size()));
  }
  return text;
}

}  // namespace resident::cli
