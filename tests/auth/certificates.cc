#include "tests/auth/certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdlib>
#include <iostream>

namespace resident::testing {
namespace {

constexpr long kValidSeconds = 24 * 3600;

void Check(bool done, const char* what) {
  if (done) return;
  std::cerr << "cannot create a certificate: " << what << "\n";
  std::abort();
}

template <typename Write>
std::string Pem(Write write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), &BIO_free);
  Check(write(bio.get()) == 1, "PEM");
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

std::shared_ptr<EVP_PKEY> NewKey() { return {EVP_EC_gen("P-256"), &EVP_PKEY_free}; }

void Extend(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  Check(extension != nullptr, value.c_str());
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// Creates an unsigned certificate without an issuer's name.
std::shared_ptr<X509> NewCertificate(const std::string& common_name, EVP_PKEY* key, long serial) {
  std::shared_ptr<X509> certificate(X509_new(), &X509_free);
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), kValidSeconds);
  X509_set_pubkey(certificate.get(), key);
  if (!common_name.empty()) {
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(common_name.data()),
                               static_cast<int>(common_name.size()), -1, 0);
  }
  return certificate;
}

}  // namespace

Authority::Authority(const std::string& name)
    : key_(NewKey()), certificate_(NewCertificate(name, key_.get(), 1)) {
  X509* const own = certificate_.get();
  X509_set_issuer_name(own, X509_get_subject_name(own));
  Extend(own, own, NID_basic_constraints, "critical,CA:TRUE");
  Extend(own, own, NID_key_usage, "critical,keyCertSign");
  Check(X509_sign(own, key_.get(), EVP_sha256()) > 0, "signature");
  pem_ = Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, own); });
}

IssuedCertificate Authority::Issue(const std::string& common_name,
                                   const std::string& alternative_names) {
  const std::shared_ptr<EVP_PKEY> key = NewKey();
  const std::shared_ptr<X509> issued = NewCertificate(common_name, key.get(), next_serial_++);
  X509_set_issuer_name(issued.get(), X509_get_subject_name(certificate_.get()));
  if (!alternative_names.empty()) {
    Extend(issued.get(), certificate_.get(), NID_subject_alt_name, alternative_names);
  }
  Check(X509_sign(issued.get(), key_.get(), EVP_sha256()) > 0, "signature");
  return {Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, issued.get()); }), Pem([&](BIO* bio) {
            return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

}  // namespace resident::testing
