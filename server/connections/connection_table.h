// ConnectionTable: the open connections of clients, how many there may be, and which of them are
// closed because nobody has shown a credential over them.
//
// A connection is *unadmitted* until a call over it was admitted: a caller that showed a
// credential with which it may call something, or any caller where no credential is asked for.
// gRPC reads and stores what an unadmitted peer sends, header blocks without an end among it,
// and keeps its connection open as long as the peer answers pings. So an unadmitted connection
// is closed
//   * after max_unadmitted_idle without a call,
//   * when it has sent more than max_unadmitted_bytes; what it sends slowly does not count
//     (kUnadmittedBytesPerSecond),
//   * when all of them together have sent more than kMaxAllUnadmittedBytes: the one that has
//     sent most,
//   * when there is no room for a new connection: the oldest one, unless it is younger than
//     kGrace. A peer has at least that time to be admitted, however many others come.
// Calls are admitted once their headers are read, before their message: a client with a
// credential is far from these limits.
//
// How connections are followed: gRPC owns a connection from the moment it is handed over, and
// does not say when it closes it. Its descriptor then names another file, or none; the file's
// inode shows whether it still names the connection.
//
// Thread safety: all functions may be called from any thread.
#ifndef RESIDENT_SERVER_CONNECTIONS_CONNECTION_TABLE_H_
#define RESIDENT_SERVER_CONNECTIONS_CONNECTION_TABLE_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/synchronization/mutex.h"

namespace resident {

struct ConnectionLimits {
  uint32_t max_connections = 4096;
  // Of one address, or one /64 network of IPv6. 0: a quarter of max_connections for each
  // address that is not this machine's loopback interface, which has no share then.
  uint32_t max_address_connections = 0;
  std::chrono::milliseconds max_unadmitted_idle{20'000};
  uint64_t max_unadmitted_bytes = 1 << 20;
};

// Since the start, but for `open`.
struct ConnectionFigures {
  uint64_t open = 0;
  // Closed as soon as they were made: there were too many, in all or of one address.
  uint64_t refused = 0;
  // Unadmitted ones that were closed here.
  uint64_t closed_idle = 0;
  uint64_t closed_bytes = 0;
  uint64_t closed_for_room = 0;
  uint64_t ended = 0;
  // Of those: ended before any call came over them, whoever closed them and why: failed handshakes,
  // peers that are not HTTP/2 clients, silent and unused connections.
  uint64_t without_call = 0;
};

class ConnectionTable {
 public:
  using Clock = std::chrono::steady_clock;

  // What an unadmitted connection may send without end.
  static constexpr uint64_t kUnadmittedBytesPerSecond = 32 << 10;
  // gRPC stores up to about a hundred times what an unadmitted peer sends (a header that is
  // named by its number in a table takes one byte). So the limit for all of them is low; what
  // each one needs for its handshake and its first call does not count towards it.
  static constexpr uint64_t kMaxAllUnadmittedBytes = 8 << 20;
  static constexpr uint64_t kHandshakeBytes = 32 << 10;
  static constexpr auto kGrace = std::chrono::seconds(1);

  explicit ConnectionTable(const ConnectionLimits& limits);
  ~ConnectionTable();
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;

  // A connection that was just taken. False: there is no room, and the caller closes it.
  bool Add(int fd, const sockaddr_storage& peer) ABSL_LOCKS_EXCLUDED(mu_);
  // A call came over the connection from `peer`, in gRPC's form: "ipv4:1.2.3.4:567" or
  // "ipv6:%5B::1%5D:567". `admitted`: as above; false: the caller was refused, or the method
  // is open to all. Cheap: for each call.
  void OnCall(std::string_view peer, bool admitted) ABSL_LOCKS_EXCLUDED(mu_);
  // A stream that is open to all has begun or ended over the connection from `peer`. The
  // connection is not idle meanwhile; how many such streams there are is limited elsewhere
  // (HealthService).
  void OnWatch(std::string_view peer, bool open) ABSL_LOCKS_EXCLUDED(mu_);
  // Closes what is over a limit. The time until this has to be called again; nullopt: not
  // before the next Add. Returns at once if it is called earlier than needed.
  std::optional<std::chrono::milliseconds> Sweep() ABSL_LOCKS_EXCLUDED(mu_);
  ConnectionFigures Figures() ABSL_LOCKS_EXCLUDED(mu_);
  // The same without `open`, and without a look for those that are closed. Cheap.
  ConnectionFigures counters() const ABSL_LOCKS_EXCLUDED(mu_);
  const ConnectionLimits& limits() const { return limits_; }

 private:
  using File = std::pair<dev_t, ino_t>;
  // An IPv6 address, or an IPv4 address as one, and the interface of a link-local one.
  using Address = std::pair<std::array<uint8_t, 16>, uint32_t>;
  using Peer = std::pair<Address, uint16_t>;
  // By the order in which they came: descriptors.
  using Queue = std::map<uint64_t, int>;

  struct Connection {
    File file;
    Peer peer;
    uint64_t number = 0;  // Counts connections.
    Clock::time_point accepted;
    Clock::time_point last_call;  // Or accepted.
    uint32_t watches = 0;
    bool called = false;
    bool admitted = false;
    bool closing = false;   // Shut down here; gRPC has not closed it yet.
    uint64_t received = 0;  // When it was last looked at.
    double level = 0;       // Of received bytes, less what may be sent without end.
  };
  struct Share {
    uint32_t open = 0;  // Not those that are closing.
    Queue unadmitted;
  };

  static std::optional<Peer> Parse(std::string_view peer);
  static Peer PeerAt(const sockaddr_storage& peer);
  static bool IsLoopback(const Address& address);
  // Which addresses have one share.
  static Address ShareOf(const Address& address);
  static bool StillOpen(int fd, const File& file);
  // Shuts down the connection that a descriptor named, unless it is closed.
  void ShutDown(int fd, const File& file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  uint32_t ShareLimit(const Address& address) const;
  bool MakeRoom(const Peer& peer, Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool CloseOldest(const Queue& queue, Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Close(int fd, uint64_t* count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoLongerUnadmitted(const Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeaveShare(const Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetClosed(Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::chrono::milliseconds SweepPeriod() const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const ConnectionLimits limits_;
  // What copy_ names while it names no connection (ShutDown).
  const int placeholder_;
  const int copy_;

  mutable absl::Mutex mu_;
  // By descriptor.
  absl::flat_hash_map<int, Connection> open_ ABSL_GUARDED_BY(mu_);
  // Several where one peer reaches the daemon at several addresses from one port.
  absl::flat_hash_map<Peer, absl::InlinedVector<int, 1>> by_peer_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<Address, Share> shares_ ABSL_GUARDED_BY(mu_);
  // All of them; not those that are closing.
  Queue unadmitted_ ABSL_GUARDED_BY(mu_);
  uint64_t closing_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  // Of one sweep or look; kept, so that a sweep allocates nothing while memory is short or its
  // locks are held (malloc_trim).
  std::vector<std::pair<int, uint64_t*>> over_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<double, int>> levels_ ABSL_GUARDED_BY(mu_);
  std::vector<int> closed_ ABSL_GUARDED_BY(mu_);
  Clock::time_point swept_ ABSL_GUARDED_BY(mu_);
  Clock::time_point looked_ ABSL_GUARDED_BY(mu_);   // For closed ones.
  ConnectionFigures figures_ ABSL_GUARDED_BY(mu_);  // But for `open`.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CONNECTIONS_CONNECTION_TABLE_H_
