
#include "server/endpoints.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/host_port.h"
#include "runtime/base/log.h"
#include "runtime/base/process/process_limits.h"
#include "runtime/base/status_macros.h"
#include "server/auth/access_options.h"
#include "server/auth/method_roles.h"
#include "server/auth/presented.h"

namespace resident {
namespace {

// The number of connections that the process may have, at most `wanted`; it needs `own` descriptors
// for other purposes.
uint32_t MaxConnections(uint32_t wanted, uint32_t own) {
  const uint64_t descriptors = RaiseDescriptorLimit(uint64_t{wanted} + own);
  if (descriptors >= uint64_t{wanted} + own) return wanted;
  const uint64_t possible =
      std::max(descriptors / 2, descriptors - std::min<uint64_t>(descriptors, own));
  LogWarning("accepting at most ", possible, " connections, not --max_connections=", wanted,
             ", because the process may open only ", descriptors,
             " file descriptors. Fix: raise LimitNOFILE, or ulimit -Hn");
  return static_cast<uint32_t>(possible);
}

}  // namespace

Endpoints::Endpoints(const ServeOptions& options, std::unique_ptr<Listener> listener)
    : options_(options),
      files_(options_.access, &access_, &server_credentials_),
      listener_(std::move(listener)) {}

absl::StatusOr<std::unique_ptr<Endpoints>> Endpoints::Bind(const ServeOptions& options) {
  ASSIGN_OR_RETURN(auto listener, Listener::Bind("address", options.address));
  if (!options.metrics_address.empty()) {
    RETURN_IF_ERROR(CheckListen("metrics_address", options.metrics_address));
  }
  if (const absl::Status status = CheckAccessOptions(options.access, options.address);
      !status.ok()) {
    return absl::InvalidArgumentError(status.message());  // Only other flags change it.
  }
  if (const std::string warning = AccessWarning(options.access, options.address);
      !warning.empty()) {
    LogWarning(warning);
  }
  auto endpoints = std::make_unique<Endpoints>(options, std::move(listener));
  if (!options.local_address.empty() && options.allow_shared_memory) {
    ASSIGN_OR_RETURN(endpoints->local_, LocalSocket::Bind(options.local_address));
  }
  RETURN_IF_ERROR(endpoints->files_.Load());
  return endpoints;
}

std::string Endpoints::address() const {
  return absl::StrCat(HostPart(options_.address), ":", listener_->port());
}

std::string Endpoints::local_address() const {
  return local_ == nullptr ? "" : options_.local_address;
}

absl::Status Endpoints::Admit(const std::string& method, CallContext& context) {
  absl::Status status;
  bool known = true;  // The caller has a credential, where one is required.
  if (credentials()) {
    const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
    const Presented presented = PresentedBy(context.client_metadata(), *auth);
    status = access_.Admit(method, presented);
    known =
        status.ok() && (!FindMethodRule(method).open_to_all || access_.Identify(presented).ok());
  }
  context.set_meter(listener_->OnCall(context.peer(), known));
  return status;
}

absl::Status Endpoints::Open(
    Buffers& buffers, LaneTable& lanes,
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor) {
  Core& core = buffers.core;
  files_.Watch([&core] { core.streams.EndRefused(); });
  uint32_t own_descriptors = kOwnDescriptors;
  if (options_.allow_shared_memory) own_descriptors += kMaxSharedBuffers;
  if (local_ != nullptr) {
    own_descriptors += kLocalDescriptors + kDescriptorsOfLane * options_.max_lanes;
    local_->Start(
        {.is_session =
             [&core](const std::string& session) { return core.clients.HasSession(session); },
         .attach = [&lanes](const std::string& token) { return lanes.Attach(token); },
         .sealed = core.credentials},
        buffers.passed_descriptors);
  }
  trimmer_ = std::make_unique<HeapTrimmer>([this] { return listener_->Figures().ended; });
  callback_threads_ = std::make_unique<CallbackThreads>();
  const Limits& limits = options_.limits;
  // A client may always send one message, and two clients each one.
  const uint64_t max_message = uint64_t{limits.max_message_mib} << 20;
  return listener_->Start(
      {.max_connections = MaxConnections(limits.max_connections, own_descriptors),
       .max_address_connections = limits.max_address_connections,
       .max_unadmitted_idle = std::chrono::milliseconds(limits.max_unadmitted_idle_ms),
       .max_unadmitted_bytes = uint64_t{limits.max_unadmitted_kib} << 10,
       .max_unfinished_bytes = std::max(core.admission.host().client_limit(), max_message),
       .max_all_unfinished_bytes = std::max(core.admission.host().limit() / 2, 2 * max_message),
       .max_message_bytes = max_message},
      std::move(acceptor));
}

void Endpoints::Close() {
  files_.Stop();
  listener_->Stop();
  callback_threads_.reset();  // Its channel would keep gRPC's threads after the server's end.
  if (local_ != nullptr) local_->Stop();
}

}  // namespace resident
