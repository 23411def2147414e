#include "runtime/engine/image/first_generation.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "runtime/engine/image/embedded.h"
#include "runtime/engine/image/link.h"

#define DECLARE(arch)                                                     \
  extern const char _binary_first_generation_sm##arch##_cubin_gz_start[]; \
  extern const char _binary_first_generation_sm##arch##_cubin_gz_end[];
extern "C" {
RESIDENT_CUDA_ARCHITECTURES(DECLARE)
extern const char _binary_first_generation_ptx_gz_start[];
extern const char _binary_first_generation_ptx_gz_end[];
}
#undef DECLARE

namespace resident {
namespace {

struct Image {
  int architecture;
  const char* begin;
  const char* end;
};

#define IMAGE(arch)                                               \
  Image{arch, _binary_first_generation_sm##arch##_cubin_gz_start, \
        _binary_first_generation_sm##arch##_cubin_gz_end},
const Image kImages[] = {RESIDENT_CUDA_ARCHITECTURES(IMAGE)};
#undef IMAGE

// Returns the image for the GPU, or for an earlier minor version of the same major version; null:
// there is none.
const Image* FindImage(int major, int minor) {
  const Image* best = nullptr;
  for (const Image& image : kImages) {
    if (image.architecture / 10 == major && image.architecture <= major * 10 + minor &&
        (best == nullptr || image.architecture > best->architecture)) {
      best = &image;
    }
  }
  return best;
}

}  // namespace

std::vector<int> ImageArchitectures() {
  std::vector<int> architectures;
  for (const Image& image : kImages) architectures.push_back(image.architecture);
  return architectures;
}

int UnitArchitecture(int major, int minor) {
  const Image* const image = FindImage(major, minor);
  return image != nullptr ? image->architecture : major * 10 + minor;
}

absl::StatusOr<std::string> FirstGenerationImage(int major, int minor, bool from_ptx) {
  const Image* const image = FindImage(major, minor);
  if (image != nullptr && !from_ptx) return UnpackEmbedded(image->begin, image->end);
  const std::string texts =
      UnpackEmbedded(_binary_first_generation_ptx_gz_start, _binary_first_generation_ptx_gz_end);
  std::vector<LinkInput> ptx;
  for (size_t at = 0; at < texts.size(); at += ptx.back().bytes.size() + 1) {
    ptx.push_back({absl::StrCat("source ", ptx.size()), std::string_view(texts.c_str() + at),
                   /*is_ptx=*/true});
  }
  return LinkImage(ptx, major * 10 + minor);
}

}  // namespace resident
