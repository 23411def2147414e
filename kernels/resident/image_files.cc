#include "kernels/resident/image_files.h"

#include <iterator>

#define DECLARE(arch)                                                      \
  extern const char _binary_first_generation_sm##arch##_cubin_zst_start[]; \
  extern const char _binary_first_generation_sm##arch##_cubin_zst_end[];
extern "C" {
RESIDENT_CUDA_ARCHITECTURES(DECLARE)
extern const char _binary_first_generation_ptx_zst_start[];
extern const char _binary_first_generation_ptx_zst_end[];
}
#undef DECLARE

namespace resident {
namespace {

#define IMAGE(arch)                                                    \
  ImageFile{arch, _binary_first_generation_sm##arch##_cubin_zst_start, \
            _binary_first_generation_sm##arch##_cubin_zst_end},
// With an entry at the end that does not count: a build may have no images.
const ImageFile kImages[] = {RESIDENT_CUDA_ARCHITECTURES(IMAGE){0, nullptr, nullptr}};
#undef IMAGE

const ImageFiles kFiles = {
    kImageChecksum,
    kImages,
    static_cast<int>(std::size(kImages)) - 1,
    {0, _binary_first_generation_ptx_zst_start, _binary_first_generation_ptx_zst_end}};

}  // namespace
}  // namespace resident

const resident::ImageFiles* resident_image_files() { return &resident::kFiles; }
