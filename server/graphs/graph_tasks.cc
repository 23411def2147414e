#include "server/graphs/graph_tasks.h"

#include "runtime/graph/region.h"
#include "runtime/graph/values.h"
#include "runtime/model/dtype.h"

namespace resident {
namespace {

using Kind = graph::Argument::Kind;

v1::OperatorTasks* StartTask(const std::string& op, uint32_t version, v1::Batch* batch) {
  v1::OperatorTasks* const tasks = batch->mutable_tasks();
  tasks->set_operator_(op);
  tasks->set_version(version);
  tasks->set_count(1);
  return tasks;
}

}  // namespace

void GraphTasks::FillColumn(uint32_t tensor, const graph::View& view,
                            absl::Span<const double> values, v1::BufferColumn* column) const {
  const GraphPlace& place = places_[graph_.tensors[tensor].root];
  column->add_buffer_ids(place.buffer);
  column->add_offsets(place.offset + static_cast<uint64_t>(view.offset));
  column->set_dtype(static_cast<v1::DType>(view.dtype));
  column->set_scalar_shape(view.rank == 0);
  const graph::Extents extents = graph::ExtentsAt(graph_, view, values);
  for (const graph::Extent& extent : extents) {
    column->add_shape(static_cast<uint64_t>(extent.size));
  }
  // Dense tensors are sent without strides, because more parameters and faster paths accept them.
  const int64_t element = SizeOf(view.dtype);
  if (graph::IsDense(extents, static_cast<uint32_t>(element))) return;
  for (const graph::Extent& extent : extents) column->add_strides(extent.stride / element);
}

v1::Batch GraphTasks::Node(uint32_t node, absl::Span<const double> values) const {
  const graph::Node& call = graph_.nodes[node];
  const graph::OperatorInfo& op = graph_.operators[call.op];
  v1::Batch batch;
  v1::OperatorTasks* const tasks = StartTask(op.name, op.wanted_version, &batch);
  for (size_t i = 0; i < call.argument_count; ++i) {
    const graph::Argument& argument = graph_.ArgumentsOf(call)[i];
    const Parameter& parameter = op.signature.parameters()[i];
    v1::Column* const column = tasks->add_arguments();
    switch (argument.kind) {
      case Kind::kTensor:
        FillColumn(argument.tensor, argument.view, values, column->mutable_buffer());
        break;
      case Kind::kNoTensor:
        column->mutable_inline_()->set_dtype(static_cast<v1::DType>(parameter.dtypes[0]));
        column->mutable_inline_()->add_shape(0);
        break;
      case Kind::kInteger:
        column->mutable_scalar()->add_i64(argument.integer);
        break;
      case Kind::kFloat:
        column->mutable_scalar()->add_f64(argument.number);
        break;
      case Kind::kExpression: {
        const graph::ScalarExpression& expression = graph_.expressions[argument.expression];
        const double value = graph::Evaluate(expression, values);
        if (IsFloat(parameter.dtypes[0])) {
          column->mutable_scalar()->add_f64(value);
        } else {
          column->mutable_scalar()->add_i64(static_cast<int64_t>(value));
        }
        break;
      }
    }
  }
  return batch;
}

v1::Batch GraphTasks::Read(uint32_t tensor, absl::Span<const double> values) const {
  const graph::View& view = graph_.tensors[tensor].view;
  v1::Batch batch;
  v1::OperatorTasks* const tasks = StartTask("copy", 0, &batch);
  FillColumn(tensor, view, values, tasks->add_arguments()->mutable_buffer());
  v1::ReturnedColumn* const returned = tasks->add_arguments()->mutable_returned();
  returned->set_dtype(static_cast<v1::DType>(view.dtype));
  *returned->mutable_shape() = tasks->arguments(0).buffer().shape();
  return batch;
}

v1::GraphValue GraphTasks::Describe(uint32_t tensor, absl::Span<const double> values) const {
  const graph::Tensor& described = graph_.tensors[tensor];
  v1::GraphValue value;
  value.set_tensor(std::string(described.name));
  value.set_dtype(static_cast<v1::DType>(described.view.dtype));
  for (const graph::Extent& extent : graph::ExtentsAt(graph_, described.view, values)) {
    value.add_shape(static_cast<uint64_t>(extent.size));
  }
  return value;
}

}  // namespace resident
