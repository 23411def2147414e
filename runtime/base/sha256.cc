#include "runtime/base/sha256.h"

#include <openssl/evp.h>

#include <cstdint>

namespace resident {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  EVP_DigestInit_ex(context_, EVP_sha256(), nullptr);
}

Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

Sha256& Sha256::Add(std::string_view bytes) {
  EVP_DigestUpdate(context_, bytes.data(), bytes.size());
  return *this;
}

Sha256& Sha256::Field(std::string_view bytes) {
  const uint64_t size = bytes.size();
  return Add({reinterpret_cast<const char*>(&size), sizeof(size)}).Add(bytes);
}

std::string Sha256::Hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(context_, digest, &size);
  std::string hex;
  hex.reserve(2 * size);
  for (unsigned i = 0; i < size; ++i) {
    hex.push_back("0123456789abcdef"[digest[i] >> 4]);
    hex.push_back("0123456789abcdef"[digest[i] & 15]);
  }
  return hex;
}

std::string Sha256Hex(std::string_view bytes) { return Sha256().Add(bytes).Hex(); }

}  // namespace resident
