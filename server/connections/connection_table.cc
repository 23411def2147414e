#include "server/connections/connection_table.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace resident {
namespace {

using std::chrono::milliseconds;

// Interval of checks of what unadmitted connections have sent, and how much each such
// connection adds to it: checking one takes about a microsecond, so that all checks take a
// few percent of a processor.
constexpr auto kSweepEvery = milliseconds(20);
constexpr auto kSweepMore = std::chrono::microseconds(25);
// Interval of checks for closed connections: while the limit is reached, and otherwise.
constexpr auto kCheckClosedWhenFull = milliseconds(10);
constexpr auto kCheckClosed = milliseconds(1000);
// Maximum number of connections that were shut down and that gRPC has not closed yet. It is
// low because they use descriptors that are reserved for other purposes (kOwnDescriptors).
constexpr uint64_t kMaxClosing = 256;
constexpr uint32_t kShareDivisor = 4;

constexpr uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool IsMapped(const std::array<uint8_t, 16>& address) {
  return memcmp(address.data(), kMappedPrefix, sizeof(kMappedPrefix)) == 0;
}

std::array<uint8_t, 16> Mapped(const in_addr& v4) {
  std::array<uint8_t, 16> address;
  memcpy(address.data(), kMappedPrefix, sizeof(kMappedPrefix));
  memcpy(address.data() + sizeof(kMappedPrefix), &v4, sizeof(v4));
  return address;
}

// Bytes that TCP has received in order; nullopt: not a TCP connection.
std::optional<uint64_t> ReceivedBytes(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  return info.tcpi_bytes_received;
}

}  // namespace

std::optional<ConnectionTable::Peer> ConnectionTable::Parse(std::string_view text) {
  absl::string_view peer(text.data(), text.size());
  const bool v4 = absl::ConsumePrefix(&peer, "ipv4:");
  if (!v4 && !absl::ConsumePrefix(&peer, "ipv6:")) return std::nullopt;
  const size_t colon = peer.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(peer.substr(colon + 1), &port) ||
      port > 65535) {
    return std::nullopt;
  }
  absl::string_view host = peer.substr(0, colon);
  char ended[INET6_ADDRSTRLEN] = {};
  Peer parsed{{{}, 0}, static_cast<uint16_t>(port)};
  if (v4) {
    in_addr address;
    if (host.size() >= sizeof(ended)) return std::nullopt;
    memcpy(ended, host.data(), host.size());
    if (inet_pton(AF_INET, ended, &address) != 1) return std::nullopt;
    parsed.first.first = Mapped(address);
    return parsed;
  }
  // The brackets, and the "%" before an interface, are percent-encoded in a URI.
  if (!absl::ConsumePrefix(&host, "%5B")) absl::ConsumePrefix(&host, "[");
  if (!absl::ConsumeSuffix(&host, "%5D")) absl::ConsumeSuffix(&host, "]");
  if (const size_t percent = host.find('%'); percent != absl::string_view::npos) {
    absl::string_view interface = host.substr(percent);
    if (!absl::ConsumePrefix(&interface, "%25")) absl::ConsumePrefix(&interface, "%");
    if (!absl::SimpleAtoi(interface, &parsed.first.second)) return std::nullopt;
    host = host.substr(0, percent);
  }
  if (host.size() >= sizeof(ended)) return std::nullopt;
  memcpy(ended, host.data(), host.size());
  if (inet_pton(AF_INET6, ended, parsed.first.first.data()) != 1) return std::nullopt;
  return parsed;
}

ConnectionTable::Peer ConnectionTable::PeerAt(const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(peer);
    return {{Mapped(v4.sin_addr), 0}, ntohs(v4.sin_port)};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(peer);
  Peer found{{{}, v6.sin6_scope_id}, ntohs(v6.sin6_port)};
  memcpy(found.first.first.data(), &v6.sin6_addr, sizeof(v6.sin6_addr));
  return found;
}

bool ConnectionTable::IsLoopback(const Address& address) {
  const auto& bytes = address.first;
  if (IsMapped(bytes)) return bytes[12] == 127;
  in6_addr v6;
  memcpy(&v6, bytes.data(), sizeof(v6));
  return IN6_IS_ADDR_LOOPBACK(&v6);
}

ConnectionTable::Address ConnectionTable::ShareKey(const Address& address) {
  Address share = address;
  // The owner of an IPv6 address usually has the whole /64 network.
  if (!IsMapped(share.first) && !IsLoopback(share)) {
    std::fill(share.first.begin() + 8, share.first.end(), 0);
  }
  return share;
}

bool ConnectionTable::StillOpen(int fd, const File& file) {
  struct stat now;
  return fstat(fd, &now) == 0 && File(now.st_dev, now.st_ino) == file;
}

