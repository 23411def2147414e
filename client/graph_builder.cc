#include "client/graph_builder.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "client/errors.h"
#include "client/graph_builder_call.h"

namespace resident::client {
namespace {

using Kind = v1::GraphTensor;

constexpr size_t kMaxErrors = 100;
// More elements than a graph may have bytes. Sizes and offsets stop growing here; the daemon
// refuses the graph.
constexpr int64_t kTooMany = int64_t{1} << 60;

int64_t Multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return (a < 0) == (b < 0) ? kTooMany : -kTooMany;
  return std::clamp(product, -kTooMany, kTooMany);
}

int64_t Add(int64_t a, int64_t b) { return std::clamp(a + b, -kTooMany, kTooMany); }

}  // namespace

GraphBuilder::GraphBuilder(std::string name) {
  graph_.set_name(std::move(name));
  graph_.set_format(1);
}

GraphBuilder::GraphBuilder(std::string name, Client& client) : GraphBuilder(std::move(name)) {
  client_ = &client;
}

GraphBuilder::~GraphBuilder() = default;

void GraphBuilder::AddError(absl::Status error) {
  if (errors_.size() == kMaxErrors) {
    ++omitted_errors_;
  } else {
    errors_.push_back(std::move(error));
  }
}

// --- Tensors -----------------------------------------------------------------------------------

v1::DType GraphBuilder::Tensor::dtype() const {
  return bad() ? v1::DTYPE_UNSPECIFIED
               : builder_->tensors_[static_cast<size_t>(tensor_)].message.dtype();
}

int64_t GraphBuilder::Bound(const Dim& dim) const {
  if (!dim.scalar.has_value()) return dim.size;
  if (dim.scalar->builder_ != this) return 1;
  return static_cast<int64_t>(
      std::clamp(graph_.scalars(dim.scalar->index_).most(), 1.0, static_cast<double>(kTooMany)));
}

std::vector<int64_t> GraphBuilder::DenseStrides(const std::vector<Dim>& shape) const {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d > 1; --d) {
    strides[d - 2] = Multiply(strides[d - 1], Bound(shape[d - 1]));
  }
  return strides;
}

bool GraphBuilder::CheckDims(const std::vector<Dim>& shape, const std::string& tensor) {
  for (const Dim& dim : shape) {
    if (dim.scalar.has_value()) {
      if (dim.scalar->builder_ != this) {
        AddError(errors::NotOfThisBuilder(absl::StrCat("a dimension of tensor '", tensor, "'"),
                                          "scalar"));
        return false;
      }
      if (dim.scalar->factor_ != 1 || dim.scalar->addend_ != 0) {
        AddError(errors::DimensionNotAScalar(absl::StrCat("tensor '", tensor, "'")));
        return false;
      }
    } else if (dim.size < 1 || dim.size > kTooMany) {
      AddError(errors::BadGraphTensor(tensor,
                                      absl::StrCat("has a dimension of ", dim.size, " elements"),
                                      absl::StrCat("use 1 to ", kTooMany)));
      return false;
    }
  }
  return true;
}

GraphBuilder::Tensor GraphBuilder::AddTensor(v1::GraphTensor::Kind kind, std::string name,
                                             v1::DType dtype, std::vector<Dim> shape) {
  if (!CheckDims(shape, name)) return {};
  Memory memory;
  memory.message.set_name(std::move(name));
  memory.message.set_kind(kind);
  memory.message.set_dtype(dtype);
  memory.shape = shape;
  Tensor tensor;
  tensor.builder_ = this;
  tensor.tensor_ = static_cast<int>(tensors_.size());
  tensor.strides_ = DenseStrides(shape);
  tensor.shape_ = std::move(shape);
  tensors_.push_back(std::move(memory));
  return tensor;
}

