// ChannelzService: grpc.channelz.v1.Channelz, gRPC's description of its own connections and calls,
// for debugging tools.
//
// gRPC's library describes itself in JSON, which this service converts.
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_RPC_CHANNELZ_SERVICE_H_
#define RESIDENT_SERVER_RPC_CHANNELZ_SERVICE_H_

#include "grpc/channelz/v1/channelz.grpc.pb.h"

namespace resident {

class ChannelzService final : public grpc::channelz::v1::Channelz::CallbackService {
 public:
  ChannelzService();
  ~ChannelzService() override;

  // NOT_FOUND: there is no such channel, server, subchannel or socket.
  grpc::ServerUnaryReactor* GetTopChannels(
      grpc::CallbackServerContext* context,
      const grpc::channelz::v1::GetTopChannelsRequest* request,
      grpc::channelz::v1::GetTopChannelsResponse* response) override;
  grpc::ServerUnaryReactor* GetServers(grpc::CallbackServerContext* context,
                                       const grpc::channelz::v1::GetServersRequest* request,
                                       grpc::channelz::v1::GetServersResponse* response) override;
  grpc::ServerUnaryReactor* GetServer(grpc::CallbackServerContext* context,
                                      const grpc::channelz::v1::GetServerRequest* request,
                                      grpc::channelz::v1::GetServerResponse* response) override;
  grpc::ServerUnaryReactor* GetServerSockets(
      grpc::CallbackServerContext* context,
      const grpc::channelz::v1::GetServerSocketsRequest* request,
      grpc::channelz::v1::GetServerSocketsResponse* response) override;
  grpc::ServerUnaryReactor* GetChannel(grpc::CallbackServerContext* context,
                                       const grpc::channelz::v1::GetChannelRequest* request,
                                       grpc::channelz::v1::GetChannelResponse* response) override;
  grpc::ServerUnaryReactor* GetSubchannel(
      grpc::CallbackServerContext* context, const grpc::channelz::v1::GetSubchannelRequest* request,
      grpc::channelz::v1::GetSubchannelResponse* response) override;
  grpc::ServerUnaryReactor* GetSocket(grpc::CallbackServerContext* context,
                                      const grpc::channelz::v1::GetSocketRequest* request,
                                      grpc::channelz::v1::GetSocketResponse* response) override;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_CHANNELZ_SERVICE_H_