ConnectionTable::ConnectionTable(const ConnectionLimits& limits)
    : limits_(limits),
      placeholder_(eventfd(0, EFD_CLOEXEC)),
      copy_(fcntl(placeholder_, F_DUPFD_CLOEXEC, 0)) {}

ConnectionTable::~ConnectionTable() {
  close(copy_);
  close(placeholder_);
}

void ConnectionTable::ShutDown(int fd, const File& file) {
  // gRPC may close the descriptor at any time, and another file may get its number. A copy
  // of the descriptor keeps referring to the same file. The number of the copy is reserved.
  const int named = dup3(fd, copy_, O_CLOEXEC);
  if (named < 0) return;  // It is already closed.
  if (StillOpen(named, file)) {
    // gRPC's close() resets the connection, which also informs a peer whose window is
    // closed.
    const linger reset{1, 0};
    setsockopt(named, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    shutdown(named, SHUT_RDWR);
    // Discard data that was received but not read; otherwise gRPC would read and store it.
    // Nothing is received after the shutdown, so gRPC sees the end of the stream next.
    while (recv(named, nullptr, INT_MAX, MSG_TRUNC | MSG_DONTWAIT) > 0) {
    }
  }
  dup3(placeholder_, copy_, O_CLOEXEC);
}

uint32_t ConnectionTable::ShareLimit(const Address& address) const {
  if (limits_.max_address_connections != 0) return limits_.max_address_connections;
  if (IsLoopback(address)) return limits_.max_connections;
  return std::max<uint32_t>(1, limits_.max_connections / kShareDivisor);
}

bool ConnectionTable::Add(int fd, const sockaddr_storage& peer) {
  const Peer from = PeerAt(peer);
  struct stat file;
  const auto now = Clock::now();
  absl::MutexLock lock(&mu_);
  // The previous connection with this descriptor number is closed.
  Forget(fd);
  if (!MakeRoom(from, now) || fstat(fd, &file) != 0) {
    ++figures_.refused;
    return false;
  }
  Connection connection;
  connection.file = File(file.st_dev, file.st_ino);
  connection.peer = from;
  connection.number = ++last_number_;
  connection.accepted = connection.last_call = now;
  if (unadmitted_.empty()) swept_ = now;
  unadmitted_.emplace(connection.number, fd);
  Share& share = shares_[ShareKey(from.first)];
  ++share.open;
  share.unadmitted.emplace(connection.number, fd);
  by_peer_[from].push_back(fd);
  open_.emplace(fd, connection);
  return true;
}

bool ConnectionTable::MakeRoom(const Peer& peer, Clock::time_point now) {
  const Address address = ShareKey(peer.first);
  const uint32_t limit = ShareLimit(peer.first);
  const auto own_share_is_full = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto share = shares_.find(address);
    return share != shares_.end() && share->second.open >= limit;
  };
  const auto all_are_taken = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return open_.size() - closing_ >= limits_.max_connections || closing_ >= kMaxClosing;
  };
  if ((own_share_is_full() || all_are_taken()) && now - checked_ >= kCheckClosedWhenFull)
    ForgetClosed(now);
  if (own_share_is_full() && !CloseOldest(shares_[address].unadmitted, now)) return false;
  if (all_are_taken() && !CloseOldest(unadmitted_, now)) return false;
  return true;
}

bool ConnectionTable::CloseOldest(const Queue& queue, Clock::time_point now) {
  if (queue.empty() || closing_ >= kMaxClosing) return false;
  const int fd = queue.begin()->second;
  if (now - open_.find(fd)->second.accepted < kGrace) return false;
  Close(fd, &figures_.closed_for_room);
  return true;
}

void ConnectionTable::Close(int fd, uint64_t* count) {
  Connection& connection = open_.find(fd)->second;
  ShutDown(fd, connection.file);
  ++*count;
  RemoveUnadmitted(connection);
  LeaveShare(connection);
  connection.closing = true;
  ++closing_;
}

void ConnectionTable::RemoveUnadmitted(const Connection& connection) {
  if (unadmitted_.erase(connection.number) == 0) return;
  shares_.find(ShareKey(connection.peer.first))->second.unadmitted.erase(connection.number);
}

void ConnectionTable::LeaveShare(const Connection& connection) {
  const auto share = shares_.find(ShareKey(connection.peer.first));
  if (--share->second.open == 0) shares_.erase(share);
}

void ConnectionTable::Forget(int fd) {
  const auto found = open_.find(fd);
  if (found == open_.end()) return;
  const Connection& connection = found->second;
  ++figures_.ended;
  if (!connection.called) ++figures_.without_call;
  if (connection.closing) {
    --closing_;
  } else {
    RemoveUnadmitted(connection);
    LeaveShare(connection);
  }
  const auto peer = by_peer_.find(connection.peer);
  auto& fds = peer->second;
  fds.erase(std::remove(fds.begin(), fds.end(), fd), fds.end());
  if (fds.empty()) by_peer_.erase(peer);
  open_.erase(found);
}

