// ConnectionTable: the open connections of clients, with their limits; it closes
// connections over which no credential was shown, those that hold too much of gRPC's
// memory, and those whose peer has disappeared.
//
// A connection is *unadmitted* until a call over it was admitted: from a caller whose
// credential allows the call, or from any caller if no credential is required. gRPC reads
// and stores what an unadmitted peer sends, including endless header blocks, and keeps its
// connection open as long as the peer answers pings. So an unadmitted connection is closed
//   * after max_unadmitted_idle without a call,
//   * when it has sent more than max_unadmitted_bytes; a slow rate does not count
//     (kUnadmittedBytesPerSecond),
//   * when all of them together have sent more than kMaxAllUnadmittedBytes: the one that has
//     sent the most,
//   * when there is no room for a new connection: the oldest one that has sent nothing yet,
//     not even the beginning of a handshake; otherwise the oldest one, unless it is younger
//     than kGrace. So a peer that sends has that time to be admitted. Before the first bytes it
//     has kSilentGrace: new connections wait in the system's queue meanwhile (MayAccept), so
//     that silent ones, however often they come again, delay others and do not displace them.
// Calls are admitted once their headers are read, before their message is requested. The thread
// that admits a call may have to wait for a processor, while another one continues to read the
// connection. So the daemon announces no larger window than HTTP/2's 64 KiB for a stream whose
// message was not requested (Services::Start): a client with a credential stops there, however
// long the admission takes. Only clients with many concurrent first calls come near these limits.
//
// Unfinished messages: gRPC 1.51 stores a message until it is complete, does not show its
// length before, and does not limit the messages of a connection together. The table compares
// the bytes that the kernel has received with the complete messages that gRPC has handed over
// (ConnectionMeter): the rest is what gRPC holds, plus headers and frames, which the allowance
// kFrameBytesPerSecond covers. It is at most --max_message_mib for each stream whose message
// the daemon awaits. A connection that holds more than max_unfinished_bytes is closed; if all
// together hold more than max_all_unfinished_bytes, the one that holds the most.
//
// Peers that have disappeared: gRPC sends a ping after ping_after without data, and does not
// judge the answer (Services::Start), because it would count the daemon's own delay. The table
// judges by the kernel's counters: data was sent at least ping_after after the last data that
// was received, and answer_within later nothing has arrived, not even data that gRPC has not
// read yet.
//
// How connections are tracked: gRPC owns a connection after it was passed on, and does not
// report when it closes it. The descriptor then refers to another file, or none; comparing
// the file's inode shows whether it still refers to the connection.
//
// Thread safety: all functions may be called from any thread.
#ifndef RESIDENT_SERVER_CONNECTIONS_CONNECTION_TABLE_H_
#define RESIDENT_SERVER_CONNECTIONS_CONNECTION_TABLE_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/synchronization/mutex.h"

