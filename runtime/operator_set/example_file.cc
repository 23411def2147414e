#include "runtime/operator_set/example_file.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "runtime/base/json_error.h"
#include "runtime/base/shallow_json.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"
#include "runtime/model/number_text.h"

namespace resident {
namespace {

using Json = nlohmann::ordered_json;
using Shape = std::vector<uint64_t>;

absl::Status Invalid(const std::string& where, const std::string& what, const std::string& fix) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what, ". Fix: ", fix));
}

// One value in the form that its parameter needs.
struct Value {
  DType dtype;
  Shape shape;
  std::string data;
};

uint64_t CountElements(const Shape& shape) {
  uint64_t elements = 1;
  for (const uint64_t size : shape) elements *= size;
  return elements;
}

void Append(const Value& value, v1::InstallExample& example) {
  v1::ExampleValue* const added = example.add_values();
  added->set_dtype(static_cast<v1::DType>(value.dtype));
  for (const uint64_t size : value.shape) added->add_shape(size);
  added->set_data(value.data);
}

// Appends the numbers of nested lists to `words`, and checks that the lists form a shape.
bool Flatten(const Json& json, size_t depth, Shape& shape, std::string& words) {
  if (json.is_array()) {
    if (depth == shape.size()) {
      // The first list of each depth determines the length of the others.
      if (!words.empty()) return false;
      shape.push_back(json.size());
    }
    if (json.size() != shape[depth]) return false;
    for (const Json& element : json) {
      if (!Flatten(element, depth + 1, shape, words)) return false;
    }
    return true;
  }
  if (depth != shape.size()) return false;
  if (json.is_number()) {
    absl::StrAppend(&words, json.dump(), ",");
  } else if (json == "NaN") {
    words += "nan,";
  } else if (json == "Infinity") {
    words += "inf,";
  } else if (json == "-Infinity") {
    words += "-inf,";
  } else {
    return false;
  }
  return true;
}

class ExampleReader {
 public:
  ExampleReader(const Json& json, const Signature& signature, std::string where)
      : json_(json), signature_(signature), where_(std::move(where)) {}

  absl::StatusOr<v1::InstallExample> Read() {
    if (!json_.is_object()) {
      return Invalid(where_, "it is not an object",
                     "write {\"inputs\": {...}, \"outputs\": {...}}");
    }
    RETURN_IF_ERROR(CheckKeys());
    v1::InstallExample example;
    RETURN_IF_ERROR(ReadTolerances(example));
    for (const Parameter& parameter : signature_.parameters()) {
      ASSIGN_OR_RETURN(Value value, parameter.kind == ParameterKind::kOutput  ? Output(parameter)
                                    : parameter.kind == ParameterKind::kInOut ? InOut(parameter)
                                                                              : Input(parameter));
      Append(value, example);
      if (!parameter.scalar() && first_shape_.empty()) first_shape_ = value.shape;
    }
    return example;
  }

 private:
  const Json* Find(const char* group, const std::string& name) const {
    const auto values = json_.find(group);
    if (values == json_.end()) return nullptr;
    const auto value = values->find(name);
    return value == values->end() ? nullptr : &*value;
  }

  std::string NameParameter(const Parameter& parameter) const {
    return absl::StrCat(where_, ", '", parameter.name, "'");
  }

