// Each built-in operator as the only node of a graph computes the same bits as its plain task: the
// example of its reference, with every dtype that it accepts, with scalars as constants and as
// run-time scalars, and for element-wise operators also with tensors of several chunks. What a
// plain task refuses, the graph refuses.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/values.h"
#include "kernels/ops/builtin.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "runtime/model/dtype.h"
#include "runtime/model/signature.h"
#include "tests/daemon/messages.h"
#include "tests/graph/graph_runs.h"

namespace resident::testing {
namespace {

// Elements of the tensors with several chunks.
constexpr uint64_t kManyElements = 100'000;

// An argument of a call in both forms.
struct Value {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<uint64_t> shape;
  std::string bytes;
  // Of a scalar.
  double number = 0;
  int64_t integer = 0;
  bool given = true;

  uint64_t elements() const {
    uint64_t product = 1;
    for (const uint64_t size : shape) product *= size;
    return product;
  }
};

// What a call returned: its outputs, and what it changed in place, by parameter.
struct Outcome {
  grpc::StatusCode code = grpc::StatusCode::OK;
  std::string message;
  std::map<std::string, std::string> bytes;
};

using Call = std::vector<Value>;

// The example's values, with tensors of the `variant`-th dtype that each parameter accepts.
class ExampleReader {
 public:
  ExampleReader(const Signature& signature, const std::string& text) : signature_(signature) {
    for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
      absl::StatusOr<cli::RunArgument> argument =
          cli::ParseRunArgument(std::string_view(word.data(), word.size()));
      EXPECT_TRUE(argument.ok()) << argument.status();
      if (argument.ok()) arguments_.emplace(argument->name, *std::move(argument));
    }
  }

  // Nullopt: a value does not fit the dtype.
  std::optional<Call> Read(size_t variant) const {
    Call call;
    std::optional<std::vector<uint64_t>> first;
    for (const Parameter& parameter : signature_.parameters()) {
      const auto found = arguments_.find(parameter.name);
      const cli::RunArgument* const argument = found == arguments_.end() ? nullptr : &found->second;
      Value value;
      value.given = argument != nullptr || parameter.kind == ParameterKind::kOutput;
      value.dtype = static_cast<v1::DType>(parameter.dtypes[variant % parameter.dtypes.size()]);
      if (argument != nullptr && argument->dtype.has_value()) value.dtype = *argument->dtype;
      if (parameter.scalar()) {
        if (value.given) {
          EXPECT_TRUE(absl::SimpleAtod(argument->text, &value.number)) << argument->text;
          value.integer = static_cast<int64_t>(value.number);
        }
      } else if (parameter.kind == ParameterKind::kOutput) {
        if (argument != nullptr && argument->shape.has_value()) {
          value.shape = *argument->shape;
        } else {
          EXPECT_TRUE(first.has_value()) << parameter.name;
          value.shape = first.value_or(std::vector<uint64_t>{1});
          if (value.shape.size() > parameter.max_rank) value.shape.resize(parameter.max_rank);
        }
      } else {
        const absl::StatusOr<std::string> bytes = cli::EncodeValues(value.dtype, argument->text);
        if (!bytes.ok()) return std::nullopt;
        value.bytes = *bytes;
        value.shape = argument->shape.value_or(
            std::vector<uint64_t>{value.bytes.size() / ElementBytes(value.dtype)});
        if (!first.has_value()) first = value.shape;
      }
      call.push_back(std::move(value));
    }
    return call;
  }

  static size_t ElementBytes(v1::DType dtype) { return SizeOf(static_cast<DType>(dtype)); }

 private:
  const Signature& signature_;
  std::map<std::string, cli::RunArgument> arguments_;
};

// Whether all tensors have any one shape.
bool IsElementwise(const Signature& signature) {
  for (const Parameter& parameter : signature.parameters()) {
    if (parameter.scalar()) continue;
    if (parameter.dims.size() != 1 || parameter.dims[0].variable != 0 ||
        (parameter.dims[0].kind != DimPattern::Kind::kSpread &&
         parameter.dims[0].kind != DimPattern::Kind::kBroadcast)) {
      return false;
    }
  }
  return true;
}

class OneNodeTest : public DaemonTest {
 protected:
  uint64_t Store(const Value& value) {
    const auto context = client_.Context();
    v1::AllocateRequest request;
    request.set_dtype(value.dtype);
    request.mutable_shape()->Assign(value.shape.begin(), value.shape.end());
    v1::AllocateResponse response;
    EXPECT_TRUE(client_.buffers().Allocate(context.get(), request, &response).ok());
    EXPECT_TRUE(Upload(client_, response.buffer().id(), value.bytes).ok());
    return response.buffer().id();
  }

