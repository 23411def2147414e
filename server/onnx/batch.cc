#include "server/onnx/batch.h"

#include <cassert>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/status_macros.h"
#include "server/onnx/lowering.h"
#include "server/onnx/nodes/graph_writer.h"
#include "server/onnx/nodes/model_error.h"

namespace resident::onnx {

using absl::StrCat;
using errors::Quote;
using google::protobuf::util::MessageDifferencer;

namespace {

using Shape = google::protobuf::RepeatedPtrField<v1::GraphDim>;

absl::StatusOr<ImportedModel> Lower(const CheckedModel& model,
                                    const std::map<std::string, int64_t>& sizes,
                                    MappingChoices* choices) {
  ImportedModel imported;
  Lowering lowering(model, sizes, choices);
  lowering.Run(&imported);
  if (lowering.report().findings.empty()) return imported;
  const Finding& first = lowering.report().findings[0];
  return absl::InvalidArgumentError(StrCat(first.code, ": ", first.message));
}

// Marks the dimensions of a graph that differ from those of the graph of another batch size.
class Comparison {
 public:
  Comparison(const std::string& batch, int64_t size, v1::Graph* graph)
      : batch_(batch), size_(size), graph_(*graph) {}

  // `other`: the graph of the batch size `size`.
  absl::Status Add(const v1::Graph& other, int64_t size) {
    if (graph_.tensors_size() != other.tensors_size() ||
        graph_.nodes_size() != other.nodes_size()) {
      return Refuse("the number of nodes of the graph");
    }
    for (int i = 0; i < graph_.tensors_size(); ++i) {
      const std::string place = StrCat("tensor ", Quote(graph_.tensors(i).name()));
      v1::GraphTensor own = graph_.tensors(i), theirs = other.tensors(i);
      RETURN_IF_ERROR(
          Mark(place, {i, -1}, /*outermost_only=*/true, theirs.shape(), size, own.shape()));
      own.clear_shape();
      theirs.clear_shape();
      if (!MessageDifferencer::Equals(own, theirs)) return Refuse(place);
    }
    for (int i = 0; i < graph_.nodes_size(); ++i) {
      const std::string place = StrCat("node ", Quote(graph_.nodes(i).name()));
      v1::GraphNode own = graph_.nodes(i), theirs = other.nodes(i);
      if (own.arguments_size() != theirs.arguments_size()) return Refuse(place);
      for (int j = 0; j < own.arguments_size(); ++j) {
        if (!own.arguments(j).has_tensor() || !theirs.arguments(j).has_tensor()) continue;
        v1::GraphView& view = *own.mutable_arguments(j)->mutable_tensor();
        v1::GraphView& their_view = *theirs.mutable_arguments(j)->mutable_tensor();
        RETURN_IF_ERROR(
            Mark(place, {i, j}, /*outermost_only=*/false, their_view.shape(), size, view.shape()));
        view.clear_shape();
        their_view.clear_shape();
      }
      if (!MessageDifferencer::Equals(own, theirs)) return Refuse(place);
    }
    ++graphs_;
    return absl::OkStatus();
  }

  // A dimension of size 1 is special: other strides and views have the same elements. So the graph
  // of this size must have the same nodes with the same scalars, tensors, offsets and weights.
  absl::Status CheckSmallest(const ImportedModel& single,
                             const std::vector<Weight>& weights) const {
    if (single.graph.nodes_size() != graph_.nodes_size()) return Refuse("the number of nodes");
    for (int i = 0; i < graph_.nodes_size(); ++i) {
      const std::string place = StrCat("node ", Quote(graph_.nodes(i).name()));
      v1::GraphNode own = graph_.nodes(i), theirs = single.graph.nodes(i);
      for (v1::GraphNode* const node : {&own, &theirs}) {
        for (v1::GraphArgument& argument : *node->mutable_arguments()) {
          if (!argument.has_tensor()) continue;
          v1::GraphView& view = *argument.mutable_tensor();
          view.clear_shape();
          view.clear_strides();
          view.clear_scalar_shape();
        }
      }
      if (!MessageDifferencer::Equals(own, theirs)) return Refuse(place);
    }
    std::map<std::string_view, std::string_view> contents;
    for (const Weight& weight : weights) contents[weight.tensor] = *weight.bytes;
    for (const Weight& weight : single.weights) {
      const auto found = contents.find(weight.tensor);
      if (found == contents.end() || found->second != *weight.bytes) {
        return Refuse(StrCat("weight ", Quote(weight.tensor)));
      }
    }
    return absl::OkStatus();
  }

