#include "server/connections/listener.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/base/host_port.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

// Connections that the system queues until they are accepted.
constexpr int kBacklog = 4096;
// A peer that acknowledges nothing for this long is considered disconnected.
constexpr unsigned kUserTimeoutMs = 5'000;
// Maximum number accepted from one socket before other sockets, and Stop, are handled.
constexpr int kMaxAcceptsAtOnce = 64;
// Wait while the process has no descriptor left, or the table no room for now.
constexpr int kRetryMs = 100;
constexpr auto kReportEvery = std::chrono::minutes(1);

absl::Status CannotListen(const std::string& flag, const std::string& address,
                          const std::string& why) {
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address, ": ", why,
                   ". Fix: stop the process that uses the address, or set another one "
                   "with --",
                   flag));
}

void SetOption(int fd, int level, int name, unsigned value) {
  setsockopt(fd, level, name, &value, sizeof(value));
}

uint16_t* FindPort(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? &reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : &reinterpret_cast<sockaddr_in&>(address).sin_port;
}

struct Address {
  sockaddr_storage to{};
  socklen_t bytes = 0;

  bool operator==(const Address& other) const {
    return bytes == other.bytes && memcmp(&to, &other.to, bytes) == 0;
  }
};

Address Wildcard(sa_family_t family, uint16_t port) {
  Address any;
  any.to.ss_family = family;
  any.bytes = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  *FindPort(any.to) = htons(port);
  return any;
}

// All addresses of a host, each once; or getaddrinfo's error.
std::variant<std::vector<Address>, int> Resolve(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return error;
  }
  std::vector<Address> all;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    Address address;
    memcpy(&address.to, at->ai_addr, at->ai_addrlen);
    address.bytes = at->ai_addrlen;
    // A name may have the same address twice (/etc/hosts).
    if (std::find(all.begin(), all.end(), address) == all.end()) all.push_back(address);
  }
  freeaddrinfo(found);
  return all;
}

// Returns a socket bound to the address; -1: errno is set.
int BoundSocket(const Address& address) {
  const int fd = socket(address.to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.to.ss_family == AF_INET6) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  // Accepted connections inherit these options.
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address.to), address.bytes) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

uint16_t BoundPort(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(*FindPort(address));
}

}  // namespace

absl::Status CheckListen(const std::string& flag, const std::string& address) {
  return Listener::Bind(flag, address).status();
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Bind(const std::string& flag,
                                                         const std::string& address) {
  std::unique_ptr<Listener> listener(new Listener(flag, address));
  RETURN_IF_ERROR(listener->BindAll());
  return listener;
}

absl::Status Listener::BindAll() {
  const std::optional<HostPort> parts = ParseHostPort(address_);
  if (!parts.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag_, "=", address_,
        " is not host:port. Fix: set it to an address with a port from 0 to 65535, for "
        "example 127.0.0.1:",
        flag_ == "metrics_address" ? 9464 : 50051));
  }
  const auto resolved = Resolve(parts->host, std::to_string(parts->port));
  if (const int* const error = std::get_if<int>(&resolved)) {
    return CannotListen(flag_, address_, gai_strerror(*error));
  }
  std::vector<Address> addresses = std::get<std::vector<Address>>(resolved);
  const uint16_t port = ntohs(*FindPort(addresses.front().to));
  const std::vector<Address> wildcards = {Wildcard(AF_INET6, port), Wildcard(AF_INET, port)};
  // Either wildcard means all addresses of the machine; IPv4's if there is no IPv6.
  const bool everywhere =
      std::find(wildcards.begin(), wildcards.end(), addresses.front()) != wildcards.end();
  if (everywhere) addresses = wildcards;
  int error = 0;
  for (Address& address : addresses) {
    // A name's other addresses get the same port as the first one.
    if (port_ != 0) *FindPort(address.to) = htons(port_);
    const int fd = BoundSocket(address);
    if (fd >= 0) {
      sockets_.push_back(fd);
      if (port_ == 0) port_ = BoundPort(fd);
      if (everywhere) break;
    } else if (error == 0 || errno == EADDRINUSE) {
      error = errno;
      if (error == EADDRINUSE) break;
    }
  }
  // An address that this machine does not have (IPv6, for example) is skipped, if another
  // one works.
  if (sockets_.empty() || error == EADDRINUSE) {
    return CannotListen(flag_, address_, strerror(error));
  }
  return absl::OkStatus();
}

Listener::~Listener() {
  Stop();
  for (const int socket : sockets_) close(socket);
}

absl::Status Listener::Start(const ConnectionLimits& limits,
                             std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc) {
  owned_table_ = std::make_unique<ConnectionTable>(limits);
  table_.store(owned_table_.get(), std::memory_order_release);
  grpc_ = std::move(grpc);
  for (const int socket : sockets_) {
    if (listen(socket, kBacklog) != 0) return CannotListen(flag_, address_, strerror(errno));
  }
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "resident-accept");
    AcceptAll();
  });
  sweeper_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "resident-sweep");
    SweepAll();
  });
  return absl::OkStatus();
}

void Listener::Stop() {
  if (!thread_.joinable()) return;
  stop_.Signal();
  thread_.join();
  stop_sweeper_.Signal();
  sweeper_.join();
  for (const int socket : sockets_) close(socket);
  sockets_.clear();
}

