// ModelMaker: makes ONNX models for tests.
//
//   ModelMaker maker;
//   maker.Input("x", {"batch", "4"});
//   maker.Node("Relu", {"x"}, {"y"});
//   maker.Output("y");
//   const auto model = CheckModel(maker.Bytes(), {}, {});
//
// Thread safety: none.
#ifndef RESIDENT_SERVER_ONNX_MODEL_MAKER_FOR_TEST_H_
#define RESIDENT_SERVER_ONNX_MODEL_MAKER_FOR_TEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "server/onnx/import.h"
#include "server/onnx/onnx.pb.h"
#include "server/onnx/values/constant.h"

namespace resident::onnx {

inline AttributeProto IntAttribute(const std::string& name, int64_t value) {
  AttributeProto attribute;
  attribute.set_name(name);
  attribute.set_type(2);
  attribute.set_i(value);
  return attribute;
}

inline AttributeProto IntsAttribute(const std::string& name, const std::vector<int64_t>& values) {
  AttributeProto attribute;
  attribute.set_name(name);
  attribute.set_type(7);
  attribute.mutable_ints()->Add(values.begin(), values.end());
  return attribute;
}

inline AttributeProto FloatAttribute(const std::string& name, float value) {
  AttributeProto attribute;
  attribute.set_name(name);
  attribute.set_type(1);
  attribute.set_f(value);
  return attribute;
}

inline AttributeProto FloatsAttribute(const std::string& name, const std::vector<float>& values) {
  AttributeProto attribute;
  attribute.set_name(name);
  attribute.set_type(6);
  attribute.mutable_floats()->Add(values.begin(), values.end());
  return attribute;
}

inline AttributeProto StringAttribute(const std::string& name, const std::string& value) {
  AttributeProto attribute;
  attribute.set_name(name);
  attribute.set_type(3);
  attribute.set_s(value);
  return attribute;
}

inline AttributeProto GraphAttribute(const std::string& name, const GraphProto& graph) {
  AttributeProto attribute;
  attribute.set_name(name);
  attribute.set_type(5);
  *attribute.mutable_g() = graph;
  return attribute;
}

class ModelMaker {
 public:
  explicit ModelMaker(int64_t opset = 17) {
    proto.set_ir_version(8);
    proto.add_opset_import()->set_version(opset);
    proto.mutable_graph()->set_name("test");
  }

  GraphProto& graph() { return *proto.mutable_graph(); }

  // A dimension is a number or the name of a symbol; "?" has no name.
  ValueInfoProto& Input(const std::string& name, const std::vector<std::string>& shape,
                        ElementType type = ElementType::kFloat) {
    return Describe(graph().add_input(), name, shape, type);
  }
  void Output(const std::string& name) { graph().add_output()->set_name(name); }

  TensorProto& Weight(const std::string& name, const Constant& constant) {
    TensorProto& tensor = *graph().add_initializer();
    tensor.set_name(name);
    tensor.set_data_type(static_cast<int32_t>(constant.type));
    tensor.mutable_dims()->Add(constant.shape.begin(), constant.shape.end());
    tensor.set_raw_data(*constant.bytes);
    return tensor;
  }
  // Numbers 1, 2, ... in the shape.
  TensorProto& Weight(const std::string& name, const Sizes64& shape) {
    std::vector<double> values;
    for (int64_t i = 0; i < *CountElements(shape); ++i)
      values.push_back(static_cast<double>(i + 1));
    return Weight(name, Constant::Reals(shape, values));
  }
  void Integers(const std::string& name, const std::vector<int64_t>& values) {
    Weight(name, Constant::Integers({static_cast<int64_t>(values.size())}, values));
  }

  NodeProto& Node(const std::string& op, const std::vector<std::string>& inputs,
                  const std::vector<std::string>& outputs,
                  const std::vector<AttributeProto>& attributes = {}) {
    return AddNode(&graph(), op, inputs, outputs, attributes);
  }
  static NodeProto& AddNode(GraphProto* graph, const std::string& op,
                            const std::vector<std::string>& inputs,
                            const std::vector<std::string>& outputs,
                            const std::vector<AttributeProto>& attributes = {}) {
    NodeProto& node = *graph->add_node();
    node.set_op_type(op);
    for (const std::string& input : inputs) node.add_input(input);
    for (const std::string& output : outputs) node.add_output(output);
    for (const AttributeProto& attribute : attributes) *node.add_attribute() = attribute;
    return node;
  }

  std::string Bytes() const { return proto.SerializeAsString(); }

  ModelProto proto;

 private:
  static ValueInfoProto& Describe(ValueInfoProto* value, const std::string& name,
                                  const std::vector<std::string>& shape, ElementType type) {
    value->set_name(name);
    TypeProto::Tensor& tensor = *value->mutable_type()->mutable_tensor_type();
    tensor.set_elem_type(static_cast<int32_t>(type));
    tensor.mutable_shape();
    for (const std::string& size : shape) {
      auto& dim = *tensor.mutable_shape()->add_dim();
      int64_t number = 0;
      if (absl::SimpleAtoi(size, &number)) {
        dim.set_dim_value(number);
      } else if (size != "?") {
        dim.set_dim_param(size);
      }
    }
    return *value;
  }
};

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_MODEL_MAKER_FOR_TEST_H_