  // Replaces what is marked by the scalar. A mark that only some graphs have is an error.
  absl::Status Apply(const std::string& scalar) {
    for (const auto& [at, count] : marks_) {
      if (count != graphs_) return Refuse("a size of the graph");
      const auto [element, argument, d] = at;
      v1::GraphDim* const dim = argument < 0 ? graph_.mutable_tensors(element)->mutable_shape(d)
                                             : graph_.mutable_nodes(element)
                                                   ->mutable_arguments(argument)
                                                   ->mutable_tensor()
                                                   ->mutable_shape(d);
      dim->clear_size();
      dim->set_scalar(scalar);
    }
    return absl::OkStatus();
  }

 private:
  // A tensor and -1, or a node and its argument.
  struct Place {
    int element;
    int argument;
  };

  absl::Status Mark(const std::string& place, Place at, bool outermost_only, const Shape& other,
                    int64_t other_size, const Shape& own) {
    if (own.size() != other.size()) return Refuse(place);
    for (int d = 0; d < own.size(); ++d) {
      if (own[d].size() == other[d].size()) continue;
      const bool is_batch = own[d].size() == size_ && other[d].size() == other_size;
      if (!is_batch || (outermost_only && d != 0)) return Refuse(place);
      ++marks_[std::make_tuple(at.element, at.argument, d)];
    }
    return absl::OkStatus();
  }

  absl::Status Refuse(const std::string& what) const {
    return ModelError(302, StrCat("dimension ", Quote(batch_), " cannot remain dynamic: ", what,
                                  " depends on it in another way than by its outermost dimension. "
                                  "Fix: give its size"));
  }

  const std::string& batch_;
  const int64_t size_;
  v1::Graph& graph_;
  int graphs_ = 0;
  std::map<std::tuple<int, int, int>, int> marks_;
};

}  // namespace

absl::StatusOr<ImportedModel> SpecializeBatch(const CheckedModel& model, const Sizes& sizes) {
  assert(sizes.sizes.size() == model.symbols.size() && sizes.sizes.contains(sizes.batch));
  const int64_t size = sizes.sizes.at(sizes.batch);
  MappingChoices choices;
  choices.keeps_batch = true;
  ASSIGN_OR_RETURN(ImportedModel imported, Lower(model, sizes.sizes, &choices));
  if (size == 1) return imported;
  Comparison comparison(sizes.batch, size, &imported.graph);
  choices.repeats = true;
  for (const int64_t other : std::set<int64_t>{2, 3, size - 1, size + 1}) {
    if (other == size || other < 2) continue;
    std::map<std::string, int64_t> other_sizes = sizes.sizes;
    other_sizes[sizes.batch] = other;
    choices.next = 0;
    ASSIGN_OR_RETURN(const ImportedModel compared, Lower(model, other_sizes, &choices));
    RETURN_IF_ERROR(comparison.Add(compared.graph, other));
  }
  std::map<std::string, int64_t> smallest = sizes.sizes;
  smallest[sizes.batch] = 1;
  choices.next = 0;
  ASSIGN_OR_RETURN(const ImportedModel single, Lower(model, smallest, &choices));
  RETURN_IF_ERROR(comparison.CheckSmallest(single, imported.weights));
  const std::string scalar = GraphName(sizes.batch);
  RETURN_IF_ERROR(comparison.Apply(scalar));
  v1::GraphScalar& declared = *imported.graph.add_scalars();
  declared.set_name(scalar);
  declared.set_dtype(v1::DTYPE_I64);
  declared.set_least(1);
  declared.set_most(static_cast<double>(size));
  imported.batch_scalar = scalar;
  for (auto* const specs : {&imported.inputs, &imported.outputs}) {
    for (TensorSpec& spec : *specs) {
      for (const v1::GraphTensor& tensor : imported.graph.tensors()) {
        if (tensor.name() != spec.tensor || tensor.shape_size() == 0) continue;
        if (tensor.shape(0).scalar() == scalar) spec.shape[0] = {0, sizes.batch};
      }
    }
  }
  return imported;
}

}  // namespace resident::onnx