  std::string Fetch(uint64_t buffer) {
    std::string bytes;
    EXPECT_TRUE(Download(client_, buffer, &bytes).ok());
    return bytes;
  }

  Outcome RunTask(const std::string& op, const Signature& signature, const Call& call) {
    v1::Batch batch = Tasks(op, 1);
    std::map<std::string, uint64_t> in_place;
    std::vector<std::string> returned;
    for (size_t i = 0; i < call.size(); ++i) {
      const Parameter& parameter = signature.parameters()[i];
      const Value& value = call[i];
      if (!value.given) continue;
      v1::Column& column = *batch.mutable_tasks()->add_arguments();
      if (parameter.scalar()) {
        if (IsFloat(parameter.dtypes[0])) {
          column.mutable_scalar()->add_f64(value.number);
        } else {
          column.mutable_scalar()->add_i64(value.integer);
        }
      } else if (parameter.kind == ParameterKind::kOutput) {
        column.mutable_returned()->set_dtype(value.dtype);
        column.mutable_returned()->mutable_shape()->Assign(value.shape.begin(), value.shape.end());
        returned.push_back(parameter.name);
      } else if (parameter.kind == ParameterKind::kInOut) {
        in_place[parameter.name] = Store(value);
        column.mutable_buffer()->add_buffer_ids(in_place[parameter.name]);
      } else {
        column.mutable_inline_()->set_dtype(value.dtype);
        column.mutable_inline_()->mutable_shape()->Assign(value.shape.begin(), value.shape.end());
        column.mutable_inline_()->set_data(value.bytes);
      }
    }
    const RunOutcome run = client_.Run(batch);
    Outcome outcome;
    outcome.code = run.call.error_code();
    outcome.message = run.message();
    if (run.call.ok() && !run.all_ok()) outcome.code = grpc::StatusCode::INVALID_ARGUMENT;
    if (outcome.code != grpc::StatusCode::OK) return outcome;
    for (size_t i = 0; i < returned.size(); ++i) {
      outcome.bytes[returned[i]] = run.result.outputs(static_cast<int>(i));
    }
    for (const auto& [name, buffer] : in_place) outcome.bytes[name] = Fetch(buffer);
    return outcome;
  }

  // `run_time`: scalars whose value float32 represents are scalars of the run.
  Outcome RunOneNode(const std::string& op, const Signature& signature, const Call& call,
                     bool run_time) {
    v1::RunGraphRequest request;
    v1::Graph& graph = *request.mutable_graph();
    graph.set_format(1);
    v1::GraphNode& node = *graph.add_nodes();
    node.set_operator_(op);
    std::map<std::string, uint64_t> in_place;
    for (size_t i = 0; i < call.size(); ++i) {
      const Parameter& parameter = signature.parameters()[i];
      const Value& value = call[i];
      if (!value.given) continue;
      v1::GraphArgument& argument = *node.add_arguments();
      if (parameter.scalar()) {
        SetScalar(parameter, value, run_time, request, argument);
        continue;
      }
      if (value.elements() == 0 && parameter.kind == ParameterKind::kInput) {
        argument.set_none(true);
        continue;
      }
      v1::GraphTensor& tensor = *graph.add_tensors();
      tensor.set_name(parameter.name);
      tensor.set_dtype(value.dtype);
      for (const uint64_t size : value.shape) {
        tensor.add_shape()->set_size(static_cast<int64_t>(size));
      }
      argument.mutable_tensor()->set_name(parameter.name);
      if (parameter.kind == ParameterKind::kOutput) {
        tensor.set_kind(v1::GraphTensor::KIND_OUTPUT);
        continue;
      }
      v1::GraphBinding& binding = *request.add_bindings();
      binding.set_tensor(parameter.name);
      if (parameter.kind == ParameterKind::kInOut) {
        tensor.set_kind(v1::GraphTensor::KIND_STATE);
        binding.set_buffer_id(in_place[parameter.name] = Store(value));
      } else {
        tensor.set_kind(v1::GraphTensor::KIND_INPUT);
        binding.set_data(value.bytes);
      }
    }
    const GraphOutcome run = RunGraph(*daemon_, client_, request);
    Outcome outcome;
    outcome.code = run.status.error_code();
    outcome.message = run.status.error_message();
    for (const v1::GraphValue& output : run.result.outputs()) {
      outcome.bytes[output.tensor()] = output.data();
    }
    if (run.status.ok()) {
      for (const auto& [name, buffer] : in_place) outcome.bytes[name] = Fetch(buffer);
    }
    return outcome;
  }

