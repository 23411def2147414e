#include "server/core/errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/errors/reason.h"

namespace resident::errors {

using absl::StrCat;

absl::Status SessionOfOtherIdentity(const std::string& identity) {
  return absl::PermissionDeniedError(StrCat("the session was not opened by ", Quote(identity),
                                            ". Fix: open a session (Sessions.Open) with the "
                                            "credential that uses it"));
}

absl::Status SessionElsewhere(const std::string& id) {
  return WithReason(
      absl::UnauthenticatedError(
          StrCat("session ", Quote(id),
                 " is one of another daemon, or of this one before its restart. Fix: send all "
                 "calls of a session to the daemon that opened it; a proxy can choose it by the "
                 "header \"resident-affinity\" (docs/operations.md)")),
      {"SESSION_ELSEWHERE", {}});
}

absl::Status NoSlot(const std::string& what, const std::string& holder, const SlotFigures& slots,
                    const std::string& flag) {
  const std::string raise = flag.empty() ? "" : StrCat(", or raise ", flag);
  if (slots.free == 0) {
    return absl::ResourceExhaustedError(StrCat("all ", slots.total, " ", what, " are in use, ",
                                               slots.held, " of them by ", holder,
                                               ". Fix: try again once one has ended", raise));
  }
  return absl::ResourceExhaustedError(
      StrCat(holder, " has ", slots.held, " of ", slots.total, " ", what, ", and the ", slots.free,
             " that are free are reserved for callers that have none. Fix: end one first", raise));
}

absl::Status SlotQuota(const std::string& what, const std::string& holder, uint64_t held,
                       uint64_t quota, const std::string& quota_name) {
  return absl::ResourceExhaustedError(
      StrCat(holder, " has ", held, " ", what, " and a quota of ", quota, " (quotas.", quota_name,
             "). Fix: end one first, or raise the quota in the daemon's policy (--policy)"));
}

absl::Status TooManyCalls(const std::string& holder, uint64_t held, uint64_t used, uint64_t limit) {
  return absl::ResourceExhaustedError(StrCat(
      holder, " has ", held, " open calls, all callers have ", used, " of ", limit,
      ", and each must leave as many free as it has. Fix: end the calls and streams that are not "
      "needed, or raise --max_host_mib"));
}

absl::Status ClientNameTooLong(size_t bytes, size_t limit) {
  return absl::InvalidArgumentError(StrCat("client_name of ", bytes, " bytes is over the limit of ",
                                           limit, ". Fix: send a shorter one"));
}

absl::Status OperatorNotForGraphs(const std::string& name, const std::string& reason) {
  return absl::FailedPreconditionError(StrCat("operator ", Quote(name),
                                              " cannot be called from a graph: ", reason,
                                              ". Fix: call another operator"));
}

}  // namespace resident::errors