GraphBuilder::Tensor GraphBuilder::Input(const std::string& name, v1::DType dtype,
                                         std::vector<Dim> shape) {
  return AddTensor(Kind::KIND_INPUT, name, dtype, std::move(shape));
}
GraphBuilder::Tensor GraphBuilder::Weight(const std::string& name, v1::DType dtype,
                                          std::vector<Dim> shape) {
  return AddTensor(Kind::KIND_WEIGHT, name, dtype, std::move(shape));
}
GraphBuilder::Tensor GraphBuilder::Constant(const std::string& name, v1::DType dtype,
                                            std::vector<Dim> shape) {
  return AddTensor(Kind::KIND_CONST, name, dtype, std::move(shape));
}
GraphBuilder::Tensor GraphBuilder::State(const std::string& name, v1::DType dtype,
                                         std::vector<Dim> shape) {
  return AddTensor(Kind::KIND_STATE, name, dtype, std::move(shape));
}
GraphBuilder::Tensor GraphBuilder::Activation(const std::string& name, v1::DType dtype,
                                              std::vector<Dim> shape) {
  return AddTensor(Kind::KIND_ACTIVATION, name, dtype, std::move(shape));
}
GraphBuilder::Tensor GraphBuilder::NewOutput(const std::string& name, v1::DType dtype,
                                             std::vector<Dim> shape) {
  return AddTensor(Kind::KIND_OUTPUT, name, dtype, std::move(shape));
}
GraphBuilder::Tensor GraphBuilder::NewStream(const std::string& name, v1::DType dtype,
                                             std::vector<Dim> record_shape, uint64_t records) {
  Tensor tensor = AddTensor(Kind::KIND_STREAM, name, dtype, std::move(record_shape));
  if (!tensor.bad()) tensors_.back().records = records;
  return tensor;
}

bool GraphBuilder::IsUsable(const Tensor& tensor, const std::string& place) {
  if (tensor.builder_ != this && (tensor.builder_ != nullptr || errors_.empty())) {
    AddError(errors::NotOfThisBuilder(place, "tensor"));
    return false;
  }
  return !tensor.bad();
}

GraphBuilder::Tensor GraphBuilder::Part(const Tensor& tensor, std::vector<Dim> shape,
                                        int64_t offset, std::vector<int64_t> strides) {
  const std::string& name = tensors_[static_cast<size_t>(tensor.tensor_)].message.name();
  if (!CheckDims(shape, name)) return {};
  if (strides.size() != shape.size()) {
    AddError(errors::BadGraphTensor(name,
                                    absl::StrCat("has a view with ", shape.size(),
                                                 " dimensions and ", strides.size(), " strides"),
                                    "give one stride for each dimension, or none"));
    return {};
  }
  Tensor part = tensor;
  part.whole_ = false;
  part.shape_ = std::move(shape);
  part.strides_ = std::move(strides);
  part.offset_ = Add(tensor.offset_, offset);
  return part;
}

GraphBuilder::Tensor GraphBuilder::Tensor::Slice(uint32_t dimension, int64_t first,
                                                 const Dim& count) const {
  if (bad()) return *this;
  const std::string& name = builder_->tensors_[static_cast<size_t>(tensor_)].message.name();
  if (dimension >= shape_.size()) {
    builder_->AddError(errors::BadGraphTensor(
        name,
        absl::StrCat("has ", shape_.size(), " dimensions, and dimension ", dimension, " is sliced"),
        "count the dimensions from 0"));
    return {};
  }
  const int64_t size = builder_->Bound(shape_[dimension]);
  const int64_t elements = builder_->Bound(count);
  if (first < 0 || elements < 1 || first > size - elements) {
    builder_->AddError(
        errors::BadGraphTensor(name,
                               absl::StrCat("has ", size, " elements in dimension ", dimension,
                                            ", and ", elements, " from ", first, " on are sliced"),
                               "use a slice inside of it; a scalar counts with its largest value"));
    return {};
  }
  std::vector<Dim> shape = shape_;
  shape[dimension] = count;
  return builder_->Part(*this, std::move(shape), Multiply(first, strides_[dimension]), strides_);
}

GraphBuilder::Tensor GraphBuilder::Tensor::Index(uint32_t dimension, int64_t index) const {
  Tensor part = Slice(dimension, index, 1);
  if (part.bad()) return part;
  part.shape_.erase(part.shape_.begin() + dimension);
  part.strides_.erase(part.strides_.begin() + dimension);
  return part;
}

