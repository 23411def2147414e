#include "runtime/base/errors/daemon_errors.h"

#include <utility>

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

absl::Status NoHostMemory(uint64_t bytes) {
  return absl::ResourceExhaustedError(StrCat(
      "out of memory: cannot allocate ", bytes,
      " bytes. Fix: free durable buffers that are not needed, or give the daemon more memory"));
}

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

absl::Status HostMemoryFull(uint64_t bytes, uint64_t used, uint64_t limit_bytes, bool client) {
  return OverHostLimit(bytes, used, limit_bytes, client,
                       "free durable buffers that are not needed");
}

absl::Status GraphHostMemoryFull(uint64_t bytes, uint64_t used, uint64_t limit_bytes, bool client) {
  return OverHostLimit(bytes, used, limit_bytes, client,
                       "read results, and close graph sessions that are not needed");
}

absl::Status BatchMemoryFull(const BatchMemoryFigures& bytes, bool client) {
  absl::Status status = absl::ResourceExhaustedError(StrCat(
      "the batch's tasks and their results need ", bytes.wanted,
      " bytes of the daemon's memory; this client uses ", bytes.of_client, ", all clients use ",
      bytes.of_all, ", and ", client ? "one client may use " : "all may use ", bytes.limit >> 20,
      client ? " MiB" : " MiB, where each client must leave as much free as it uses",
      ". Fix: wait for results and read them, send batches of fewer tasks, or raise ",
      client ? "--max_client_host_mib" : "--max_host_mib"));
  if (bytes.wanted > bytes.limit) return status;
  return WithReason(std::move(status), {"MEMORY_FULL", {{"limit", StrCat(bytes.limit)}}});
}

absl::Status ClientNameTooLong(size_t bytes, size_t limit) {
  return absl::InvalidArgumentError(StrCat("client_name of ", bytes, " bytes is over the limit of ",
                                           limit, ". Fix: send a shorter one"));
}

absl::Status UnknownDevice(int64_t device, size_t devices) {
  return absl::NotFoundError(
      StrCat("no device ", device,
             ". Fix: ", devices == 1 ? "send 0, the only one" : StrCat("send 0 to ", devices - 1),
             " (Admin.Status lists them)"));
}

absl::Status DeviceUnavailable(uint32_t device, const std::string& detail) {
  return WithReason(absl::UnavailableError(
                        StrCat("device ", device, " has no running engine",
                               detail.empty() ? "" : StrCat(" (", detail, ")"),
                               ". Fix: send it again in a second; Admin.Status returns its state")),
                    {"DEVICE_UNAVAILABLE", {{"device", StrCat(device)}}});
}

absl::Status DeviceUnhealthy(uint32_t device, const std::string& detail) {
  return absl::UnavailableError(StrCat("device ", device, " is unhealthy: ", detail));
}

absl::Status NoDeviceAvailable() {
  return WithReason(
      absl::UnavailableError("no device has a running engine. Fix: send it again in a second; "
                             "Admin.Status returns the reason"),
      {"NO_DEVICE", {}});
}

absl::Status UnreadableMessage(const std::string& type) {
  return absl::InvalidArgumentError(
      StrCat("a message cannot be parsed as ", type,
             ": it is truncated, or has a string that is not UTF-8, or is of another type. Fix: "
             "send the messages that the protos of this daemon's version define"));
}

absl::Status TooManyObjects(const std::string& type, uint64_t limit) {
  return absl::InvalidArgumentError(
      StrCat("a message of type ", type, " has more than ", limit,
             " sub-messages, texts and unknown fields, which is the limit of its method. Fix: send "
             "several smaller messages"));
}

absl::Status MessageTakesTooMuch(const std::string& type, uint64_t length, uint64_t limit_bytes) {
  return absl::ResourceExhaustedError(
      StrCat("a message of type ", type, " with ", length, " bytes would take more than ",
             limit_bytes >> 20,
             " MiB of the daemon's memory. Fix: send smaller messages, or raise "
             "--max_client_host_mib and --max_host_mib"));
}

absl::Status CallMemoryFull(const CallMemoryFigures& bytes) {
  return WithReason(
      absl::ResourceExhaustedError(StrCat(
          "the messages and unread answers of this client use ", bytes.of_client,
          " bytes of the daemon's memory, those of all clients ", bytes.of_all, "; the limits are ",
          bytes.client_limit >> 20, " MiB for a client and ", bytes.limit >> 20,
          " MiB for all, of which waiting messages may use a quarter. Fix: read the "
          "answers, send fewer large messages at once, or raise --max_client_host_mib or "
          "--max_host_mib")),
      {"MEMORY_FULL", {{"limit", StrCat(bytes.limit)}}});
}

absl::Status TooManyBatches(uint64_t batches, uint32_t limit) {
  return absl::InvalidArgumentError(StrCat("a message has ", batches, " batches; at most ", limit,
                                           " are allowed. Fix: send them in several messages"));
}

absl::Status Draining() {
  return WithReason(
      absl::UnavailableError("the daemon is draining and accepts no new work. Fix: send it to "
                             "another daemon, or again after the restart"),
      {"DRAINING", {}});
}

absl::Status UnknownHealthService(const std::string& name) {
  return absl::NotFoundError(StrCat("the health service has no service ", Quote(name),
                                    ". Fix: request '' (all of them), a service such as "
                                    "'resident.v1.Executor', or 'resident.device/0'"));
}

absl::Status HealthNameTooLong(size_t bytes, size_t limit) {
  return absl::InvalidArgumentError(StrCat("the name of a service has ", bytes, " bytes, at most ",
                                           limit,
                                           " are allowed. Fix: request '' or a service's name"));
}

absl::Status NoChannelzEntity() {
  return absl::NotFoundError(
      "no such channel, subchannel, server or socket. Fix: begin at GetServers or "
      "GetTopChannels and follow the ids");
}

absl::Status Cancelled() {
  return absl::CancelledError("the call was cancelled. Fix: none needed if that was intended");
}

absl::Status DeadlineExceeded() {
  return absl::DeadlineExceededError(
      "the deadline passed before the tasks reached the device. Fix: allow more time or send "
      "smaller batches");
}

absl::Status DrainUnfinished(uint64_t remaining) {
  return absl::DeadlineExceededError(StrCat(remaining,
                                            " tasks have not finished. Fix: call Drain again, or "
                                            "stop the daemon, which ends them UNAVAILABLE"));
}

}  // namespace resident::errors
