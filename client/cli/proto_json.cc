#include "client/cli/proto_json.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/generated_enum_reflection.h"

namespace resident::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// One value; `index` is negative for a field that is not repeated.
Json ValueToJson(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection& reflection = *message.GetReflection();
#define RESIDENT_GET(Type)                          \
  (index < 0 ? reflection.Get##Type(message, field) \
             : reflection.GetRepeated##Type(message, field, index))
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return RESIDENT_GET(Int32);
    case FieldDescriptor::CPPTYPE_INT64:
      return RESIDENT_GET(Int64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return RESIDENT_GET(UInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return RESIDENT_GET(UInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberToJson(RESIDENT_GET(Double));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return NumberToJson(RESIDENT_GET(Float));
    case FieldDescriptor::CPPTYPE_BOOL:
      return RESIDENT_GET(Bool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumName(*field->enum_type(), RESIDENT_GET(EnumValue));
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = RESIDENT_GET(String);
      return field->type() == FieldDescriptor::TYPE_BYTES ? absl::BytesToHexString(text) : text;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(RESIDENT_GET(Message));
  }
#undef RESIDENT_GET
  return nullptr;
}

}  // namespace

Json ToJson(const Message& message) {
  Json json = Json::object();
  const Reflection& reflection = *message.GetReflection();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    if (field->is_repeated()) {
      Json& list = json[field->name()] = Json::array();
      for (int k = 0; k < reflection.FieldSize(message, field); ++k) {
        list.push_back(ValueToJson(message, field, k));
      }
    } else if (!field->has_presence() || reflection.HasField(message, field)) {
      json[field->name()] = ValueToJson(message, field, -1);
    }
  }
  return json;
}

std::string EnumName(const google::protobuf::EnumDescriptor& type, int value) {
  const google::protobuf::EnumValueDescriptor* known = type.FindValueByNumber(value);
  if (known == nullptr) return absl::StrCat(value);
  // The common prefix of all values, up to an underscore.
  std::string prefix = type.value(0)->name();
  for (int i = 1; i < type.value_count(); ++i) {
    const std::string& other = type.value(i)->name();
    size_t same = 0;
    while (same < prefix.size() && same < other.size() && prefix[same] == other[same]) ++same;
    prefix.resize(same);
  }
  prefix.resize(prefix.rfind('_') + 1);
  return absl::AsciiStrToLower(known->name().substr(prefix.size()));
}

Json NumberToJson(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

}  // namespace resident::cli
