#include "server/graphs/graph_binding.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/graphs/errors.h"

namespace resident {

using absl::StrCat;
using graph::TensorKind;

GraphBinder::GraphBinder(const Core& core, const Client& client, const graph::Graph& graph,
                         std::optional<uint32_t> device)
    : core_(core), client_(client), graph_(graph) {
  memory_.places.resize(graph.tensors.size());
  memory_.bound.resize(graph.tensors.size());
  memory_.device = device;
}

absl::Status GraphBinder::UseSession(const GraphSessionState& session) {
  assert(used_.empty() && memory_.writes.empty());
  if (memory_.device.value_or(session.device) != session.device) {
    return errors::GraphSessionOnOtherDevice(session.device, *memory_.device);
  }
  session_ = &session;
  memory_.device = session.device;
  for (uint32_t i = 0; i < graph_.tensors.size(); ++i) {
    if (session.places[i].buffer == 0) continue;
    memory_.places[i] = session.places[i];
    memory_.bound[i] = true;
    // A buffer with a state is represented by the state, since states are written.
    uint32_t& first = used_.try_emplace(session.places[i].buffer, i).first->second;
    if (!graph::IsReadOnly(graph_.tensors[i].kind)) first = i;
  }
  return absl::OkStatus();
}

absl::Status GraphBinder::BindAll(google::protobuf::RepeatedPtrField<v1::GraphBinding>& bindings) {
  absl::flat_hash_map<std::string_view, uint32_t> by_name;
  for (uint32_t i = 0; i < graph_.tensors.size(); ++i) by_name[graph_.tensors[i].name] = i;
  for (v1::GraphBinding& binding : bindings) {
    const auto found = by_name.find(binding.tensor());
    if (found == by_name.end()) {
      return errors::BadBinding(binding.tensor(), "the graph has no such tensor",
                                "correct the name");
    }
    RETURN_IF_ERROR(Bind(binding, found->second));
  }
  return absl::OkStatus();
}

absl::Status GraphBinder::Bind(v1::GraphBinding& binding, uint32_t tensor) {
  const TensorKind kind = graph_.tensors[tensor].kind;
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    return errors::BadBinding(binding.tensor(), what, fix);
  };
  if (opens_session_ && (kind == TensorKind::kInput || kind == TensorKind::kOutput)) {
    return refuse(StrCat("it is ", graph::KindText(kind)), "bind it in each run");
  }
  if (graph_.tensors[tensor].root != tensor) {
    return refuse("it is an alias", "bind the tensor whose memory it uses");
  }
  if (kind == TensorKind::kActivation || kind == TensorKind::kStream) {
    return refuse(StrCat("it is ", graph::KindText(kind)), "bind tensors of other kinds");
  }
  if (session_ != nullptr && session_->places[tensor].buffer != 0) {
    return refuse("its memory belongs to the graph session",
                  "omit the binding, or bind it when the session is opened");
  }
  if (memory_.bound[tensor]) return refuse("it is bound twice", "bind it once");
  if (binding.memory_case() == v1::GraphBinding::kBufferId) {
    ASSIGN_OR_RETURN(const auto buffer, core_.buffers.Find(client_.id(), binding.buffer_id()));
    return UseBuffer(tensor, *buffer);
  }
  if (binding.memory_case() != v1::GraphBinding::kData) {
    return refuse("it has neither data nor a buffer", "set one of them");
  }
  if (kind == TensorKind::kOutput) {
    return refuse("it is an output and has data", "bind a buffer, or omit the binding");
  }
  const auto bytes = static_cast<uint64_t>(graph_.root_bytes[tensor]);
  if (binding.data().size() != bytes) {
    return refuse(
        StrCat("it has ", binding.data().size(), " bytes of data, and its memory has ", bytes),
        "send all of its elements");
  }
  memory_.writes.emplace_back(tensor, std::move(*binding.mutable_data()));
  memory_.bound[tensor] = true;
  return absl::OkStatus();
}

