#include "runtime/engine/image/embedded.h"

#include <zlib.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace resident {
namespace {

// Tells zlib to expect gzip's header and checksum.
constexpr int kGzip = 16 + MAX_WBITS;

}  // namespace

std::string UnpackEmbedded(const char* begin, const char* end) {
  // A gzip file ends with the size of its content.
  uint32_t size = 0;
  if (end - begin > static_cast<ptrdiff_t>(sizeof(size))) {
    std::memcpy(&size, end - sizeof(size), sizeof(size));
  }
  std::string content(size, '\0');
  z_stream stream{};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(begin));
  stream.avail_in = static_cast<uInt>(end - begin);
  stream.next_out = reinterpret_cast<Bytef*>(content.data());
  stream.avail_out = size;
  const bool unpacked = inflateInit2(&stream, kGzip) == Z_OK &&
                        inflate(&stream, Z_FINISH) == Z_STREAM_END && stream.total_out == size;
  inflateEnd(&stream);
  if (!unpacked) {
    std::fprintf(
        stderr,
        "residentd: a file that is part of this program is damaged. Fix: install it again\n");
    std::abort();
  }
  return content;
}

}  // namespace resident
