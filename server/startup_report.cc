#include "server/startup_report.h"

#include <unistd.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "runtime/base/atomic_file.h"
#include "runtime/base/sandbox/sandbox.h"
#include "server/core/version.h"

namespace resident {

std::string MakeBanner(const Addresses& addresses, const AccessOptions& access,
                       const DeviceSet& devices) {
  const std::string names =
      absl::StrJoin(devices.devices(), "; ", [](std::string* out, const Device* device) {
        const EngineInfo info = device->snapshot().info;
        absl::StrAppend(out, "device ", device->index(), ": ", info.name);
        if (!device->started()) return absl::StrAppend(out, " (unhealthy: it did not start)");
        absl::StrAppend(out, " (", info.traits.engine, ", ", info.workers, " ",
                        info.traits.work_units, ")");
      });
  const std::string& no_gpu = devices.gpu_unavailable_reason();
  const SandboxLayers layers = DescribeSandbox();
  return absl::StrCat(
      "residentd ", kVersion, ": serving on ", addresses.grpc, " (", DescribeAccess(access),
      "); metrics ",
      addresses.metrics.empty() ? "off" : absl::StrCat("at http://", addresses.metrics, "/metrics"),
      addresses.local.empty() ? "" : absl::StrCat("; shared memory at ", addresses.local), "; ",
      names, no_gpu.empty() ? "" : absl::StrCat("; no GPU: ", no_gpu),
      "\nresidentd: compilers are confined by ", layers.held,
      "\nresidentd: engines are confined by ", layers.engines);
}

absl::Status WritePortFile(const std::string& path, const Addresses& addresses) {
  if (path.empty()) return absl::OkStatus();
  const nlohmann::json ports = {{"address", addresses.grpc},
                                {"metrics_address", addresses.metrics},
                                {"local_address", addresses.local},
                                {"pid", static_cast<int64_t>(getpid())}};
  // Every user may read the file.
  const absl::Status written = WriteFileAtomically(path, {ports.dump(), "\n"}, {.mode = 0644});
  if (written.ok()) return written;
  return absl::UnavailableError(
      absl::StrCat("cannot write --port_file=", path, ": ", written.message(),
                   ". Fix: give a path in an existing folder that the daemon may write"));
}

}  // namespace resident
