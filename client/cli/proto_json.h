// Messages as JSON for scripts: field names as in the protos, 64-bit integers as
// numbers (Protobuf's own mapping uses strings), enum values without their
// prefix and in lower case (STATE_RESIDENT: "resident"), bytes as hex. Fields with
// default values are included; absent sub-messages and optionals are not.
#ifndef RESIDENT_CLIENT_CLI_PROTO_JSON_H_
#define RESIDENT_CLIENT_CLI_PROTO_JSON_H_

#include <string>

#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"

namespace resident::cli {

using Json = nlohmann::ordered_json;

Json ToJson(const google::protobuf::Message& message);

// "resident" for STATE_RESIDENT of an enum that has STATE_UNSPECIFIED.
std::string EnumName(const google::protobuf::EnumDescriptor& type, int value);

// For a generated enum type, e.g. EnumName(v1::DTYPE_F32) is "f32".
template <typename Enum>
std::string EnumName(Enum value) {
  return EnumName(*google::protobuf::GetEnumDescriptor<Enum>(), static_cast<int>(value));
}

// A number, or the text "NaN", "Infinity" or "-Infinity", which JSON numbers cannot express.
Json NumberToJson(double value);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_PROTO_JSON_H_