GraphBuilder::Tensor GraphBuilder::Tensor::Transpose(uint32_t a, uint32_t b) const {
  if (bad()) return *this;
  if (std::max(a, b) >= shape_.size()) {
    builder_->AddError(errors::BadGraphTensor(
        builder_->tensors_[static_cast<size_t>(tensor_)].message.name(),
        absl::StrCat("has ", shape_.size(), " dimensions, and ", a, " and ", b, " are exchanged"),
        "count the dimensions from 0"));
    return {};
  }
  Tensor part = *this;
  part.whole_ = false;
  std::swap(part.shape_[a], part.shape_[b]);
  std::swap(part.strides_[a], part.strides_[b]);
  return part;
}

GraphBuilder::Tensor GraphBuilder::Tensor::View(std::vector<Dim> shape, int64_t offset,
                                                std::vector<int64_t> strides) const {
  if (bad()) return *this;
  if (strides.empty()) strides = builder_->DenseStrides(shape);
  return builder_->Part(*this, std::move(shape), offset, std::move(strides));
}

// --- Scalars -----------------------------------------------------------------------------------

GraphBuilder::Scalar GraphBuilder::AddScalar(v1::GraphScalar scalar) {
  Scalar value;
  value.builder_ = this;
  value.index_ = graph_.scalars_size();
  *graph_.add_scalars() = std::move(scalar);
  return value;
}

GraphBuilder::Scalar GraphBuilder::Integer(const std::string& name, int64_t min, int64_t max,
                                           std::optional<int64_t> initial) {
  v1::GraphScalar scalar;
  scalar.set_name(name);
  scalar.set_dtype(v1::DTYPE_I64);
  scalar.set_least(static_cast<double>(min));
  scalar.set_most(static_cast<double>(max));
  if (initial.has_value()) scalar.set_initial(static_cast<double>(*initial));
  return AddScalar(std::move(scalar));
}

GraphBuilder::Scalar GraphBuilder::Real(const std::string& name, double min, double max,
                                        std::optional<double> initial) {
  v1::GraphScalar scalar;
  scalar.set_name(name);
  scalar.set_dtype(v1::DTYPE_F32);
  scalar.set_least(min);
  scalar.set_most(max);
  if (initial.has_value()) scalar.set_initial(*initial);
  return AddScalar(std::move(scalar));
}

// --- Outputs, streams and the loop -------------------------------------------------------------

void GraphBuilder::Return(v1::GraphTensor::Kind kind, const std::string& name, const Tensor& tensor,
                          uint64_t records) {
  const bool stream = kind == Kind::KIND_STREAM;
  if (!IsUsable(tensor, absl::StrCat(stream ? "stream '" : "output '", name, "'"))) return;
  Memory& memory = tensors_[static_cast<size_t>(tensor.tensor_)];
  if (tensor.whole_ && memory.result) {
    memory.message.set_name(name);
    memory.message.set_kind(kind);
    memory.result = false;
    memory.records = records;
    return;
  }
  const Tensor copy = AddTensor(kind, name, tensor.dtype(), tensor.shape_);
  tensors_.back().records = records;
  if (!operators_.contains("copy") && client_ == nullptr) {
    Operator("copy",
             "x: in strided f32|f16|bf16|f64|i32|i64|u8|i8|u32[*S~], "
             "out: out strided f32|f16|bf16|f64|i32|i64|u8|i8|u32[*S]");
  }
  Call("copy", {tensor}, {{"out", copy}});
}

void GraphBuilder::Output(const std::string& name, const Tensor& tensor) {
  Return(Kind::KIND_OUTPUT, name, tensor, 0);
}

void GraphBuilder::Stream(const std::string& name, const Tensor& tensor, uint64_t records) {
  Return(Kind::KIND_STREAM, name, tensor, records);
}

void GraphBuilder::Loop(uint64_t max_steps) { graph_.mutable_loop()->set_max_steps(max_steps); }

