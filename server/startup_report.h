// Reports that a daemon serves: the banner, and the port file for programs.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_STARTUP_REPORT_H_
#define RESIDENT_SERVER_STARTUP_REPORT_H_

#include <string>

#include "absl/status/status.h"
#include "server/auth/access_options.h"
#include "server/device_set.h"

namespace resident {

// The addresses that a daemon listens on.
struct Addresses {
  std::string grpc;
  std::string metrics;  // Empty: there is no metrics page.
  std::string local;    // Empty: there is no local socket.
};

// "residentd 0.1.0: serving on ...", three lines.
std::string MakeBanner(const Addresses& addresses, const AccessOptions& access,
                       const DeviceSet& devices);

// Writes --port_file; does nothing if `path` is empty. UNAVAILABLE: the file cannot be written.
absl::Status WritePortFile(const std::string& path, const Addresses& addresses);

}  // namespace resident

#endif  // RESIDENT_SERVER_STARTUP_REPORT_H_
