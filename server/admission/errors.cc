#include "server/admission/errors.h"

#include <utility>

#include "absl/strings/str_cat.h"
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

absl::Status StagingFull(uint64_t bytes, uint64_t staging_bytes, bool ever_fits) {
  absl::Status status = absl::ResourceExhaustedError(
      ever_fits ? StrCat("staging memory is full: the batch carries ", bytes,
                         " bytes inline or "
                         "returned, of ",
                         staging_bytes,
                         " that all clients share. Fix: wait for "
                         "results before sending more, keep data in buffers, or raise "
                         "--staging_mib")
                : StrCat("the batch carries ", bytes, " bytes inline or returned, more than the ",
                         staging_bytes,
                         " of staging memory. Fix: send smaller batches, keep data "
                         "in buffers, or raise --staging_mib"));
  if (!ever_fits) return status;
  return WithReason(std::move(status), {"STAGING_FULL", {{"limit", StrCat(staging_bytes)}}});
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

}  // namespace resident::errors