  static void SetScalar(const Parameter& parameter, const Value& value, bool run_time,
                        v1::RunGraphRequest& request, v1::GraphArgument& argument) {
    const bool real = IsFloat(parameter.dtypes[0]);
    if (run_time && static_cast<double>(static_cast<float>(value.number)) == value.number) {
      v1::GraphScalar& scalar = *request.mutable_graph()->add_scalars();
      scalar.set_name(parameter.name);
      scalar.set_dtype(real ? v1::DTYPE_F32 : v1::DTYPE_I64);
      // So that the value is 2 * scalar - 4, and as large as it can be.
      scalar.set_least(value.number / 2 + 2);
      scalar.set_most(value.number / 2 + 2);
      argument.mutable_scalar()->set_name(parameter.name);
      if (!real && value.integer % 2 != 0) {
        scalar.set_least(value.number);
        scalar.set_most(value.number);
      } else {
        argument.mutable_scalar()->set_factor(2);
        argument.mutable_scalar()->set_addend(-4);
      }
      (*request.mutable_scalars())[parameter.name] = scalar.most();
    } else if (real) {
      argument.set_f64(value.number);
    } else {
      argument.set_i64(value.integer);
    }
  }

  // Returns whether the task was executed.
  bool Compare(const std::string& op, const Signature& signature, const Call& call) {
    const Outcome task = RunTask(op, signature, call);
    for (const bool run_time : {false, true}) {
      const Outcome graph = RunOneNode(op, signature, call, run_time);
      EXPECT_EQ(graph.code, task.code)
          << op << "\ntask: " << task.message << "\ngraph: " << graph.message;
      EXPECT_EQ(graph.bytes, task.bytes) << op;
    }
    return task.code == grpc::StatusCode::OK;
  }
};

TEST_F(OneNodeTest, EveryOperatorEqualsItsTask) {
  for (const BuiltinOperator& op : kBuiltinOperators) {
    if (*op.example == 0) continue;
    SCOPED_TRACE(op.name);
    const Signature signature = Signature::Parse(op.signature).value();
    const ExampleReader example(signature, op.example);
    size_t variants = 1;
    for (const Parameter& parameter : signature.parameters()) {
      variants = std::max(variants, parameter.dtypes.size());
    }
    for (size_t variant = 0; variant < variants; ++variant) {
      const std::optional<Call> call = example.Read(variant);
      if (!call.has_value()) continue;
      const bool executed = Compare(op.name, signature, *call);
      // The example itself is right.
      EXPECT_TRUE(executed || variant > 0);
    }
  }
}

TEST_F(OneNodeTest, TensorsOfSeveralChunksEqualTheirTask) {
  int operators = 0;
  for (const BuiltinOperator& op : kBuiltinOperators) {
    const Signature signature = Signature::Parse(op.signature).value();
    if (*op.example == 0 || !IsElementwise(signature)) continue;
    SCOPED_TRACE(op.name);
    Call call = *ExampleReader(signature, op.example).Read(0);
    for (size_t i = 0; i < call.size(); ++i) {
      if (signature.parameters()[i].scalar()) continue;
      const size_t bytes = kManyElements * ExampleReader::ElementBytes(call[i].dtype);
      const std::string pattern = call[i].bytes;
      while (!pattern.empty() && call[i].bytes.size() < bytes) call[i].bytes += pattern;
      if (!pattern.empty()) call[i].bytes.resize(bytes);
      call[i].shape = {kManyElements};
    }
    EXPECT_TRUE(Compare(op.name, signature, call));
    ++operators;
  }
  EXPECT_GE(operators, 30);
}

}  // namespace
}  // namespace resident::testing
