// Creates certificates during the test, for tests of TLS.
//
// Thread safety: use an authority from one thread at a time.
//
//   Authority ca("test CA");
//   const IssuedCertificate server = ca.Issue("server", "DNS:localhost,IP:127.0.0.1");
#ifndef RESIDENT_TESTS_AUTH_CERTIFICATES_H_
#define RESIDENT_TESTS_AUTH_CERTIFICATES_H_

#include <memory>
#include <string>

struct evp_pkey_st;  // OpenSSL's EVP_PKEY and X509.
struct x509_st;

namespace resident::testing {

// In PEM format.
struct IssuedCertificate {
  std::string certificate;
  std::string key;
};

class Authority {
 public:
  explicit Authority(const std::string& name);

  // `alternative_names` as in OpenSSL's configuration: "URI:spiffe://a/b"; may be empty.
  IssuedCertificate Issue(const std::string& common_name, const std::string& alternative_names);
  // The authority's own certificate.
  const std::string& certificate() const { return pem_; }

 private:
  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_st> certificate_;
  std::string pem_;
  long next_serial_ = 2;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_AUTH_CERTIFICATES_H_
