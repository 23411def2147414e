#include "server/rpc/errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/errors/reason.h"

namespace resident::errors {

using absl::StrCat;

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

absl::Status DrainUnfinished(uint64_t remaining) {
  return absl::DeadlineExceededError(StrCat(remaining,
                                            " tasks have not finished. Fix: call Drain again, or "
                                            "stop the daemon, which ends them UNAVAILABLE"));
}

}  // namespace resident::errors
