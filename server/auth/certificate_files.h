// CertificateFiles: the server's certificate, its key and the clients' CA, read from
// files and checked.
//
// Only what fits together is handed on: a key that is not the certificate's, as there
// is for a moment while both are exchanged, is an error, and the server goes on with
// what it has.
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
  std::string key;        // Its private key.
  std::string client_ca;  // Whose certificates clients may have; empty: not asked for.

  bool operator==(const Certificates&) const = default;
};

struct CertificatePaths {
  std::string chain;
  std::string key;
  std::string client_ca;  // Empty: none.
};

// The files' contents, not checked. NOT_FOUND and others, with the path; `warnings` as of
// ReadTrustedFile.
absl::StatusOr<Certificates> ReadCertificates(const CertificatePaths& paths,
                                              std::vector<std::string>* warnings);

// INVALID_ARGUMENT: one is not PEM, or the key is not the certificate's, or is
// encrypted. `paths` are named in messages. Returns when the certificate expires, in
// seconds since 1970.
absl::StatusOr<int64_t> CheckCertificates(const Certificates& certificates,
                                          const CertificatePaths& paths);

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_CERTIFICATE_FILES_H_
