#include "server/inference/infer_message.h"

#include <cstdint>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "runtime/base/errors/inference_errors.h"
#include "runtime/base/limits.h"
#include "server/rpc/message_bytes.h"

namespace resident {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// A longer message cannot be received.
constexpr uint32_t kMaxBytes = 1u << 30;

enum class Scan : uint8_t { kComplete, kTooMany, kUnreadable };

// Whether the parser keeps an object for a field with this type on the wire: a message, a string,
// or an unknown field, which is also a known one with another type on the wire.
bool IsObject(const FieldDescriptor* field, WireFormatLite::WireType wire_type) {
  if (field == nullptr || field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE ||
      field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    return true;
  }
  const bool packed =
      field->is_packable() && wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
  return !packed && wire_type != WireFormatLite::WireTypeForFieldType(
                                     static_cast<WireFormatLite::FieldType>(field->type()));
}

// Takes an entry off `left` for each object of a message of this type, up to the input's limit. The
// types of the request are not recursive.
Scan CountEntries(const Descriptor& type, CodedInputStream& input, uint32_t* left) {
  while (const uint32_t tag = input.ReadTag()) {
    const FieldDescriptor* const field =
        type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const WireFormatLite::WireType wire_type = WireFormatLite::GetTagWireType(tag);
    // The protocol has no groups, and the parser would keep one as unknown fields.
    if (wire_type == WireFormatLite::WIRETYPE_START_GROUP) return Scan::kUnreadable;
    if (IsObject(field, wire_type) && (*left)-- == 0) return Scan::kTooMany;
    if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE ||
        wire_type != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&input, tag)) return Scan::kUnreadable;
      continue;
    }
    uint32_t bytes = 0;
    if (!input.ReadVarint32(&bytes) || bytes > kMaxBytes) return Scan::kUnreadable;
    // PushLimit would keep the outer limit, and the parser would not.
    const int rest = input.BytesUntilLimit();
    if (rest >= 0 && bytes > static_cast<uint32_t>(rest)) return Scan::kUnreadable;
    const CodedInputStream::Limit outer = input.PushLimit(static_cast<int>(bytes));
    const Scan inner = CountEntries(*field->message_type(), input, left);
    if (inner != Scan::kComplete) return inner;
    input.PopLimit(outer);
  }
  return input.ConsumedEntireMessage() ? Scan::kComplete : Scan::kUnreadable;
}

}  // namespace

absl::Status ParseInferRequest(grpc::ByteBuffer& bytes, inference::ModelInferRequest* request) {
  Scan scan = Scan::kUnreadable;
  {
    grpc::ProtoBufferReader reader(&bytes);
    if (reader.status().ok()) {
      CodedInputStream input(&reader);
      uint32_t left = kMaxInferenceEntries;
      scan = CountEntries(*inference::ModelInferRequest::descriptor(), input, &left);
    }
  }
  if (scan == Scan::kTooMany) return errors::TooManyInferenceEntries(kMaxInferenceEntries);
  if (scan == Scan::kUnreadable) {
    return errors::UnreadableMessage(inference::ModelInferRequest::descriptor()->full_name());
  }
  return ParseMessage(bytes, request);
}

}  // namespace resident
