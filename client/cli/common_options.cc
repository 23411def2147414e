#include "client/cli/common_options.h"

#include "runtime/base/host_port.h"

namespace resident::cli {

CommonOptions& Common() {
  static CommonOptions* const kCommon = new CommonOptions();
  return *kCommon;
}

void AddCommonFlags(Command& program) {
  CommonOptions& common = Common();
  client::CredentialFiles& files = common.credentials;
  program.Flag("server", &common.server, "host:port of the daemon",
               {.holds = [](const std::string& server) { return IsServerAddress(server); },
                .fix = "it is not HOST:PORT; give a port from 1 to 65535, for example "
                       "127.0.0.1:50051",
                .environment = "RESIDENTD_SERVER"});
  program.Flag("tls", &files.tls,
               "encrypt, and check the daemon's certificate; implied by --tls_ca and --tls_cert");
  program.Flag("tls_ca", &files.tls_ca,
               "PEM file with the authorities of the daemon's certificate; empty: the system's",
               {.environment = "RESIDENTD_TLS_CA"});
  program.Flag("tls_cert", &files.tls_cert, "PEM file with the client's certificate",
               {.environment = "RESIDENTD_TLS_CERT"});
  program.Flag("tls_key", &files.tls_key, "PEM file with the certificate's private key",
               {.environment = "RESIDENTD_TLS_KEY"});
  program.Flag("tls_server_name", &files.tls_server_name,
               "name in the daemon's certificate, if it is not the host in --server",
               {.environment = "RESIDENTD_TLS_SERVER_NAME"});
  program.Flag("token_file", &files.token_file, "file with the token of the caller's identity",
               {.environment = "RESIDENTD_TOKEN_FILE"});
  program.Flag("json", &common.json, "print JSON, also for errors");
  program.Flag("timeout", &common.timeout,
               "longest wait for each call, e.g. 5s or 2m; default: 1m, and 5m for an install",
               {.holds =
                    [](std::optional<absl::Duration> timeout) {
                      return !timeout.has_value() || *timeout > absl::ZeroDuration();
                    },
                .fix = "give more than 0, e.g. 5s or 2m"});
}

}  // namespace resident::cli
