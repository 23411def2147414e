#include "server/services.h"

#include <limits.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <string>

#include "absl/time/clock.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "inference/open_inference.grpc.pb.h"
#include "resident/v1/buffers.grpc.pb.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "resident/v1/models.grpc.pb.h"
#include "resident/v1/operators.grpc.pb.h"
#include "runtime/base/limits.h"
#include "server/connections/connection_table.h"

namespace resident {
namespace {

constexpr uint32_t kMinQuotaMessages = 4;

}  // namespace

Services::Services(Graphs& graphs, Buffers& buffers, Installs& installs, LaneTable& lanes,
                   Models& models, Endpoints& endpoints, const std::vector<DeviceControl*>& devices,
                   AdminService::Facts facts, const InferenceOptions& inference)
    : core_(graphs.core),
      graphs_(graphs),
      buffers_(buffers),
      lanes_(lanes),
      endpoints_(endpoints),
      executor_(core_),
      sessions_(core_),
      buffers_service_(MakeBuffersService(buffers)),
      operators_(MakeOperatorsService(installs)),
      graphs_service_(MakeGraphsService(graphs)),
      lanes_service_(core_, lanes),
      models_service_(MakeModelsService(models)),
      health_(core_, [&endpoints](const std::string& peer,
                                  bool open) { endpoints.listener().OnWatch(peer, open); }),
      admin_(core_, devices, std::move(facts), [this] { BeginDrain(); }),
      inference_(
          MakeInferenceService(buffers, installs, models, inference,
                               [this] { return core_.ready() && !health_.end_announced(); })),
      reflection_(core_,
                  [this] {
                    std::vector<std::string> names = {
                        grpc::reflection::v1alpha::ServerReflection::service_full_name()};
                    for (const auto& [name, service] : Others()) names.emplace_back(name);
                    return names;
                  }()),
      memory_(core_),
      calls_(core_) {}

std::vector<std::pair<const char*, grpc::Service*>> Services::Others() {
  std::vector<std::pair<const char*, grpc::Service*>> services = {
      {v1::Admin::service_full_name(), &admin_},
      {v1::Buffers::service_full_name(), buffers_service_.get()},
      {v1::Executor::service_full_name(), &executor_},
      {v1::Graphs::service_full_name(), graphs_service_.get()},
      {v1::Lanes::service_full_name(), &lanes_service_},
      {v1::Models::service_full_name(), models_service_.get()},
      {v1::Operators::service_full_name(), operators_.get()},
      {v1::Sessions::service_full_name(), &sessions_},
      {grpc::channelz::v1::Channelz::service_full_name(), &channelz_},
      {grpc::health::v1::Health::service_full_name(), &health_}};
  if (inference_ != nullptr) {
    services.emplace_back(inference::GRPCInferenceService::service_full_name(), inference_.get());
  }
  return services;
}

absl::Status Services::Start(std::chrono::milliseconds max_connection_age) {
  grpc::ServerBuilder builder;
  const Limits& limits = core_.limits;
  builder.SetMaxReceiveMessageSize(static_cast<int>(limits.max_message_mib) << 20);
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             static_cast<int>(limits.max_connection_streams));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, static_cast<int>(kHandshakeMs));
  // With this probe, gRPC 1.51 announces a window of 4 MiB and more for each stream, also before
  // its call is admitted; a client's first message could then exceed --max_unadmitted_kib. Without
  // it, the window is 64 KiB, and up to 1 MiB more for a message that the daemon has requested.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // Limits the headers of a call once they are complete. Until then gRPC 1.51 stores headers of any
  // size; therefore the listener limits what a connection without an admitted call may send.
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(kMaxMetadataBytes));
  // Detects clients that disappeared without closing their connection, so that their sessions end.
  // gRPC only sends the pings: the connection table judges the answers.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(kPingAfter.count()));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, INT_MAX);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  if (max_connection_age.count() > 0) {
    // gRPC varies it by 10 %, and then sends GOAWAY. There is no grace limit, because it would end
    // sessions and streams: they and other open calls go on, and new calls use a new connection.
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                               static_cast<int>(max_connection_age.count()));
  }
  // gRPC 1.51 decompresses a whole message before it compares its size with a limit: 1 MiB can
  // become 1 GiB, also before its call is admitted. Therefore it refuses calls with `grpc-encoding`
  // (UNIMPLEMENTED, when it reads their headers), and decompresses nothing.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  memory_.AddTo(builder);
  // The last limit of the memory for what gRPC has received: beyond it, gRPC cancels calls. Below
  // kMinQuotaMessages messages, honest calls could not be served.
  if (limits.max_host_mib > 0) {
    const uint64_t mib = std::max<uint64_t>(limits.max_host_mib,
                                            uint64_t{kMinQuotaMessages} * limits.max_message_mib);
    builder.SetResourceQuota(grpc::ResourceQuota("clients").Resize(mib << 20));
  }
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      endpoints_.MakeCredentials());
  auto services = Others();
  services.emplace_back(grpc::reflection::v1alpha::ServerReflection::service_full_name(),
                        &reflection_);
  for (const auto& [name, service] : services) {
    admitted_.emplace_back(
        *service, name,
        [this](const std::string& method, CallContext& context) {
          return endpoints_.Admit(method, context);
        },
        memory_, calls_);
    builder.RegisterService(&admitted_.back());
  }
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("gRPC failed to start its server");
  health_.Update();
  return endpoints_.Open(buffers_, lanes_, std::move(acceptor));
}

void Services::AnnounceDrain() { health_.AnnounceEnd(); }

void Services::BeginDrain() {
  core_.gate.Close();
  graphs_.checker.EndAll();
  lanes_.BeginDrain();
  health_.Update();
  core_.admission.Wake();
}

void Services::Stop(absl::Duration last_answers) {
  if (server_ == nullptr) return;
  assert(!endpoints_.open());
  server_->Shutdown(absl::ToChronoTime(absl::Now() + last_answers));
  server_->Wait();
  memory_.Stop();
}

}  // namespace resident
