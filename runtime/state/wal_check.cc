#include "runtime/state/wal_check.h"

#include <string_view>

#include "runtime/state/files.h"

namespace resident {
namespace {

// The format is described at https://www.sqlite.org/fileformat2.html#walformat: a header, and
// frames of a head and a page. Numbers are big-endian; the lowest bit of the magic number is the
// byte order of the words in the checksum.
constexpr uint32_t kMagic = 0x377f0682;
constexpr uint64_t kHeaderBytes = 32;
constexpr uint64_t kFrameHeadBytes = 24;

uint32_t BigEndian(std::string_view bytes, uint64_t at) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

struct Checksum {
  uint32_t first = 0;
  uint32_t second = 0;

  void Add(std::string_view bytes, bool big_endian) {
    for (uint64_t at = 0; at + 8 <= bytes.size(); at += 8) {
      uint32_t words[2] = {BigEndian(bytes, at), BigEndian(bytes, at + 4)};
      if (!big_endian) {
        for (uint32_t& word : words) word = __builtin_bswap32(word);
      }
      first += words[0] + second;
      second += words[1] + first;
    }
  }
  bool Matches(std::string_view bytes, uint64_t at) const {
    return BigEndian(bytes, at) == first && BigEndian(bytes, at + 4) == second;
  }
};

}  // namespace

absl::StatusOr<WalCheck> CheckWal(const std::string& path) {
  const absl::StatusOr<std::string> read = ReadWholeFile(path);
  if (absl::IsNotFound(read.status())) return WalCheck();
  if (!read.ok()) return read.status();
  const std::string_view log = *read;
  WalCheck check;
  check.file_bytes = log.size();
  if (log.empty()) return check;
  check.end = WalCheck::End::kTorn;
  if (log.size() < kHeaderBytes) return check;
  const uint32_t magic = BigEndian(log, 0);
  const bool big_endian = (magic & 1) != 0;
  Checksum sum;
  sum.Add(log.substr(0, 24), big_endian);
  const uint64_t frame_bytes = kFrameHeadBytes + BigEndian(log, 8);
  if ((magic & ~1u) != kMagic || !sum.Matches(log, 24)) {
    // The header is on disk before the first frame is written.
    if (log.size() > kHeaderBytes) check.end = WalCheck::End::kDamaged;
    return check;
  }
  const std::string_view salts = log.substr(16, 8);
  check.good_bytes = kHeaderBytes;
  bool chain = true;     // The checksums of all frames so far match.
  bool written = false;  // A complete transaction follows the bad frame.
  uint64_t at = kHeaderBytes;
  for (; at + frame_bytes <= log.size(); at += frame_bytes) {
    const std::string_view frame = log.substr(at, frame_bytes);
    // A frame with other salts is left over from an earlier use of the file.
    const bool of_this_log = frame.substr(8, 8) == salts;
    const bool commits = BigEndian(frame, 4) != 0;
    if (chain) {
      sum.Add(frame.substr(0, 8), big_endian);
      sum.Add(frame.substr(kFrameHeadBytes), big_endian);
      chain = of_this_log && sum.Matches(frame, 16);
      if (chain) {
        if (commits) check.good_bytes = at + frame_bytes;
        continue;
      }
    }
    if (!of_this_log) continue;
    if (written) {
      check.end = WalCheck::End::kDamaged;
      return check;
    }
    written = commits;
  }
  if (check.good_bytes == log.size()) check.end = WalCheck::End::kClean;
  return check;
}

}  // namespace resident
