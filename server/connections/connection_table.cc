#include "server/connections/connection_table.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
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
// few percent of a processor. With admitted connections only, and little traffic, kSweepSeldom.
constexpr auto kSweepEvery = milliseconds(20);
constexpr auto kSweepSeldom = milliseconds(100);
constexpr uint64_t kMuchReceived = 1 << 20;
// Interval of checks for peers that have disappeared.
constexpr auto kListenEvery = milliseconds(1000);
// How much the kernel's counters and gRPC's timers may differ.
constexpr auto kTimerSlack = milliseconds(100);
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

// nullopt: not a TCP connection.
std::optional<tcp_info> ReadTcpInfo(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  return info;
}

// Bytes that TCP has received in order; nullopt: not a TCP connection.
std::optional<uint64_t> ReceivedBytes(int fd) {
  const std::optional<tcp_info> info = ReadTcpInfo(fd);
  if (!info.has_value()) return std::nullopt;
  return info->tcpi_bytes_received;
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
  if (open_.empty()) swept_ = now;
  Share& share = shares_[ShareKey(from.first)];
  ++share.open;
  for (Unadmitted* const queues : {&unadmitted_, &share.unadmitted}) {
    queues->all.emplace(connection.number, fd);
    queues->silent.emplace(connection.number, fd);
  }
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

bool ConnectionTable::MayAccept() {
  const auto now = Clock::now();
  absl::MutexLock lock(&mu_);
  const auto full = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return open_.size() - closing_ >= limits_.max_connections;
  };
  if (full() && now - checked_ >= kCheckClosedWhenFull) ForgetClosed(now);
  if (!full()) return true;
  const std::optional<int> silent = FindSilentUnadmitted(unadmitted_);
  return !silent.has_value() || now - open_.find(*silent)->second.accepted >= kSilentGrace;
}

std::optional<int> ConnectionTable::FindSilentUnadmitted(Unadmitted& queue) {
  while (!queue.silent.empty()) {
    const int fd = queue.silent.begin()->second;
    if (!open_.find(fd)->second.called && ReceivedBytes(fd).value_or(1) == 0) return fd;
    queue.silent.erase(queue.silent.begin());
  }
  return std::nullopt;
}

