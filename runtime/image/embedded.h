// Unpacks files that are part of this program, compressed with zstd (bazel/cuda_image.bzl).
//
// Thread safety: a pure function.
#ifndef RESIDENT_RUNTIME_IMAGE_EMBEDDED_H_
#define RESIDENT_RUNTIME_IMAGE_EMBEDDED_H_

#include <string>

namespace resident {

// Returns the file whose compressed form is in [begin, end). If it is damaged, the program is
// damaged and exits.
std::string UnpackEmbedded(const char* begin, const char* end);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_IMAGE_EMBEDDED_H_
