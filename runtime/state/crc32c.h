// CRC-32C (Castagnoli) of bytes; finds any single flipped bit, and any burst of 32.
#ifndef RESIDENT_RUNTIME_STATE_CRC32C_H_
#define RESIDENT_RUNTIME_STATE_CRC32C_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace resident {

// `before`: of the bytes that come before these.
inline uint32_t Crc32c(std::string_view bytes, uint32_t before = 0) {
  // Slicing by 4: contents of buffers may be gigabytes.
  static const auto* const table = [] {
    auto* made = new std::array<std::array<uint32_t, 256>, 4>;
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
      (*made)[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; ++i) {
      for (int t = 1; t < 4; ++t) {
        const uint32_t lower = (*made)[t - 1][i];
        (*made)[t][i] = (lower >> 8) ^ (*made)[0][lower & 0xff];
      }
    }
    return made;
  }();
  uint32_t crc = ~before;
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  for (; left >= 4; left -= 4, data += 4) {
    crc ^= data[0] | data[1] << 8 | data[2] << 16 | uint32_t{data[3]} << 24;
    crc = (*table)[3][crc & 0xff] ^ (*table)[2][(crc >> 8) & 0xff] ^
          (*table)[1][(crc >> 16) & 0xff] ^ (*table)[0][crc >> 24];
  }
  for (; left > 0; --left, ++data) crc = (crc >> 8) ^ (*table)[0][(crc ^ *data) & 0xff];
  return ~crc;
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_CRC32C_H_
