// Reads a ModelInferRequest from bytes.
//
// A message of a few bytes can make the parser allocate hundreds: each empty input is two bytes on
// the wire and an object of its own. Therefore everything that becomes an object (tensors,
// parameters, texts, contents, unknown fields) is counted on the wire first, and a message with
// more than kMaxInferenceEntries of them is refused before it is parsed. Numbers are not counted:
// an element takes at most eight times its bytes.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_INFERENCE_INFER_MESSAGE_H_
#define RESIDENT_SERVER_INFERENCE_INFER_MESSAGE_H_

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"
#include "inference/open_inference.pb.h"

namespace resident {

// Consumes the bytes. INVALID_ARGUMENT: the message has too many entries, or cannot be parsed.
absl::Status ParseInferRequest(grpc::ByteBuffer& bytes, inference::ModelInferRequest* request);

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_INFER_MESSAGE_H_
