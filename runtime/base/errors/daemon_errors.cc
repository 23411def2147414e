#include "runtime/base/errors/daemon_errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/errors/reason.h"

namespace resident::errors {

using absl::StrCat;

absl::Status NoSession() {
  return absl::UnauthenticatedError(
      "the call has no session. Fix: open one (Sessions.Open) and send its id as metadata "
      "\"resident-session\"");
}

absl::Status UnknownSession(const std::string& id) {
  return WithReason(absl::UnauthenticatedError(StrCat("no session ", Quote(id),
                                                      ": it has ended or never existed. Fix: open "
                                                      "one (Sessions.Open) and keep its stream "
                                                      "open")),
                    {"UNKNOWN_SESSION", {}});
}

absl::Status Draining() {
  return WithReason(
      absl::UnavailableError("the daemon is draining and accepts no new work. Fix: send it to "
                             "another daemon, or again after the restart"),
      {"DRAINING", {}});
}

absl::Status Cancelled() {
  return absl::CancelledError("the call was cancelled. Fix: none needed if that was intended");
}

absl::Status DeadlineExceeded() {
  return absl::DeadlineExceededError(
      "the deadline passed before the tasks reached the device. Fix: allow more time or send "
      "smaller batches");
}

}  // namespace resident::errors