void Listener::OnWatch(std::string_view peer, bool open) {
  ConnectionTable* const table = table_.load(std::memory_order_acquire);
  if (table != nullptr) table->OnWatch(peer, open);
}

std::shared_ptr<ConnectionMeter> Listener::OnCall(std::string_view peer, bool admitted) {
  ConnectionTable* const table = table_.load(std::memory_order_acquire);
  return table == nullptr ? nullptr : table->OnCall(peer, admitted);
}

ConnectionFigures Listener::Figures() {
  ConnectionTable* const table = table_.load(std::memory_order_acquire);
  return table == nullptr ? ConnectionFigures() : table->Figures();
}

void Listener::AcceptAll() {
  std::vector<pollfd> polled = {{stop_.fd(), POLLIN, 0}};
  for (const int socket : sockets_) polled.push_back({socket, POLLIN, 0});
  while (true) {
    if (poll(polled.data(), polled.size(), -1) < 0) continue;
    if (polled[0].revents != 0) break;
    bool able = true;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0) able = Accept(polled[i].fd) && able;
    }
    // Waiting connections would make the next poll() return immediately.
    if (!able) poll(polled.data(), 1, kRetryMs);
  }
}

void Listener::SweepAll() {
  pollfd polled[] = {{stop_sweeper_.fd(), POLLIN, 0}, {accepted_.fd(), POLLIN, 0}};
  while (true) {
    if (poll(polled, 2, Sweep()) < 0) continue;
    if (polled[0].revents != 0) break;
    if (polled[1].revents != 0) accepted_.Drain();
  }
  reported_.reset();
  Report();
}

bool Listener::Accept(int socket) {
  for (int taken = 0; taken < kMaxAcceptsAtOnce; ++taken) {
    if (!owned_table_->MayAccept()) return false;
    const int fd = accept4(socket, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      PassOn(socket, fd);
    } else if (errno == EAGAIN) {
      return true;
    } else if (errno != EINTR && errno != ECONNABORTED && errno != EPROTO && errno != EPERM) {
      // The other errors are of a connection that was reset, or that a firewall forbids.
      ReportNoRoom(errno);
      return false;
    }
  }
  return true;
}

void Listener::PassOn(int socket, int fd) {
  sockaddr_storage peer;
  socklen_t bytes = sizeof(peer);
  // gRPC would log a connection that its client has already reset.
  const bool added = getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0 &&
                     owned_table_->Add(fd, peer);
  accepted_.Signal();
  if (!added) {
    close(fd);
    return;
  }
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = socket;
  connection.fd = fd;
  grpc_->HandleNewConnection(&connection);
}

int Listener::Sweep() {
  const auto next = owned_table_->Sweep();
  const int report = Report();
  if (!next.has_value()) return report;
  const int sweep = static_cast<int>(next->count());
  return report < 0 ? sweep : std::min(report, sweep);
}

int Listener::Report() {
  const ConnectionFigures now = owned_table_->counters();
  const uint64_t refused = now.refused - reported_figures_.refused;
  const uint64_t idle = now.closed_idle - reported_figures_.closed_idle;
  const uint64_t bytes = now.closed_bytes - reported_figures_.closed_bytes;
  const uint64_t for_room = now.closed_for_room - reported_figures_.closed_for_room;
  const uint64_t unfinished = now.closed_unfinished - reported_figures_.closed_unfinished;
  const uint64_t silent = now.closed_silent - reported_figures_.closed_silent;
  if (refused + idle + bytes + for_room + unfinished + silent == 0) return -1;
  if (reported_.has_value()) {
    const auto left = absl::FromChrono(*reported_ + kReportEvery - Clock::now());
    if (left > absl::ZeroDuration()) return static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
  }
  if (refused > 0) {
    LogWarning(refused, " connections were refused: more than --max_connections=",
               owned_table_->limits().max_connections, ", or more than one address's share of it (",
               "--max_address_connections=", owned_table_->limits().max_address_connections,
               "). Fix: close unneeded connections, or raise the limit");
  }
  if (idle + bytes + for_room > 0) {
    LogWarning("connections without an admitted call were closed: ", idle,
               " had no call for --max_unadmitted_idle_ms=",
               owned_table_->limits().max_unadmitted_idle.count(), ", ", bytes,
               " had sent more than --max_unadmitted_kib=",
               owned_table_->limits().max_unadmitted_bytes >> 10, ", ", for_room,
               " were closed to make room for others under --max_connections=",
               owned_table_->limits().max_connections);
  }
  if (unfinished > 0) {
    LogWarning(
        unfinished,
        " connections were closed because their unfinished messages held more memory than "
        "--max_client_host_mib, or those of all connections more than half of --max_host_mib. "
        "Fix: send fewer large messages at once, or raise the limits");
  }
  if (silent > 0) {
    LogWarning(silent, " connections were closed because their clients did not answer for ",
               (owned_table_->limits().ping_after + owned_table_->limits().answer_within).count(),
               " ms");
  }
  reported_ = Clock::now();
  reported_figures_ = now;
  return -1;
}

void Listener::ReportNoRoom(int error) {
  if (reported_no_room_.has_value() && Clock::now() - *reported_no_room_ < kReportEvery) return;
  LogError("cannot accept connections at the moment, new ones wait: ", strerror(error),
           ". Fix: raise LimitNOFILE, or ulimit -n");
  reported_no_room_ = Clock::now();
}

}  // namespace resident