void ConnectionTable::ForgetClosed(Clock::time_point now) {
  checked_ = now;
  closed_.clear();
  for (const auto& [fd, connection] : open_) {
    if (!StillOpen(fd, connection.file)) closed_.push_back(fd);
  }
  for (const int fd : closed_) Forget(fd);
}

void ConnectionTable::OnCall(std::string_view peer, bool admitted) {
  const std::optional<Peer> from = Parse(peer);
  if (!from.has_value()) return;
  {
    absl::ReaderMutexLock lock(&mu_);
    const auto found = by_peer_.find(*from);
    if (found == by_peer_.end()) return;
    if (std::all_of(found->second.begin(), found->second.end(),
                    [&](int fd) ABSL_SHARED_LOCKS_REQUIRED(mu_) {
                      return open_.find(fd)->second.admitted;
                    })) {
      return;
    }
  }
  absl::MutexLock lock(&mu_);
  const auto found = by_peer_.find(*from);
  if (found == by_peer_.end()) return;
  for (const int fd : found->second) {
    Connection& connection = open_.find(fd)->second;
    connection.called = true;
    connection.last_call = Clock::now();
    if (!admitted || connection.admitted) continue;
    connection.admitted = true;
    if (!connection.closing) RemoveUnadmitted(connection);
  }
}

void ConnectionTable::OnWatch(std::string_view peer, bool open) {
  const std::optional<Peer> from = Parse(peer);
  if (!from.has_value()) return;
  absl::MutexLock lock(&mu_);
  const auto found = by_peer_.find(*from);
  if (found == by_peer_.end()) return;
  for (const int fd : found->second) {
    Connection& connection = open_.find(fd)->second;
    connection.last_call = Clock::now();
    // The watch that ended may belong to an earlier connection from the same port.
    if (open) {
      ++connection.watches;
    } else if (connection.watches > 0) {
      --connection.watches;
    }
  }
}

milliseconds ConnectionTable::SweepPeriod() const {
  return kSweepEvery + std::chrono::duration_cast<milliseconds>(unadmitted_.size() * kSweepMore);
}

std::optional<milliseconds> ConnectionTable::Sweep() {
  const auto now = Clock::now();
  absl::MutexLock lock(&mu_);
  if (unadmitted_.empty()) return std::nullopt;
  if (const auto due = swept_ + SweepPeriod(); now < due) {
    return std::chrono::ceil<milliseconds>(due - now);
  }
  if (now - checked_ >= kCheckClosed) ForgetClosed(now);
  const double allowed =
      std::chrono::duration<double>(now - swept_).count() * kUnadmittedBytesPerSecond;
  swept_ = now;
  over_.clear();
  levels_.clear();
  double all = 0;
  for (const auto& [number, fd] : unadmitted_) {
    Connection& connection = open_.find(fd)->second;
    const uint64_t received = ReceivedBytes(fd).value_or(connection.received);
    connection.level = std::max(0.0, connection.level - allowed) +
                       static_cast<double>(received - std::min(received, connection.received));
    connection.received = received;
    if (connection.level > static_cast<double>(limits_.max_unadmitted_bytes)) {
      over_.emplace_back(fd, &figures_.closed_bytes);
    } else if (connection.watches == 0 &&
               now - connection.last_call > limits_.max_unadmitted_idle) {
      over_.emplace_back(fd, &figures_.closed_idle);
    } else if (connection.level > static_cast<double>(kHandshakeBytes)) {
      const double counted = connection.level - static_cast<double>(kHandshakeBytes);
      all += counted;
      levels_.emplace_back(counted, fd);
    }
  }
  if (all > kMaxAllUnadmittedBytes) {
    std::sort(levels_.rbegin(), levels_.rend());
    for (const auto& [level, fd] : levels_) {
      if (all <= kMaxAllUnadmittedBytes) break;
      over_.emplace_back(fd, &figures_.closed_bytes);
      all -= level;
    }
  }
  for (const auto& [fd, count] : over_) Close(fd, count);
  if (unadmitted_.empty()) return std::nullopt;
  return SweepPeriod();
}

ConnectionFigures ConnectionTable::Figures() {
  absl::MutexLock lock(&mu_);
  ForgetClosed(Clock::now());
  ConnectionFigures figures = figures_;
  figures.open = open_.size();
  return figures;
}

ConnectionFigures ConnectionTable::counters() const {
  absl::ReaderMutexLock lock(&mu_);
  return figures_;
}

}  // namespace resident