  absl::Status CheckKeys() const {
    for (const auto& [key, group] : json_.items()) {
      if (key == "relative_tolerance" || key == "absolute_tolerance") continue;
      if (key != "inputs" && key != "outputs") {
        return Invalid(where_, absl::StrCat("unknown key '", key, "'"),
                       "use inputs, outputs, relative_tolerance and absolute_tolerance");
      }
      if (!group.is_object()) {
        return Invalid(where_, absl::StrCat("'", key, "' is not an object"),
                       "give values by parameter name, for example {\"x\": [1, 2]}");
      }
      for (const auto& [name, value] : group.items()) {
        bool known = false;
        for (const Parameter& parameter : signature_.parameters()) {
          const ParameterKind kind = parameter.kind;
          known |=
              parameter.name == name && (kind == ParameterKind::kInOut ||
                                         (kind == ParameterKind::kOutput) == (key == "outputs"));
        }
        if (!known) {
          return Invalid(where_, absl::StrCat("'", name, "' is not one of the ", key),
                         absl::StrCat("use the parameters ",
                                      absl::StrJoin(signature_.parameters(), ", ",
                                                    [](std::string* out, const Parameter& p) {
                                                      out->append(p.name);
                                                    })));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadTolerances(v1::InstallExample& example) const {
    double tolerances[2] = {0, 0};
    const char* const names[2] = {"relative_tolerance", "absolute_tolerance"};
    for (int i = 0; i < 2; ++i) {
      const auto found = json_.find(names[i]);
      if (found == json_.end()) continue;
      if (!found->is_number())
        return Invalid(where_, absl::StrCat(names[i], " is not a number"),
                       "give a number, for example 1e-5");
      tolerances[i] = found->get<double>();
    }
    example.set_relative_tolerance(tolerances[0]);
    example.set_absolute_tolerance(tolerances[1]);
    return absl::OkStatus();
  }

  absl::StatusOr<Value> Input(const Parameter& parameter) const {
    const Json* json = Find("inputs", parameter.name);
    if (json != nullptr)
      return Parse(parameter, *json, DefaultType(parameter), /*needs_data=*/true);
    if (!parameter.default_bits.has_value()) {
      return Invalid(NameParameter(parameter), "the example has no value for it",
                     absl::StrCat("add \"inputs\": {\"", parameter.name, "\": ...}"));
    }
    Value value{DefaultType(parameter), {}, ""};
    value.data.assign(reinterpret_cast<const char*>(&*parameter.default_bits), SizeOf(value.dtype));
    return value;
  }

  absl::StatusOr<Value> Output(const Parameter& parameter) const {
    const Json* json = Find("outputs", parameter.name);
    if (json != nullptr)
      return Parse(parameter, *json, DefaultType(parameter), /*needs_data=*/false);
    Value value{DefaultType(parameter), first_shape_, ""};
    if (value.shape.size() > parameter.max_rank) value.shape.resize(parameter.max_rank);
    return value;
  }

  // The initial value, followed by the expected value.
  absl::StatusOr<Value> InOut(const Parameter& parameter) const {
    absl::StatusOr<Value> value = Input(parameter);
    const Json* json = Find("outputs", parameter.name);
    if (!value.ok() || json == nullptr) return value;
    absl::StatusOr<Value> expected = Parse(parameter, *json, value->dtype, /*needs_data=*/false);
    if (!expected.ok()) return expected;
    if (expected->dtype != value->dtype || expected->shape != value->shape) {
      return Invalid(NameParameter(parameter),
                     "its output does not have the type and shape of its input",
                     "the operator writes it in place: give the same number of elements");
    }
    value->data += expected->data;
    return value;
  }

  // The first type that the signature accepts.
  static DType DefaultType(const Parameter& parameter) { return parameter.dtypes[0]; }

  absl::StatusOr<Value> Parse(const Parameter& parameter, const Json& json, DType dtype,
                              bool needs_data) const {
    Value value{dtype, {}, ""};
    const Json* numbers = &json;
    bool has_shape = false;
    if (json.is_object()) {
      if (const auto dtype = json.find("dtype"); dtype != json.end()) {
        const DTypeInfo* const named =
            dtype->is_string() ? FindDType(dtype->get<std::string>()) : nullptr;
        if (named == nullptr) {
          return Invalid(NameParameter(parameter),
                         absl::StrCat("unknown element type ", dtype->dump()),
                         "give f32, f16, bf16, f64, i32, i64, u8, i8 or u32");
        }
        value.dtype = named->dtype;
      }
      if (const auto shape = json.find("shape"); shape != json.end()) {
        has_shape = shape->is_array();
        for (const Json& dim : *shape) {
          has_shape = has_shape && dim.is_number_unsigned();
          if (has_shape) value.shape.push_back(dim.get<uint64_t>());
        }
        if (!has_shape) {
          return Invalid(NameParameter(parameter), "its shape is not a list of sizes",
                         "give a list, for example [2, 3]");
        }
      }
      const auto data = json.find("data");
      numbers = data == json.end() ? nullptr : &*data;
      if (numbers == nullptr && (needs_data || !has_shape)) {
        return Invalid(NameParameter(parameter), "it has no data",
                       "write {\"shape\": [2], \"data\": [1, 2]}");
      }
    }
    if (numbers == nullptr) return value;
    Shape nested;
    std::string words;
    if (!Flatten(*numbers, 0, nested, words)) {
      return Invalid(NameParameter(parameter),
                     "its lists differ in length, or contain an element that is not a number",
                     "write lists of equal length, for example [[1, 2], [3, 4]]");
    }
    if (has_shape && nested.size() == 1) {
      if (CountElements(value.shape) != nested[0]) {
        return Invalid(NameParameter(parameter),
                       absl::StrCat("its shape has ", CountElements(value.shape),
                                    " elements, and data ", nested[0]),
                       "give the same number");
      }
    } else {
      if (has_shape && nested != value.shape) {
        return Invalid(NameParameter(parameter), "its shape differs from that of its data",
                       "omit shape");
      }
      value.shape = nested;
    }
    if (parameter.scalar() && !value.shape.empty()) {
      return Invalid(NameParameter(parameter), "it is a scalar and got a list", "give a number");
    }
    for (const absl::string_view item : absl::StrSplit(words, ',', absl::SkipEmpty())) {
      const std::string_view word(item.data(), item.size());
      if (AppendNumber(value.dtype, word, &value.data)) continue;
      return Invalid(NameParameter(parameter),
                     absl::StrCat("'", item, "' is not a valid ", DTypeName(value.dtype),
                                  IsWholeNumber(word) ? ", which does not have this number" : ""),
                     IsWholeNumber(word) ? "give another number, or another \"dtype\""
                                         : "give a number of this type");
    }
    return value;
  }

  const Json& json_;
  const Signature& signature_;
  const std::string where_;
  Shape first_shape_;
};

}  // namespace

absl::StatusOr<std::vector<v1::InstallExample>> ParseExamples(std::string_view text,
                                                              const Signature& signature) {
  const Json json = ParseShallowJson<Json>(text);
  if (json.is_discarded()) {
    return Invalid("examples", absl::StrCat("they are not valid JSON", JsonErrorPlace(text)),
                   "see residentctl help ops");
  }
  const Json list = json.is_array() ? json : Json::array({json});
  std::vector<v1::InstallExample> examples;
  for (size_t i = 0; i < list.size(); ++i) {
    ExampleReader reader(list[i], signature, absl::StrCat("example ", i + 1));
    ASSIGN_OR_RETURN(v1::InstallExample example, reader.Read());
    examples.push_back(std::move(example));
  }
  return examples;
}

}  // namespace resident
