// Links relocatable device code into a cubin with nvJitLink, opened at run time.
//
// Needs no GPU and no context. In a build without CUDA there is no such library target.
//
// Thread safety: may be called from any thread.
#ifndef RESIDENT_RUNTIME_ENGINE_IMAGE_LINK_H_
#define RESIDENT_RUNTIME_ENGINE_IMAGE_LINK_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace resident {

struct LinkInput {
  std::string name;
  // A relocatable cubin, or PTX; of PTX, bytes.data()[bytes.size()] is a zero.
  std::string_view bytes;
  bool is_ptx = false;
};

// The cubin for an architecture, as in 90. PTX is compiled as operators are: within the
// kernel's registers and without constant memory. UNAVAILABLE: there is no nvJitLink.
// INTERNAL: it failed; with its log.
absl::StatusOr<std::string> LinkImage(const std::vector<LinkInput>& inputs, int architecture);

// "nvJitLink 13.0". UNAVAILABLE: as above.
absl::StatusOr<std::string> JitLinkVersion();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_IMAGE_LINK_H_
