#include "server/rpc/message_bytes.h"

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"

namespace resident {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// A longer message cannot be received.
constexpr uint32_t kMaxLength = 1u << 30;
// Messages within messages; that of the parser.
constexpr int kMaxDepth = 100;

WireFormatLite::WireType FindWireType(const FieldDescriptor& field) {
  return WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
}

class Measure {
 public:
  enum class Result : uint8_t { kOk, kTooManyObjects, kTooManyBytes, kUnreadable };

  explicit Measure(const MessageLimits& limits) : limits_(limits) {}

  uint64_t bytes() const { return bytes_; }

  // Measures a message of this type, up to the input's limit.
  Result Read(const Descriptor& type, CodedInputStream& input, int depth) {
    if (depth > kMaxDepth) return Result::kUnreadable;
    while (const uint32_t tag = input.ReadTag()) {
      const Result result = ReadField(type, tag, input, depth);
      if (result != Result::kOk) return result;
      if (bytes_ > limits_.bytes) return Result::kTooManyBytes;
    }
    return input.ConsumedEntireMessage() ? Result::kOk : Result::kUnreadable;
  }

 private:
  Result ReadField(const Descriptor& type, uint32_t tag, CodedInputStream& input, int depth) {
    const FieldDescriptor* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const WireFormatLite::WireType wire_type = WireFormatLite::GetTagWireType(tag);
    // The protocols have no groups, and the parser would keep one as unknown fields.
    if (wire_type == WireFormatLite::WIRETYPE_START_GROUP) return Result::kUnreadable;
    const bool delimited = wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    const bool packed = field != nullptr && field->is_packable() && delimited;
    // The parser keeps a field with another type on the wire as an unknown one.
    if (field != nullptr && !packed && wire_type != FindWireType(*field)) field = nullptr;
    const bool message = field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (field == nullptr || message || (delimited && !packed)) {
      if (++objects_ > limits_.objects) return Result::kTooManyObjects;
      bytes_ += kObjectBytes;
    } else if (!packed && field->is_repeated()) {
      bytes_ += kNumberBytes;
    }
    if (!delimited) {
      return WireFormatLite::SkipField(&input, tag) ? Result::kOk : Result::kUnreadable;
    }
    uint32_t length = 0;
    if (!input.ReadVarint32(&length) || length > kMaxLength) return Result::kUnreadable;
    // PushLimit would keep the outer limit, and the parser would not.
    const int rest = input.BytesUntilLimit();
    if (rest >= 0 && length > static_cast<uint32_t>(rest)) return Result::kUnreadable;
    if (!message) {
      // A packed number takes at least one byte.
      if (packed) bytes_ += length * kNumberBytes;
      return input.Skip(static_cast<int>(length)) ? Result::kOk : Result::kUnreadable;
    }
    const CodedInputStream::Limit outer = input.PushLimit(static_cast<int>(length));
    const Result inner = Read(*field->message_type(), input, depth + 1);
    if (inner == Result::kOk) input.PopLimit(outer);
    return inner;
  }

  const MessageLimits& limits_;
  uint64_t objects_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<uint64_t> MeasureMessage(const Descriptor& type, grpc::ByteBuffer& bytes,
                                        const MessageLimits& limits) {
  Measure measure(limits);
  Measure::Result result = Measure::Result::kUnreadable;
  {
    grpc::ProtoBufferReader reader(&bytes);
    if (reader.status().ok()) {
      CodedInputStream input(&reader);
      result = measure.Read(type, input, 0);
    }
  }
  switch (result) {
    case Measure::Result::kOk:
      return measure.bytes();
    case Measure::Result::kTooManyObjects:
      return errors::TooManyObjects(type.full_name(), limits.objects);
    case Measure::Result::kTooManyBytes:
      return errors::MessageTakesTooMuch(type.full_name(), bytes.Length(), limits.bytes);
    case Measure::Result::kUnreadable:
      break;
  }
  return errors::UnreadableMessage(type.full_name());
}

}  // namespace resident
