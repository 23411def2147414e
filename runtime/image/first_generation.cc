#include "runtime/image/first_generation.h"

#include <cstddef>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "runtime/base/status_macros.h"
#include "runtime/image/embedded.h"
#include "runtime/image/link.h"

namespace resident {
namespace {

absl::Span<const ImageFile> Images() {
  const ImageFiles& files = *resident_image_files();
  return absl::MakeConstSpan(files.images, static_cast<size_t>(files.image_count));
}

// Returns the image for the GPU, or for an earlier minor version of the same major version; null:
// there is none.
const ImageFile* FindImage(int major, int minor) {
  const ImageFile* best = nullptr;
  for (const ImageFile& image : Images()) {
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
  for (const ImageFile& image : Images()) architectures.push_back(image.architecture);
  return architectures;
}

int UnitArchitecture(int major, int minor) {
  const ImageFile* const image = FindImage(major, minor);
  return image != nullptr ? image->architecture : major * 10 + minor;
}

absl::Status CheckImageFiles(const ImageFiles& files) {
  if (std::strcmp(files.checksum, kImageChecksum) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      "libresident_image.so is that of another build than this program. Fix: install both from the "
      "same bundle, and start the program again");
}

absl::StatusOr<std::string> FirstGenerationImage(int major, int minor, bool from_ptx) {
  const ImageFiles& files = *resident_image_files();
  RETURN_IF_ERROR(CheckImageFiles(files));
  const ImageFile* const image = FindImage(major, minor);
  if (image != nullptr && !from_ptx) return UnpackEmbedded(image->begin, image->end);
  const std::string texts = UnpackEmbedded(files.ptx.begin, files.ptx.end);
  std::vector<LinkInput> ptx;
  for (size_t at = 0; at < texts.size(); at += ptx.back().bytes.size() + 1) {
    ptx.push_back({absl::StrCat("source ", ptx.size()), std::string_view(texts.c_str() + at),
                   /*is_ptx=*/true});
  }
  return LinkImage(ptx, major * 10 + minor);
}

}  // namespace resident
