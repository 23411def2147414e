#include "runtime/compile/sdk_headers.h"

#include "runtime/base/sha256.h"

namespace resident {

const std::string& SdkHash() {
  static const std::string* const hash = [] {
    Sha256 sha;
    for (const auto& [name, text] : SdkHeaders()) sha.Field(name).Field(text);
    return new std::string(sha.Hex());
  }();
  return *hash;
}

}  // namespace resident
