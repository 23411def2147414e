// Links relocatable device code into an image with nvJitLink, opened at run time.
//
// Needs no GPU and no context. In a build without CUDA there is no such library target.
//
// Thread safety: may be called from any thread.
#ifndef RESIDENT_RUNTIME_ENGINE_IMAGE_LINK_H_
#define RESIDENT_RUNTIME_ENGINE_IMAGE_LINK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/engine/image/generation_objects.h"

namespace resident {

// The image (a cubin) for an architecture, as in 90. UNAVAILABLE: there is no nvJitLink.
// INTERNAL: it failed; with its log.
absl::StatusOr<std::string> LinkImage(const std::vector<LinkInput>& inputs, int architecture);

// "nvJitLink 13.0". UNAVAILABLE: as above.
absl::StatusOr<std::string> JitLinkVersion();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_IMAGE_LINK_H_