void GraphBuilder::EachStep(const Scalar& scalar, const Scalar& value) {
  if (scalar.builder_ != this || value.builder_ != this || scalar.index_ != value.index_ ||
      scalar.factor_ != 1 || scalar.addend_ != 0) {
    AddError(errors::NotOfThisBuilder("EachStep", "scalar, or that of its new value,"));
    return;
  }
  v1::GraphUpdate& update = *graph_.mutable_loop()->add_updates();
  update.set_scalar(graph_.scalars(scalar.index_).name());
  if (value.factor_ != 1) update.set_factor(value.factor_);
  update.set_addend(value.addend_);
}

void GraphBuilder::StopWhen(const Tensor& tensor, std::vector<int64_t> values) {
  if (!IsUsable(tensor, "StopWhen")) return;
  if (!tensor.whole_) {
    AddError(errors::BadGraphTensor(tensors_[static_cast<size_t>(tensor.tensor_)].message.name(),
                                    "stops the loop in part",
                                    "copy the element to a tensor of its own"));
    return;
  }
  v1::GraphStop& stop = *graph_.mutable_loop()->mutable_stop();
  // Its index: the tensor may get another name until Build().
  stop_tensor_ = tensor.tensor_;
  stop.mutable_values()->Assign(values.begin(), values.end());
}

// --- The message -------------------------------------------------------------------------------

void GraphBuilder::SetDim(const Dim& dim, v1::GraphDim* message) const {
  if (dim.scalar.has_value()) {
    message->set_scalar(graph_.scalars(dim.scalar->index_).name());
  } else {
    message->set_size(dim.size);
  }
}

void GraphBuilder::CheckNames() {
  std::set<std::string> names;
  for (const Memory& memory : tensors_) {
    if (!names.insert(memory.message.name()).second) {
      AddError(errors::GraphNameTwice("tensor", memory.message.name()));
    }
  }
  names.clear();
  for (const v1::GraphScalar& scalar : graph_.scalars()) {
    if (!names.insert(scalar.name()).second) {
      AddError(errors::GraphNameTwice("scalar", scalar.name()));
    }
  }
  names.clear();
  for (const v1::GraphNode& node : graph_.nodes()) {
    if (!names.insert(node.name()).second) AddError(errors::GraphNameTwice("node", node.name()));
  }
}

absl::StatusOr<v1::Graph> GraphBuilder::Build() {
  if (!lookup_.ok()) return lookup_;
  // What is wrong with the whole may be right after further calls: it is not kept.
  const size_t kept = errors_.size();
  const uint64_t omitted = omitted_errors_;
  absl::StatusOr<v1::Graph> graph = MakeMessage();
  if (!errors_.empty()) {
    graph = errors::GraphNotBuilt(graph_.name(), errors_, omitted_errors_);
  }
  errors_.resize(kept);
  omitted_errors_ = omitted;
  return graph;
}

v1::Graph GraphBuilder::MakeMessage() {
  CheckNames();
  const uint64_t steps = graph_.loop().max_steps();
  if (graph_.has_loop() && steps == 0) {
    AddError(errors::LoopMissing(stop_tensor_ >= 0 ? "StopWhen" : "EachStep"));
  }
  v1::Graph graph = graph_;
  for (const Memory& memory : tensors_) {
    v1::GraphTensor& tensor = *graph.add_tensors();
    tensor = memory.message;
    if (tensor.kind() == Kind::KIND_STREAM) {
      const uint64_t records = memory.records > 0 ? memory.records : steps;
      if (records == 0) AddError(errors::StreamWithoutRecords(tensor.name()));
      tensor.add_shape()->set_size(static_cast<int64_t>(records));
    }
    for (const Dim& dim : memory.shape) SetDim(dim, tensor.add_shape());
  }
  if (stop_tensor_ >= 0) {
    graph.mutable_loop()->mutable_stop()->set_tensor(graph.tensors(stop_tensor_).name());
  }
  for (size_t i = 0; i < views_.size(); ++i) {
    const NamedView& view = views_[i];
    graph.mutable_nodes(view.node)
        ->mutable_arguments(view.argument)
        ->mutable_tensor()
        ->set_name(tensors_[static_cast<size_t>(view.tensor)].message.name());
  }
  return graph;
}

}  // namespace resident::client
