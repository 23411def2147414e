// Converts messages from and to bytes. Run, and the streams that clients send, read bytes: if gRPC
// parses, a message that cannot be parsed ends a stream as if the client had ended it, and the
// message is lost without an error.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_RPC_MESSAGE_BYTES_H_
#define RESIDENT_SERVER_RPC_MESSAGE_BYTES_H_

#include "absl/status/status.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"
#include "runtime/base/errors/daemon_errors.h"

namespace resident {

// Consumes the bytes. INVALID_ARGUMENT: the bytes cannot be parsed; `message` is then unspecified.
template <typename Message>
absl::Status ParseMessage(grpc::ByteBuffer& bytes, Message* message) {
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
