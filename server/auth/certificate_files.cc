#include "server/auth/certificate_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <time.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/auth/trusted_file.h"

namespace resident {
namespace {

template <auto kFree>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;

Bio Open(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Without this, OpenSSL would ask for a password on the terminal.
int NoPassword(char*, int, int, void*) { return 0; }

absl::Status Bad(const std::string& path, const std::string& what, const std::string& fix) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what, ". Fix: ", fix));
}

// Checks that all certificates of a file can be parsed and that there is at least one;
// returns the first.
absl::StatusOr<Certificate> CheckChain(const std::string& text, const std::string& path) {
  const Bio bio = Open(text);
  Certificate first(PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr));
  if (first == nullptr) return Bad(path, "has no certificate", "write one as PEM");
  for (;;) {
    const Certificate next(PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr));
    if (next != nullptr) continue;
    const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
    ERR_clear_error();
    if (!at_end) return Bad(path, "has a damaged certificate", "write it again, as PEM");
    return first;
  }
}

}  // namespace

absl::StatusOr<Certificates> ReadCertificates(const CertificatePaths& paths,
                                              std::vector<std::string>* warnings) {
  Certificates certificates;
  const auto read = [&](const std::string& path, std::string& text) {
    ASSIGN_OR_RETURN(auto contents, ReadTrustedFile(path, kMaxCertificateFileBytes,
                                                    /*secret=*/path == paths.key, warnings));
    text = std::move(contents);
    return absl::OkStatus();
  };
  absl::Status status = read(paths.chain, certificates.chain);
  if (status.ok()) status = read(paths.key, certificates.key);
  if (status.ok() && !paths.client_ca.empty()) {
    status = read(paths.client_ca, certificates.client_ca);
  }
  if (!status.ok()) return status;
  return certificates;
}

absl::StatusOr<int64_t> CheckCertificates(const Certificates& certificates,
                                          const CertificatePaths& paths) {
  ASSIGN_OR_RETURN(auto chain, CheckChain(certificates.chain, paths.chain));
  const Bio bio = Open(certificates.key);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
  if (key == nullptr) {
    return Bad(paths.key, "has no private key, or an encrypted one",
               "write the key as PEM, without a password");
  }
  if (X509_check_private_key(chain.get(), key.get()) != 1) {
    return Bad(paths.key, absl::StrCat("is not the key of ", paths.chain),
               "set a certificate and its own key");
  }
  if (!paths.client_ca.empty()) {
    ASSIGN_OR_RETURN(const auto ca, CheckChain(certificates.client_ca, paths.client_ca));
  }
  tm expires{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(chain.get()), &expires) != 1) {
    return Bad(paths.chain, "has no end of validity", "issue a new certificate");
  }
  return static_cast<int64_t>(timegm(&expires));
}

}  // namespace resident
