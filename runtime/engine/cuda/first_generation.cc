#include "runtime/engine/cuda/first_generation.h"

#include "runtime/engine/cuda/driver.h"

#define DECLARE(arch)                                                  \
  extern const char _binary_first_generation_sm##arch##_cubin_start[]; \
  extern const char _binary_first_generation_sm##arch##_cubin_end[];
extern "C" {
RESIDENT_CUDA_ARCHITECTURES(DECLARE)
extern const char _binary_first_generation_ptx_start[];
extern const char _binary_first_generation_ptx_end[];
}
#undef DECLARE

namespace resident {
namespace {

struct Image {
  int architecture;
  const char* begin;
  const char* end;
};

#define IMAGE(arch)                                            \
  Image{arch, _binary_first_generation_sm##arch##_cubin_start, \
        _binary_first_generation_sm##arch##_cubin_end},
const Image kImages[] = {RESIDENT_CUDA_ARCHITECTURES(IMAGE)};
#undef IMAGE

}  // namespace

std::vector<int> ImageArchitectures() {
  std::vector<int> architectures;
  for (const Image& image : kImages) architectures.push_back(image.architecture);
  return architectures;
}

absl::StatusOr<std::string> FirstGenerationImage(int major, int minor, bool from_ptx) {
  const int architecture = major * 10 + minor;
  const Image* best = nullptr;
  for (const Image& image : kImages) {
    if (image.architecture / 10 == major && image.architecture <= architecture &&
        (best == nullptr || image.architecture > best->architecture)) {
      best = &image;
    }
  }
  if (best != nullptr && !from_ptx) return std::string(best->begin, best->end);
  std::vector<std::string> ptx;
  for (const char* at = _binary_first_generation_ptx_start; at < _binary_first_generation_ptx_end;
       at += ptx.back().size() + 1) {
    ptx.emplace_back(at);
  }
  return LinkPtx(ptx, architecture);
}

}  // namespace resident
