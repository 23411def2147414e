// SHA-256: identifies contents (blobs, cache entries, versions of operators).
//
// Thread safety: an object may be used by one thread at a time.
//
//   Sha256 hash;
//   hash.Field(name).Field(text);   // Different fields give different hashes: lengths are hashed.
//   std::string key = hash.Hex();   // 64 hex digits.
#ifndef RESIDENT_RUNTIME_BASE_SHA256_H_
#define RESIDENT_RUNTIME_BASE_SHA256_H_

#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX.

namespace resident {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Sha256& Add(std::string_view bytes);
  // Adds the length and then the bytes.
  Sha256& Field(std::string_view bytes);
  // Ends the computation.
  std::string Hex();

 private:
  struct evp_md_ctx_st* const context_;
};

// SHA-256 of the bytes as 64 hex digits.
std::string Sha256Hex(std::string_view bytes);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_SHA256_H_
