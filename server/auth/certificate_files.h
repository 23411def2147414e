// CertificateFiles: reads the server's certificate, its key and the clients' CA from files,
// and checks them.
//
// Only a matching set is accepted: a key that does not belong to the certificate, as
// happens briefly while both are replaced, is an error, and the server keeps its current
// ones.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_AUTH_CERTIFICATE_FILES_H_
#define RESIDENT_SERVER_AUTH_CERTIFICATE_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace resident {

inline constexpr size_t kMaxCertificateFileBytes = 4u << 20;

// As PEM.
struct Certificates {
  std::string chain;      // The server's certificate, then those that issued it.
  std::string key;        // The certificate's private key.
  std::string client_ca;  // CA of the clients' certificates; empty: not requested.

  bool operator==(const Certificates&) const = default;
};

struct CertificatePaths {
  std::string chain;
  std::string key;
  std::string client_ca;  // Empty: none.
};

// Reads the files without checking them. NOT_FOUND and others, with the path; `warnings`:
// see ReadTrustedFile.
absl::StatusOr<Certificates> ReadCertificates(const CertificatePaths& paths,
                                              std::vector<std::string>* warnings);

// INVALID_ARGUMENT: a file is not PEM, or the key does not belong to the certificate, or is
// encrypted. Messages contain the path. Returns when the certificate expires, in seconds
// since 1970.
absl::StatusOr<int64_t> CheckCertificates(const Certificates& certificates,
                                          const CertificatePaths& paths);

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_CERTIFICATE_FILES_H_
