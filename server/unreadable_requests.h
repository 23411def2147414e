// UnreadableRequests: says what is wrong where gRPC says nothing. A request that gRPC itself
// parses, and that is no message, ends its call UNIMPLEMENTED without a word; this makes it
// INVALID_ARGUMENT, with the method and what to do.
//
// Not on the calls that read bytes (services/message_bytes.h): they answer for themselves, and
// gRPC makes each step of a call with an interceptor slower.
//
// Thread safety: as gRPC's interceptors: one call's is called by one thread at a time.
#ifndef RESIDENT_SERVER_UNREADABLE_REQUESTS_H_
#define RESIDENT_SERVER_UNREADABLE_REQUESTS_H_

#include <memory>

#include "grpcpp/support/server_interceptor.h"

namespace resident {

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeUnreadableRequests();

}  // namespace resident

#endif  // RESIDENT_SERVER_UNREADABLE_REQUESTS_H_
