// Files that this program carries in it, gzip'ed (bazel/cuda_image.bzl).
//
// Thread safety: a pure function.
#ifndef RESIDENT_RUNTIME_ENGINE_IMAGE_EMBEDDED_H_
#define RESIDENT_RUNTIME_ENGINE_IMAGE_EMBEDDED_H_

#include <string>

namespace resident {

// The file whose gzip'ed form stands in [begin, end). What is damaged ends the program:
// it is the program that is damaged.
std::string UnpackEmbedded(const char* begin, const char* end);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_IMAGE_EMBEDDED_H_
