#include "server/connections/passed_descriptors.h"

#include <sys/random.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/process/unique_fd.h"
#include "server/connections/errors.h"

namespace resident {
namespace {

// Returns 128 random bits as hexadecimal digits.
std::string NewToken() {
  char bits[16];
  size_t have = 0;
  while (have < sizeof(bits)) {
    const ssize_t got = getrandom(bits + have, sizeof(bits) - have, 0);
    if (got > 0) have += static_cast<size_t>(got);
  }
  return absl::BytesToHexString(absl::string_view(bits, sizeof(bits)));
}

}  // namespace

PassedDescriptors::~PassedDescriptors() {
  absl::MutexLock lock(&mu_);
  for (const auto& [token, passed] : passed_) close(passed.fd);
}

absl::StatusOr<std::string> PassedDescriptors::Add(Kind kind, const std::string& session,
                                                   uid_t user, int fd, Clock::time_point now) {
  std::string token = NewToken();
  absl::MutexLock lock(&mu_);
  size_t of_user = 0;
  size_t of_session = 0;
  for (const auto& [other, passed] : passed_) {
    of_user += passed.user == user;
    of_session += passed.session == session;
  }
  if (of_session >= limits_.of_session) {
    return errors::TooManyPassedDescriptors(limits_.of_session, "this session");
  }
  if (of_user >= limits_.of_user) {
    return errors::TooManyPassedDescriptors(limits_.of_user, absl::StrCat("user ", user));
  }
  if (passed_.size() >= limits_.in_all) {
    return errors::TooManyPassedDescriptors(limits_.in_all, "all clients");
  }
  passed_.emplace(token, Passed{kind, session, user, fd, now + limits_.lifetime});
  return token;
}

absl::StatusOr<int> PassedDescriptors::Take(Kind kind, const std::string& token,
                                            const std::string& session, Clock::time_point now) {
  UniqueFd other;  // Closed after the lock is released: closing a client's descriptor can block.
  absl::MutexLock lock(&mu_);
  const auto found = passed_.find(token);
  // The message is the same for all of these cases, so that it does not reveal which tokens
  // exist.
  if (found == passed_.end() || found->second.session != session || found->second.expires <= now) {
    return errors::UnknownDescriptorToken(static_cast<uint32_t>(limits_.lifetime.count()));
  }
  const Kind passed = found->second.kind;
  const int fd = found->second.fd;
  passed_.erase(found);
  if (passed == kind) return fd;
  other.Reset(fd);
  return errors::DescriptorOfAnotherKind(passed == Kind::kDeviceMemory);
}

void PassedDescriptors::Sweep(Clock::time_point now,
                              const std::function<bool(const std::string&)>& is_session) {
  std::vector<int> closing;
  {
    absl::MutexLock lock(&mu_);
    absl::erase_if(passed_, [&](const auto& entry) {
      const Passed& passed = entry.second;
      if (passed.expires > now && is_session(passed.session)) return false;
      closing.push_back(passed.fd);
      return true;
    });
  }
  for (const int fd : closing) close(fd);
}

size_t PassedDescriptors::size() const {
  absl::MutexLock lock(&mu_);
  return passed_.size();
}

}  // namespace resident
