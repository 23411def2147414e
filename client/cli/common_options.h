// The flags of every command of residentctl.
//
// Thread safety: set once, while the command line is parsed; read afterwards.
#ifndef RESIDENT_CLIENT_CLI_COMMON_OPTIONS_H_
#define RESIDENT_CLIENT_CLI_COMMON_OPTIONS_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "client/credentials.h"
#include "runtime/base/command_line.h"

namespace resident::cli {

struct CommonOptions {
  std::string server = "127.0.0.1:50051";
  client::CredentialFiles credentials;
  bool json = false;
  std::optional<absl::Duration> timeout;

  absl::Duration call_timeout() const { return timeout.value_or(absl::Minutes(1)); }
  // Longer than the daemon waits for a version that never returns (kValidationTaskLimitMs), so that
  // its answer arrives.
  absl::Duration install_timeout() const { return timeout.value_or(absl::Minutes(5)); }
};

// The options of this process. They are global because they determine how errors are printed.
CommonOptions& Common();

void AddCommonFlags(Command& program);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_COMMON_OPTIONS_H_