absl::Status GraphBinder::BindByName(bool inputs) {
  absl::flat_hash_map<std::string, std::vector<std::shared_ptr<const Buffer>>> buffers;
  bool listed = false;
  for (uint32_t i = 0; i < graph_.tensors.size(); ++i) {
    const graph::Tensor& tensor = graph_.tensors[i];
    if (tensor.root != i || memory_.bound[i] || !graph::IsReadOnly(tensor.kind)) continue;
    const std::string name(tensor.name);
    if (tensor.kind == TensorKind::kInput) {
      if (!inputs) continue;
      return errors::NotBound(graph::KindText(tensor.kind), name, "bind data or a buffer");
    }
    if (!std::exchange(listed, true)) {
      for (auto& buffer : core_.buffers.List(client_.id())) {
        if (!buffer->name.empty()) buffers[buffer->name].push_back(std::move(buffer));
      }
    }
    // A buffer of this client is preferred to those of others, which are durable.
    const Buffer* chosen = nullptr;
    const Buffer* second = nullptr;
    for (const auto& buffer : buffers[name]) {
      if (memory_.device.value_or(buffer->device) != buffer->device) continue;
      const bool own = buffer->owner == client_.id();
      const bool chosen_is_own = chosen != nullptr && chosen->owner == client_.id();
      if (chosen == nullptr || (own && !chosen_is_own)) {
        chosen = buffer.get();
        second = nullptr;
      } else if (own == chosen_is_own) {
        second = buffer.get();
      }
    }
    if (chosen == nullptr) {
      return errors::NotBound(graph::KindText(tensor.kind), name,
                              "bind data or a buffer, or load a buffer of this name");
    }
    if (second != nullptr) return errors::AmbiguousBufferName(name, chosen->id, second->id);
    RETURN_IF_ERROR(UseBuffer(i, *chosen));
  }
  return absl::OkStatus();
}

absl::Status GraphBinder::UseBuffer(uint32_t tensor, const Buffer& buffer) {
  const auto bytes = static_cast<uint64_t>(graph_.root_bytes[tensor]);
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    return errors::BadBinding(graph_.TensorName(tensor), what, fix);
  };
  if (buffer.size_bytes < bytes) {
    return refuse(
        StrCat("buffer ", buffer.id, " has ", buffer.size_bytes, " bytes, and it needs ", bytes),
        "use a larger buffer");
  }
  if (memory_.device.value_or(buffer.device) != buffer.device) {
    return refuse(StrCat("buffer ", buffer.id, " is on device ", buffer.device,
                         ", and the run is on device ", *memory_.device),
                  "use buffers of one device");
  }
  // The order of the nodes is derived for tensors that have no memory in common.
  const bool writable = !graph::IsReadOnly(graph_.tensors[tensor].kind);
  const auto [other, is_new] = used_.try_emplace(buffer.id, tensor);
  if (!is_new && (writable || !graph::IsReadOnly(graph_.tensors[other->second].kind))) {
    return refuse(StrCat("buffer ", buffer.id, " is also the memory of tensor '",
                         graph_.TensorName(other->second), "', and one of them is written"),
                  "use a buffer for each, or aliases of one tensor");
  }
  memory_.device = buffer.device;
  memory_.places[tensor] = {buffer.id, 0};
  memory_.bound[tensor] = true;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::optional<double>>> BindScalars(
    const graph::Graph& graph, const google::protobuf::Map<std::string, double>& given,
    const std::vector<std::optional<double>>* base) {
  std::vector<std::optional<double>> values;
  size_t used = 0;
  for (size_t i = 0; i < graph.scalars.size(); ++i) {
    const graph::Scalar& scalar = graph.scalars[i];
    const std::string name(scalar.name);
    const auto found = given.find(name);
    const bool is_given = found != given.end();
    used += is_given;
    values.push_back(is_given          ? std::optional(found->second)
                     : base != nullptr ? (*base)[i]
                                       : scalar.initial);
    if (!values.back().has_value()) continue;
    const double value = *values.back();
    if (!(value >= scalar.min && value <= scalar.max)) {
      return errors::BadRunScalar(
          name, StrCat("is ", value, " and may be ", scalar.min, " to ", scalar.max),
          "give a value in this range");
    }
    if (scalar.dtype != DType::kF32 && std::trunc(value) != value) {
      return errors::BadRunScalar(name, StrCat("is ", value, " and its type is i64"),
                                  "give a whole number");
    }
  }
  if (used == given.size()) return values;
  for (const auto& each : given) {
    const bool known =
        std::any_of(graph.scalars.begin(), graph.scalars.end(),
                    [&](const graph::Scalar& scalar) { return scalar.name == each.first; });
    if (!known) return errors::BadRunScalar(each.first, "is not in the graph", "correct the name");
  }
  return values;
}

}  // namespace resident
