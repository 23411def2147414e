// PassedDescriptors: descriptors of shared memory and of device memory that clients passed over the
// local socket (local_socket.h) and that have not been imported yet.
//
// Each is stored under a token of 128 random bits for the session that passed it. The token
// is valid for one import by that session, of this kind of memory, within a limited time.
//
// Thread safety: all members may be called from any thread.
//
//   ASSIGN_OR_RETURN(std::string token, passed.Add(kind, session, user, fd, Clock::now()));
//   ASSIGN_OR_RETURN(int fd, passed.Take(kind, token, session, Clock::now()));
#ifndef RESIDENT_SERVER_CONNECTIONS_PASSED_DESCRIPTORS_H_
#define RESIDENT_SERVER_CONNECTIONS_PASSED_DESCRIPTORS_H_

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/limits.h"

namespace resident {

class PassedDescriptors {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Kind : uint8_t { kSharedMemory, kDeviceMemory };

  struct Limits {
    size_t in_all = kMaxPassedDescriptors;
    size_t of_user = kMaxPassedDescriptorsPerUser;
    size_t of_session = kMaxPassedDescriptorsPerSession;
    std::chrono::milliseconds lifetime{kPassedDescriptorMs};
  };

  PassedDescriptors() : PassedDescriptors(Limits{}) {}
  explicit PassedDescriptors(const Limits& limits) : limits_(limits) {}
  // Closes the remaining descriptors.
  ~PassedDescriptors();
  PassedDescriptors(const PassedDescriptors&) = delete;
  PassedDescriptors& operator=(const PassedDescriptors&) = delete;

  // Returns the token. On success this object owns the descriptor, otherwise the caller
  // keeps it. `user`: the peer's user, for the limit per user. RESOURCE_EXHAUSTED: a limit
  // was reached.
  absl::StatusOr<std::string> Add(Kind kind, const std::string& session, uid_t user, int fd,
                                  Clock::time_point now) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the descriptor, which the caller closes. NOT_FOUND: the token is unknown, was
  // already used, has expired, or belongs to another session (for which it stays valid).
  // INVALID_ARGUMENT: it is of another kind, and is not valid any more.
  absl::StatusOr<int> Take(Kind kind, const std::string& token, const std::string& session,
                           Clock::time_point now) ABSL_LOCKS_EXCLUDED(mu_);

  // Closes descriptors that have expired or whose session has ended.
  void Sweep(Clock::time_point now, const std::function<bool(const std::string&)>& is_session)
      ABSL_LOCKS_EXCLUDED(mu_);

  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Passed {
    Kind kind;
    std::string session;
    uid_t user;
    int fd;
    Clock::time_point expires;
  };

  const Limits limits_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, Passed> passed_ ABSL_GUARDED_BY(mu_);  // By token.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CONNECTIONS_PASSED_DESCRIPTORS_H_
