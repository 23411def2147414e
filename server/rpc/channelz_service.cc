#include "server/rpc/channelz_service.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <string>

#include "google/protobuf/util/json_util.h"
#include "server/rpc/errors.h"
#include "server/rpc/unary_call.h"

namespace resident {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;
namespace channelz = grpc::channelz::v1;

// Answers with `json`, which is freed; null: there is no such object.
ServerUnaryReactor* Answer(CallbackServerContext* context, char* json,
                           google::protobuf::Message* response) {
  return UnaryCall::Serve(*context, [&](UnaryCall&) -> absl::Status {
    if (json == nullptr) return errors::NoChannelzEntity();
    const auto parsed = google::protobuf::util::JsonStringToMessage(json, response);
    gpr_free(json);
    if (parsed.ok()) return absl::OkStatus();
    return absl::InternalError("gRPC's description of itself cannot be converted");
  });
}

}  // namespace

ChannelzService::ChannelzService() = default;
ChannelzService::~ChannelzService() = default;

ServerUnaryReactor* ChannelzService::GetTopChannels(CallbackServerContext* context,
                                                    const channelz::GetTopChannelsRequest* request,
                                                    channelz::GetTopChannelsResponse* response) {
  return Answer(context, grpc_channelz_get_top_channels(request->start_channel_id()), response);
}

ServerUnaryReactor* ChannelzService::GetServers(CallbackServerContext* context,
                                                const channelz::GetServersRequest* request,
                                                channelz::GetServersResponse* response) {
  return Answer(context, grpc_channelz_get_servers(request->start_server_id()), response);
}

ServerUnaryReactor* ChannelzService::GetServer(CallbackServerContext* context,
                                               const channelz::GetServerRequest* request,
                                               channelz::GetServerResponse* response) {
  return Answer(context, grpc_channelz_get_server(request->server_id()), response);
}

ServerUnaryReactor* ChannelzService::GetServerSockets(
    CallbackServerContext* context, const channelz::GetServerSocketsRequest* request,
    channelz::GetServerSocketsResponse* response) {
  return Answer(context,
                grpc_channelz_get_server_sockets(request->server_id(), request->start_socket_id(),
                                                 request->max_results()),
                response);
}

ServerUnaryReactor* ChannelzService::GetChannel(CallbackServerContext* context,
                                                const channelz::GetChannelRequest* request,
                                                channelz::GetChannelResponse* response) {
  return Answer(context, grpc_channelz_get_channel(request->channel_id()), response);
}

ServerUnaryReactor* ChannelzService::GetSubchannel(CallbackServerContext* context,
                                                   const channelz::GetSubchannelRequest* request,
                                                   channelz::GetSubchannelResponse* response) {
  return Answer(context, grpc_channelz_get_subchannel(request->subchannel_id()), response);
}

ServerUnaryReactor* ChannelzService::GetSocket(CallbackServerContext* context,
                                               const channelz::GetSocketRequest* request,
                                               channelz::GetSocketResponse* response) {
  return Answer(context, grpc_channelz_get_socket(request->socket_id()), response);
}

}  // namespace resident