namespace resident {

inline constexpr std::chrono::milliseconds kPingAfter{10'000};

struct ConnectionLimits {
  uint32_t max_connections = 4096;
  // Per address, or per /64 network of IPv6. 0: a quarter of max_connections for each
  // address, except for the loopback interface, which then has no such limit.
  uint32_t max_address_connections = 0;
  std::chrono::milliseconds max_unadmitted_idle{20'000};
  uint64_t max_unadmitted_bytes = 1 << 20;
  // What unfinished messages of one connection, and of all, may hold.
  uint64_t max_unfinished_bytes = UINT64_MAX;
  uint64_t max_all_unfinished_bytes = UINT64_MAX;
  uint64_t max_message_bytes = UINT64_MAX;
  // When gRPC sends a ping to a silent peer (Services::Start), and how long the answer may take.
  std::chrono::milliseconds ping_after = kPingAfter;
  std::chrono::milliseconds answer_within{5'000};
};

// Counts the messages of one connection. Thread safety: any thread; the counters are relaxed,
// because a sweep that reads one late only delays its decision.
class ConnectionMeter {
 public:
  // The daemon awaits a message of a call.
  void BeginMessage() { pending_.fetch_add(1, std::memory_order_relaxed); }
  // It has the message, whose length this is, or the call has ended.
  void EndMessage(uint64_t bytes) {
    delivered_.fetch_add(bytes, std::memory_order_relaxed);
    pending_.fetch_sub(1, std::memory_order_relaxed);
  }
  uint64_t pending() const { return pending_.load(std::memory_order_relaxed); }
  uint64_t delivered() const { return delivered_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> pending_{0};
  std::atomic<uint64_t> delivered_{0};
};

// Counted since the start, except for `open`.
struct ConnectionFigures {
  uint64_t open = 0;
  // Closed immediately: there were too many in total or from one address.
  uint64_t refused = 0;
  // Unadmitted ones that the table closed.
  uint64_t closed_idle = 0;
  uint64_t closed_bytes = 0;
  uint64_t closed_for_room = 0;
  // Other ones that the table closed.
  uint64_t closed_unfinished = 0;
  uint64_t closed_silent = 0;
  uint64_t ended = 0;
  // The ended connections over which no call was made: failed handshakes, peers that are
  // not HTTP/2 clients, and silent or unused connections. Either side may have closed them.
  uint64_t without_call = 0;
};

class ConnectionTable {
 public:
  using Clock = std::chrono::steady_clock;

  // Rate at which an unadmitted connection may send without limit.
  static constexpr uint64_t kUnadmittedBytesPerSecond = 32 << 10;
  // gRPC stores up to about a hundred times the bytes that an unadmitted peer sends (a
  // header that refers to a table entry takes one byte). So the limit for all of them is
  // low; the bytes that each one needs for its handshake and its first call do not count.
  static constexpr uint64_t kMaxAllUnadmittedBytes = 8 << 20;
  static constexpr uint64_t kHandshakeBytes = 32 << 10;
  static constexpr auto kGrace = std::chrono::seconds(1);
  static constexpr auto kSilentGrace = std::chrono::milliseconds(200);
  // Headers, frames and acknowledgements that an admitted connection may send without limit.
  static constexpr uint64_t kFrameBytesPerSecond = 4 << 20;

  explicit ConnectionTable(const ConnectionLimits& limits);
  ~ConnectionTable();
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;

  // Whether the next connection may be accepted. False: there is no room, and the connections that
  // would make it have had less than kSilentGrace to send their first bytes; new ones wait.
  bool MayAccept() ABSL_LOCKS_EXCLUDED(mu_);
  // Adds a connection that was just accepted. False: there is no room, and the caller
  // closes it.
  bool Add(int fd, const sockaddr_storage& peer) ABSL_LOCKS_EXCLUDED(mu_);
  // Records a call over the connection from `peer`, in gRPC's form: "ipv4:1.2.3.4:567" or
  // "ipv6:%5B::1%5D:567". `admitted`: see above; false: the caller was refused, or the
  // method is open to all. Returns the connection's meter; null if it is not known. Cheap
  // enough for each call.
  std::shared_ptr<ConnectionMeter> OnCall(std::string_view peer, bool admitted)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Records the begin or end of a stream that is open to all over the connection from
  // `peer`. Meanwhile the connection is not idle; the number of such streams is limited
  // elsewhere (HealthService).
  void OnWatch(std::string_view peer, bool open) ABSL_LOCKS_EXCLUDED(mu_);
  // Closes connections that are over a limit. Returns the time until the next required
  // call; nullopt: not before the next Add. Returns immediately if called earlier than
  // needed.
  std::optional<std::chrono::milliseconds> Sweep() ABSL_LOCKS_EXCLUDED(mu_);
  ConnectionFigures Figures() ABSL_LOCKS_EXCLUDED(mu_);
  // The same without `open`, and without a check for closed connections. Cheap.
  ConnectionFigures counters() const ABSL_LOCKS_EXCLUDED(mu_);
  const ConnectionLimits& limits() const { return limits_; }

 private:
  using File = std::pair<dev_t, ino_t>;
  // An IPv6 address, or a mapped IPv4 address, with the interface of a link-local one.
  using Address = std::pair<std::array<uint8_t, 16>, uint32_t>;
  using Peer = std::pair<Address, uint16_t>;
  // Descriptors, by the order of arrival.
  using Queue = std::map<uint64_t, int>;

  struct Connection {
    File file;
    Peer peer;
    uint64_t number = 0;  // Sequence number of the connection.
    Clock::time_point accepted;
    Clock::time_point last_call;  // Initially `accepted`.
    uint32_t watches = 0;
    bool called = false;
    bool admitted = false;
    bool closing = false;   // Shut down by the table; gRPC has not closed it yet.
    uint64_t received = 0;  // Received bytes at the last check.
    double level = 0;       // Received bytes minus those that the rate allows.
    // From here on for admitted ones, whose level is also without complete messages.
    std::shared_ptr<ConnectionMeter> meter;
    uint64_t delivered = 0;                  // Of the meter, at the last check.
    uint64_t heard = 0;                      // Received bytes at the last check for silence.
    std::optional<Clock::time_point> asked;  // When it was seen that a ping is unanswered.
  };
  // Unadmitted connections, without those that are closing.
  struct Unadmitted {
    Queue all;
    Queue silent;  // Had sent nothing when they were last looked at.
  };
  struct Share {
    uint32_t open = 0;  // Without those that are closing.
    Unadmitted unadmitted;
  };

  static std::optional<Peer> Parse(std::string_view peer);
  static Peer PeerAt(const sockaddr_storage& peer);
  static bool IsLoopback(const Address& address);
  // Maps an address to the key of its share: addresses with the same key share a limit.
  static Address ShareKey(const Address& address);
  static bool StillOpen(int fd, const File& file);
  // Shuts down the connection that a descriptor referred to, unless it is closed.
  void ShutDown(int fd, const File& file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  uint32_t ShareLimit(const Address& address) const;
  bool MakeRoom(const Peer& peer, Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The oldest one that has sent nothing; nullopt: there is none.
  std::optional<int> FindSilentUnadmitted(Unadmitted& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool CloseOldest(Unadmitted& queue, Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Close(int fd, uint64_t* count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveUnadmitted(const Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeaveShare(const Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetClosed(Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Parts of a sweep, which add to over_.
  void FindUnadmitted(Clock::time_point now, double seconds) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FindUnfinished(double seconds) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FindSilent(Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds the connections of levels_ with the most, until at most `max` of `all` is left.
  void FindLargest(double all, double max, uint64_t* count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::chrono::milliseconds SweepPeriod() const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const ConnectionLimits limits_;
  // The file of copy_ while it refers to no connection (see ShutDown).
  const int placeholder_;
  const int copy_;

  mutable absl::Mutex mu_;
  // By descriptor.
  absl::flat_hash_map<int, Connection> open_ ABSL_GUARDED_BY(mu_);
  // Several if one peer reaches the daemon at several addresses from one port.
  absl::flat_hash_map<Peer, absl::InlinedVector<int, 1>> by_peer_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<Address, Share> shares_ ABSL_GUARDED_BY(mu_);
  Unadmitted unadmitted_ ABSL_GUARDED_BY(mu_);
  uint64_t closing_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  // Used by one sweep or check; kept, so that a sweep does not allocate while memory is
  // short or malloc's locks are held (malloc_trim).
  std::vector<std::pair<int, uint64_t*>> over_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<double, int>> levels_ ABSL_GUARDED_BY(mu_);
  std::vector<int> closed_ ABSL_GUARDED_BY(mu_);
  Clock::time_point swept_ ABSL_GUARDED_BY(mu_);
  Clock::time_point checked_ ABSL_GUARDED_BY(mu_);   // For closed ones.
  Clock::time_point listened_ ABSL_GUARDED_BY(mu_);  // For silent ones.
  bool busy_ ABSL_GUARDED_BY(mu_) = false;  // An admitted one received much in the last period.
  ConnectionFigures figures_ ABSL_GUARDED_BY(mu_);  // Without `open`.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CONNECTIONS_CONNECTION_TABLE_H_
