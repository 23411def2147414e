#include "runtime/base/errors/daemon_errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/errors/reason.h"

namespace resident::errors {

using absl::StrCat;

namespace {

// `what`: what can be given back to have more.
absl::Status OverHostLimit(uint64_t bytes, uint64_t used, uint64_t limit_bytes, bool client,
                           const char* what) {
  return absl::ResourceExhaustedError(
      StrCat(bytes, " bytes of the daemon's memory, with ", used,
             client ? " used by this client" : " used by all clients", ", are over the limit of ",
             limit_bytes >> 20, " MiB. Fix: ", what, ", or raise ",
             client ? "--max_client_host_mib" : "--max_host_mib"));
}

}  // namespace

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

absl::Status NoHostMemory(uint64_t bytes) {
  return absl::ResourceExhaustedError(StrCat(
      "out of memory: cannot allocate ", bytes,
      " bytes. Fix: free durable buffers that are not needed, or give the daemon more memory"));
}

absl::Status HostMemoryFull(uint64_t bytes, uint64_t used, uint64_t limit_bytes, bool client) {
  return OverHostLimit(bytes, used, limit_bytes, client,
                       "free durable buffers that are not needed");
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
