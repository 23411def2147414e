// The flags that every command of residentctl takes.
//
// Thread safety: set once, while the command line is parsed; read afterwards.
#ifndef RESIDENT_CLIENT_CLI_COMMON_OPTIONS_H_
#define RESIDENT_CLIENT_CLI_COMMON_OPTIONS_H_

#include <string>

#include "absl/time/time.h"
#include "client/credentials.h"
#include "runtime/base/command_line.h"

namespace resident::cli {

struct CommonOptions {
  std::string server = "127.0.0.1:50051";
  client::CredentialFiles credentials;
  bool json = false;
  absl::Duration timeout = absl::Seconds(60);
};

// Those of this process: how errors are printed depends on them, wherever one is found.
CommonOptions& Common();

void AddCommonFlags(Command& program);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_COMMON_OPTIONS_H_
