#include "runtime/image/embedded.h"

#include <zstd.h>

#include <cstdio>
#include <cstdlib>

namespace resident {

std::string UnpackEmbedded(const char* begin, const char* end) {
  const auto packed = static_cast<size_t>(end - begin);
  // The zstd program writes the size of the content, and a checksum.
  const unsigned long long size = ZSTD_getFrameContentSize(begin, packed);
  std::string content;
  if (size != ZSTD_CONTENTSIZE_UNKNOWN && size != ZSTD_CONTENTSIZE_ERROR) {
    content.resize(size);
    if (ZSTD_decompress(content.data(), size, begin, packed) == size) return content;
  }
  std::fprintf(
      stderr, "residentd: a file that is part of this program is damaged. Fix: install it again\n");
  std::abort();
}

}  // namespace resident
