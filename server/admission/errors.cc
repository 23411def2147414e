#include "server/admission/errors.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/reason.h"

namespace resident::errors {

using absl::StrCat;

namespace {

// What is in use, and the limit that refuses more.
std::string DescribeUse(const HostMemoryFigures& bytes, bool client) {
  std::string text = StrCat(" bytes of the daemon's memory; this client uses ", bytes.of_client,
                            ", all clients use ", bytes.of_all, ", and ");
  const uint64_t limit_mib = bytes.limit >> 20;
  if (client) return StrCat(text, "one client may use ", limit_mib, " MiB");
  if (bytes.of_all > bytes.limit || bytes.wanted > bytes.limit - bytes.of_all) {
    return StrCat(text, "all may use ", limit_mib, " MiB");
  }
  const uint64_t share = (bytes.limit - (bytes.of_all - bytes.of_client)) / 2;
  return StrCat(text, "this client may use ", share >> 20,
                " MiB, because each client must leave as much of ", limit_mib,
                " MiB free as it uses");
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

absl::Status BatchMemoryFull(const HostMemoryFigures& bytes, bool client) {
  absl::Status status = absl::ResourceExhaustedError(
      StrCat("the batch's tasks and their results need ", bytes.wanted, DescribeUse(bytes, client),
             ". Fix: wait for results and read them, send batches of fewer tasks, or raise ",
             client ? "--max_client_host_mib" : "--max_host_mib"));
  if (bytes.wanted > bytes.limit) return status;
  return WithReason(std::move(status), {"MEMORY_FULL", {{"limit", StrCat(bytes.limit)}}});
}

absl::Status GraphHostMemoryFull(const HostMemoryFigures& bytes, bool client) {
  return absl::ResourceExhaustedError(
      StrCat("the graph needs ", bytes.wanted, DescribeUse(bytes, client),
             ". Fix: read results, and close graph sessions that are not needed, or raise ",
             client ? "--max_client_host_mib" : "--max_host_mib"));
}

absl::Status NothingToLend() {
  return absl::ResourceExhaustedError(
      "all instances of the model are busy. Fix: send the request again, or load the model with "
      "more "
      "instances");
}

}  // namespace resident::errors
