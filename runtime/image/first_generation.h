// The image of the kernel with the built-in operators, linked at build time
// (kernels/resident): the first generation, which is part of all later ones.
#ifndef RESIDENT_RUNTIME_IMAGE_FIRST_GENERATION_H_
#define RESIDENT_RUNTIME_IMAGE_FIRST_GENERATION_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/resident/image_files.h"

namespace resident {

// Architectures with an image in this build, e.g. 80, 90.
std::vector<int> ImageArchitectures();

// Returns the compile target of operators for a GPU of compute capability major.minor: the
// architecture of its image; without an image, its own.
int UnitArchitecture(int major, int minor);

// UNAVAILABLE: the files are those of another build than this program.
absl::Status CheckImageFiles(const ImageFiles& files);

// Returns the image for a GPU of compute capability major.minor: the one that was linked for
// it, or for an earlier minor version of the same major version; otherwise one that is now linked
// from PTX. `from_ptx` links from PTX in any case. UNAVAILABLE: it must be linked, and there is
// no nvJitLink; or CheckImageFiles fails.
absl::StatusOr<std::string> FirstGenerationImage(int major, int minor, bool from_ptx = false);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_IMAGE_FIRST_GENERATION_H_
