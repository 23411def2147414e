// Binds a graph to what a request and a graph session give it: memory of its tensors, and values of
// its scalars.
//
// Thread safety: none; one object belongs to one call.
//
//   GraphBinder binder(core, *client, graph, device);
//   RETURN_IF_ERROR(binder.BindAll(*request.mutable_bindings()));
//   RETURN_IF_ERROR(binder.BindByName(/*inputs=*/true));
//   GraphMemory memory = binder.Take();
#ifndef RESIDENT_SERVER_GRAPHS_GRAPH_BINDING_H_
#define RESIDENT_SERVER_GRAPHS_GRAPH_BINDING_H_

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "google/protobuf/map.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/graph/graph.h"
#include "server/core/core.h"
#include "server/graphs/graph_sessions.h"
#include "server/graphs/graph_tasks.h"

namespace resident {

// Memory of the tensors of a graph.
struct GraphMemory {
  // By tensor; `bound`: whether its memory is known, or its contents.
  std::vector<GraphPlace> places;
  std::vector<bool> bound;
  // Tensors whose contents are sent.
  std::vector<std::pair<uint32_t, std::string>> writes;
  // Nullopt: any.
  std::optional<uint32_t> device;
};

class GraphBinder {
 public:
  // `device`: the one that is requested. All arguments must outlive this object.
  GraphBinder(const Core& core, const Client& client, const graph::Graph& graph,
              std::optional<uint32_t> device);

  // Uses the memory of a session. REQUIRES: called before the others. INVALID_ARGUMENT: another
  // device is wanted.
  absl::Status UseSession(const GraphSessionState& session);
  // Binds for a graph session that is opened: BindAll refuses inputs and outputs, which each run
  // binds. REQUIRES: called before the others.
  void OpenSession() {
    assert(used_.empty() && memory_.writes.empty());
    opens_session_ = true;
  }
  // Takes the data out of `bindings`. Errors: INVALID_ARGUMENT (a binding that does not fit),
  // NOT_FOUND (a buffer).
  absl::Status BindAll(google::protobuf::RepeatedPtrField<v1::GraphBinding>& bindings);
  // Binds weights and constants that are not bound to the buffers that have their names.
  // `inputs`: whether inputs must be bound by now. Errors: INVALID_ARGUMENT (no such buffer, or
  // several; an input is not bound).
  absl::Status BindByName(bool inputs);

  GraphMemory Take() { return std::move(memory_); }

 private:
  absl::Status Bind(v1::GraphBinding& binding, uint32_t tensor);
  absl::Status UseBuffer(uint32_t tensor, const Buffer& buffer);

  const Core& core_;
  const Client& client_;
  const graph::Graph& graph_;
  GraphMemory memory_;
  const GraphSessionState* session_ = nullptr;
  bool opens_session_ = false;
  // The first tensor of each buffer.
  absl::flat_hash_map<uint64_t, uint32_t> used_;
};

// The values of all scalars, by index: those in `given`, or else in `base`; nullopt: neither has
// it. Without `base`, the scalars' initial values. INVALID_ARGUMENT: a name that the graph does not
// have, or a value that a scalar cannot have.
absl::StatusOr<std::vector<std::optional<double>>> BindScalars(
    const graph::Graph& graph, const google::protobuf::Map<std::string, double>& given,
    const std::vector<std::optional<double>>* base);

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPH_BINDING_H_
