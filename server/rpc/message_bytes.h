// Converts messages from and to bytes, and measures on the wire what a message becomes in memory.
//
// A message of a few bytes can make the parser allocate hundreds: an empty sub-message is two bytes
// on the wire and an object of its own. Therefore everything that becomes an object (sub-messages,
// texts, unknown fields) is counted before the message is parsed, and a message over the limits of
// its method is refused. This holds for all methods: AdmittedService measures the message of a call
// that has one, and the handlers that read bytes call ParseMessage.
//
// Run, and the streams that clients send, read bytes: if gRPC parses, a message that cannot be
// parsed ends a stream as if the client had ended it, and the message is lost without an error.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_RPC_MESSAGE_BYTES_H_
#define RESIDENT_SERVER_RPC_MESSAGE_BYTES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/errors.h"

namespace resident {

// Memory that is estimated for each object, and for each number of a repeated field: an empty
// sub-message of a graph takes 136 bytes, and a repeated field grows to twice its size.
inline constexpr uint64_t kObjectBytes = 128;
inline constexpr uint64_t kNumberBytes = 16;

struct MessageLimits {
  uint64_t objects = 0;
  uint64_t bytes = 0;  // Of memory, when it is parsed, in addition to its length.
};

// The memory that the parsed message takes in addition to its length, about. INVALID_ARGUMENT: the
// message has more objects than the limit, or cannot be parsed. RESOURCE_EXHAUSTED: it takes more
// bytes than the limit.
absl::StatusOr<uint64_t> MeasureMessage(const google::protobuf::Descriptor& type,
                                        grpc::ByteBuffer& bytes, const MessageLimits& limits);

// Whether a message of this length cannot be over the limits, so that it need not be measured: the
// shortest object and the shortest number take two bytes.
inline bool IsBelowLimits(uint64_t length, const MessageLimits& limits) {
  return length / 2 <= limits.objects && length / 2 * kObjectBytes <= limits.bytes;
}

// Consumes the bytes. Errors: see MeasureMessage; `message` is then unspecified.
template <typename Message>
absl::Status ParseMessage(grpc::ByteBuffer& bytes, const MessageLimits& limits, Message* message) {
  if (!IsBelowLimits(bytes.Length(), limits)) {
    const absl::Status measured = MeasureMessage(*Message::descriptor(), bytes, limits).status();
    if (!measured.ok()) return measured;
  }
  if (grpc::SerializationTraits<Message>::Deserialize(&bytes, message).ok()) {
    return absl::OkStatus();
  }
  return errors::UnreadableMessage(Message::descriptor()->full_name());
}

// For a buffer that exists, ToBytes(message).Swap(&buffer): an assignment would copy the bytes.
template <typename Message>
grpc::ByteBuffer ToBytes(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own = false;
  // Fails only over 2 GiB, which no message here can reach.
  (void)grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own);
  return bytes;
}

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_MESSAGE_BYTES_H_
