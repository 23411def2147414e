// Messages as the bytes they come and go in. Run, and the streams that clients send, read
// bytes: where gRPC parses, a message that is none ends a stream as if the client had ended
// it, and whatever it carried is lost without a word.
//
// Thread safety: functions without state of their own.
#ifndef RESIDENT_SERVER_RPC_MESSAGE_BYTES_H_
#define RESIDENT_SERVER_RPC_MESSAGE_BYTES_H_

#include "absl/status/status.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"
#include "runtime/base/errors/daemon_errors.h"

namespace resident {

// Takes the bytes. INVALID_ARGUMENT: they are no such message, and `message` has no
// meaning then.
template <typename Message>
absl::Status ParseMessage(grpc::ByteBuffer& bytes, Message* message) {
  if (grpc::SerializationTraits<Message>::Deserialize(&bytes, message).ok()) {
    return absl::OkStatus();
  }
  return errors::UnreadableMessage(Message::descriptor()->full_name());
}

template <typename Message>
grpc::ByteBuffer ToBytes(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own = false;
  // Fails only beyond 2 GiB, for which nothing here has room.
  (void)grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own);
  return bytes;
}

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_MESSAGE_BYTES_H_
