#include "tests/graph/interpreter.h"

#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/graph/interpreter_memory.h"
#include "tests/graph/interpreter_operators.h"

namespace resident::testing {
namespace {

using Kind = v1::GraphTensor;

class Interpreter {
 public:
  explicit Interpreter(const v1::RunGraphRequest& request)
      : request_(request), graph_(request.graph()) {
    for (const v1::GraphScalar& scalar : graph_.scalars()) {
      max_[scalar.name()] = scalar.most();
      const auto given = request.scalars().find(scalar.name());
      scalars_[scalar.name()] = given == request.scalars().end() ? scalar.initial() : given->second;
    }
    for (const v1::GraphTensor& tensor : graph_.tensors()) {
      tensors_[tensor.name()] = &tensor;
      if (!tensor.alias_of().empty()) continue;
      Memory& memory = memories_[tensor.name()];
      memory.Reset(BytesOf(tensor));
      if (tensor.kind() == Kind::KIND_STATE) memory.bytes.assign(memory.bytes.size(), '\0');
    }
    for (const v1::GraphBinding& binding : request.bindings()) {
      memories_[binding.tensor()].bytes = binding.data();
    }
  }

  Interpretation Run() {
    Interpretation result;
    uint64_t steps = graph_.has_loop() ? graph_.loop().max_steps() : 1;
    if (request_.max_steps() > 0) steps = std::min(steps, request_.max_steps());
    while (result.end == v1::GraphResult::END_UNSPECIFIED) {
      ClearStep();
      for (const v1::GraphNode& node : graph_.nodes()) Execute(node);
      AddRecords(result);
      ++result.steps;
      result.end = EndStep(result.steps >= steps);
    }
    for (const v1::GraphTensor& tensor : graph_.tensors()) {
      if (tensor.kind() == Kind::KIND_OUTPUT && tensor.alias_of().empty()) {
        result.outputs.push_back(Read(tensor));
      }
    }
    return result;
  }

 private:
  int64_t Elements(const v1::GraphDim& dim, bool of_max) const {
    if (dim.scalar().empty()) return dim.size();
    return static_cast<int64_t>(of_max ? max_.at(dim.scalar()) : scalars_.at(dim.scalar()));
  }

  // The dimensions that nodes see: those of one record of a stream.
  std::vector<v1::GraphDim> DimsOf(const v1::GraphTensor& tensor) const {
    std::vector<v1::GraphDim> dims(tensor.shape().begin(), tensor.shape().end());
    if (tensor.kind() == Kind::KIND_STREAM) dims.erase(dims.begin());
    return dims;
  }

  // In elements, for the largest sizes.
  std::vector<int64_t> DenseStrides(const std::vector<v1::GraphDim>& dims) const {
    std::vector<int64_t> strides(dims.size(), 1);
    for (size_t d = dims.size(); d > 1; --d) {
      strides[d - 2] = strides[d - 1] * Elements(dims[d - 1], true);
    }
    return strides;
  }

  std::vector<int64_t> StridesOf(const v1::GraphTensor& tensor) const {
    if (tensor.strides().empty()) return DenseStrides(DimsOf(tensor));
    std::vector<int64_t> strides(tensor.strides().begin(), tensor.strides().end());
    if (tensor.kind() == Kind::KIND_STREAM) strides.erase(strides.begin());
    return strides;
  }

  // Of a tensor that is dense.
  int64_t BytesOf(const v1::GraphTensor& tensor) const {
    int64_t bytes = ElementBytes(tensor.dtype());
    for (const v1::GraphDim& dim : DimsOf(tensor)) bytes *= Elements(dim, true);
    return bytes;
  }

  Place MakePlace(const v1::GraphTensor& tensor, const std::vector<v1::GraphDim>& dims,
                  std::vector<int64_t> strides, int64_t offset_elements) {
    Place place;
    place.memory = &memories_.at(tensor.alias_of().empty() ? tensor.name() : tensor.alias_of());
    place.dtype = tensor.dtype();
    const int64_t element = ElementBytes(tensor.dtype());
    place.offset = static_cast<int64_t>(tensor.offset()) + offset_elements * element;
    for (const v1::GraphDim& dim : dims) place.shape.push_back(Elements(dim, false));
    for (const int64_t stride : strides) place.strides.push_back(stride * element);
    return place;
  }

  Place WholePlace(const v1::GraphTensor& tensor) {
    return MakePlace(tensor, DimsOf(tensor), StridesOf(tensor), 0);
  }

  Place ViewPlace(const v1::GraphView& view) {
    const v1::GraphTensor& tensor = *tensors_.at(view.name());
    if (view.shape().empty() && !view.scalar_shape()) return WholePlace(tensor);
    const std::vector<v1::GraphDim> dims(view.shape().begin(), view.shape().end());
    std::vector<int64_t> strides(view.strides().begin(), view.strides().end());
    if (strides.empty()) {
      const std::vector<int64_t> of_tensor = StridesOf(tensor);
      strides = of_tensor.size() == dims.size() ? of_tensor : DenseStrides(dims);
    }
    return MakePlace(tensor, dims, std::move(strides), view.offset());
  }