bool ConnectionTable::CloseOldest(Unadmitted& queue, Clock::time_point now) {
  if (queue.all.empty() || closing_ >= kMaxClosing) return false;
  if (const std::optional<int> silent = FindSilentUnadmitted(queue); silent.has_value()) {
    Close(*silent, &figures_.closed_for_room);
    return true;
  }
  const int fd = queue.all.begin()->second;
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
  if (unadmitted_.all.erase(connection.number) == 0) return;
  Share& share = shares_.find(ShareKey(connection.peer.first))->second;
  share.unadmitted.all.erase(connection.number);
  share.unadmitted.silent.erase(connection.number);
  unadmitted_.silent.erase(connection.number);
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

std::shared_ptr<ConnectionMeter> ConnectionTable::OnCall(std::string_view peer, bool admitted) {
  const std::optional<Peer> from = Parse(peer);
  if (!from.has_value()) return nullptr;
  {
    absl::ReaderMutexLock lock(&mu_);
    const auto found = by_peer_.find(*from);
    if (found == by_peer_.end()) return nullptr;
    if (std::all_of(found->second.begin(), found->second.end(),
                    [&](int fd) ABSL_SHARED_LOCKS_REQUIRED(mu_) {
                      return open_.find(fd)->second.admitted;
                    })) {
      return open_.find(found->second.front())->second.meter;
    }
  }
  absl::MutexLock lock(&mu_);
  const auto found = by_peer_.find(*from);
  if (found == by_peer_.end()) return nullptr;
  std::shared_ptr<ConnectionMeter> meter = open_.find(found->second.front())->second.meter;
  if (meter == nullptr) meter = std::make_shared<ConnectionMeter>();
  for (const int fd : found->second) {
    Connection& connection = open_.find(fd)->second;
    connection.called = true;
    connection.last_call = Clock::now();
    connection.meter = meter;
    if (!admitted || connection.admitted) continue;
    connection.admitted = true;
    connection.level = 0;
    if (!connection.closing) RemoveUnadmitted(connection);
  }
  return meter;
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
  const auto all = std::chrono::duration_cast<milliseconds>(open_.size() * kSweepMore);
  return (unadmitted_.all.empty() && !busy_ ? kSweepSeldom : kSweepEvery) + all;
}

std::optional<milliseconds> ConnectionTable::Sweep() {
  const auto now = Clock::now();
  absl::MutexLock lock(&mu_);
  if (open_.empty()) return std::nullopt;
  if (const auto due = swept_ + SweepPeriod(); now < due) {
    return std::chrono::ceil<milliseconds>(due - now);
  }
  if (now - checked_ >= kCheckClosed) ForgetClosed(now);
  const double seconds = std::chrono::duration<double>(now - swept_).count();
  swept_ = now;
  over_.clear();
  FindUnadmitted(now, seconds);
  FindUnfinished(seconds);
  if (now - listened_ >= kListenEvery) FindSilent(now);
  for (const auto& [fd, count] : over_) {
    if (!open_.find(fd)->second.closing) Close(fd, count);
  }
  if (open_.empty()) return std::nullopt;
  return SweepPeriod();
}

void ConnectionTable::FindUnadmitted(Clock::time_point now, double seconds) {
  levels_.clear();
  double all = 0;
  for (const auto& [number, fd] : unadmitted_.all) {
    Connection& connection = open_.find(fd)->second;
    const uint64_t received = ReceivedBytes(fd).value_or(connection.received);
    connection.level = std::max(0.0, connection.level - seconds * kUnadmittedBytesPerSecond) +
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
  FindLargest(all, static_cast<double>(kMaxAllUnadmittedBytes), &figures_.closed_bytes);
}

void ConnectionTable::FindUnfinished(double seconds) {
  levels_.clear();
  busy_ = false;
  double all = 0;
  for (auto& [fd, connection] : open_) {
    if (!connection.admitted || connection.closing) continue;
    const uint64_t delivered = connection.meter->delivered();
    const uint64_t received = ReceivedBytes(fd).value_or(connection.received);
    const uint64_t more = received - std::min(received, connection.received);
    busy_ = busy_ || more > kMuchReceived;
    connection.level = std::max(0.0, connection.level + static_cast<double>(more) -
                                         static_cast<double>(delivered - connection.delivered) -
                                         seconds * kFrameBytesPerSecond);
    connection.received = received;
    connection.delivered = delivered;
    const double possible = static_cast<double>(connection.meter->pending()) *
                            static_cast<double>(limits_.max_message_bytes);
    const double held = std::min(connection.level, possible);
    if (held > static_cast<double>(limits_.max_unfinished_bytes)) {
      over_.emplace_back(fd, &figures_.closed_unfinished);
    } else if (held > 0) {
      all += held;
      levels_.emplace_back(held, fd);
    }
  }
  FindLargest(all, static_cast<double>(limits_.max_all_unfinished_bytes),
              &figures_.closed_unfinished);
}

void ConnectionTable::FindLargest(double all, double max, uint64_t* count) {
  if (all <= max) return;
  std::sort(levels_.rbegin(), levels_.rend());
  for (const auto& [level, fd] : levels_) {
    if (all <= max) break;
    over_.emplace_back(fd, count);
    all -= level;
  }
}

void ConnectionTable::FindSilent(Clock::time_point now) {
  listened_ = now;
  for (auto& [fd, connection] : open_) {
    if (!connection.admitted || connection.closing) continue;
    const std::optional<tcp_info> info = ReadTcpInfo(fd);
    int unread = 0;
    if (!info.has_value() || ioctl(fd, FIONREAD, &unread) != 0) continue;
    const bool asked = milliseconds(info->tcpi_last_data_recv) >=
                       milliseconds(info->tcpi_last_data_sent) + limits_.ping_after - kTimerSlack;
    if (!asked || unread > 0 || info->tcpi_bytes_received != connection.heard) {
      connection.heard = info->tcpi_bytes_received;
      connection.asked.reset();
    } else if (!connection.asked.has_value()) {
      connection.asked = now;
    } else if (now - *connection.asked >= limits_.answer_within) {
      over_.emplace_back(fd, &figures_.closed_silent);
    }
  }
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