  void ClearStep() {
    for (const v1::GraphTensor& tensor : graph_.tensors()) {
      const bool kept = tensor.kind() != Kind::KIND_ACTIVATION &&
                        tensor.kind() != Kind::KIND_OUTPUT && tensor.kind() != Kind::KIND_STREAM;
      if (tensor.alias_of().empty() && !kept) memories_[tensor.name()].Reset(BytesOf(tensor));
    }
  }

  void Execute(const v1::GraphNode& node) {
    const std::vector<std::string>& parameters = ParametersOf(node.operator_());
    std::map<std::string, Place> places;
    std::map<std::string, double> numbers;
    for (int i = 0; i < node.arguments_size(); ++i) {
      const v1::GraphArgument& argument = node.arguments(i);
      const std::string& name = argument.parameter().empty() ? parameters.at(static_cast<size_t>(i))
                                                             : argument.parameter();
      if (argument.has_tensor()) places.emplace(name, ViewPlace(argument.tensor()));
      if (argument.value_case() == v1::GraphArgument::kF64) numbers[name] = argument.f64();
      if (argument.value_case() == v1::GraphArgument::kI64) {
        numbers[name] = static_cast<double>(argument.i64());
      }
      if (argument.has_scalar()) {
        const v1::GraphScalarUse& use = argument.scalar();
        numbers[name] =
            (use.has_factor() ? use.factor() : 1) * scalars_.at(use.name()) + use.addend();
      }
    }
    ExecuteOperator(node.operator_(), places, numbers);
  }

  ExpectedValue Read(const v1::GraphTensor& tensor) {
    const Place place = WholePlace(tensor);
    ExpectedValue value;
    value.tensor = tensor.name();
    value.dtype = tensor.dtype();
    value.shape.assign(place.shape.begin(), place.shape.end());
    for (int64_t i = 0; i < place.size(); ++i) {
      const Number number = place.Load(i);
      value.values.push_back(number.value);
      value.errors.push_back(number.error);
    }
    return value;
  }

  void AddRecords(Interpretation& result) {
    std::vector<ExpectedValue> records;
    for (const v1::GraphTensor& tensor : graph_.tensors()) {
      if (tensor.kind() == Kind::KIND_STREAM) records.push_back(Read(tensor));
    }
    if (!records.empty()) result.records.push_back(std::move(records));
  }

  v1::GraphResult::End EndStep(bool last) {
    if (graph_.loop().has_stop()) {
      const double token = WholePlace(*tensors_.at(graph_.loop().stop().tensor())).Load(0).value;
      for (const int64_t value : graph_.loop().stop().values()) {
        if (token == static_cast<double>(value)) return v1::GraphResult::END_STOP;
      }
    }
    if (last) return v1::GraphResult::END_STEPS;
    std::map<std::string, double> next = scalars_;
    for (const v1::GraphUpdate& update : graph_.loop().updates()) {
      next[update.scalar()] =
          (update.has_factor() ? update.factor() : 1) * scalars_.at(update.scalar()) +
          update.addend();
    }
    for (const v1::GraphScalar& scalar : graph_.scalars()) {
      const double value = next[scalar.name()];
      if (value < scalar.least() || value > scalar.most()) {
        return v1::GraphResult::END_SCALAR_RANGE;
      }
    }
    scalars_ = std::move(next);
    return v1::GraphResult::END_UNSPECIFIED;
  }

  const v1::RunGraphRequest& request_;
  const v1::Graph& graph_;
  std::map<std::string, const v1::GraphTensor*> tensors_;
  std::map<std::string, Memory> memories_;
  std::map<std::string, double> scalars_;
  std::map<std::string, double> max_;
};

}  // namespace

Interpretation Interpret(const v1::RunGraphRequest& request) { return Interpreter(request).Run(); }

std::string FindDifference(const v1::GraphValue& got, const ExpectedValue& expected) {
  if (got.tensor() != expected.tensor || got.dtype() != expected.dtype ||
      !std::equal(got.shape().begin(), got.shape().end(), expected.shape.begin(),
                  expected.shape.end())) {
    return absl::StrCat("tensor ", got.tensor(), " has another name, dtype or shape than ",
                        expected.tensor);
  }
  const auto element = static_cast<size_t>(ElementBytes(got.dtype()));
  if (got.data().size() != element * expected.values.size()) {
    return absl::StrCat("tensor ", got.tensor(), " has ", got.data().size(), " bytes");
  }
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const double value = DecodeNumber(got.dtype(), got.data().data() + i * element);
    // A value that is not a number is within no bound.
    if (std::fabs(value - expected.values[i]) <= expected.errors[i]) continue;
    return absl::StrCat("element ", i, " of tensor ", got.tensor(), " is ", value, " and not ",
                        expected.values[i],
                        expected.errors[i] == 0 ? "" : absl::StrCat(" +- ", expected.errors[i]));
  }
  return "";
}

}  // namespace resident::testing
