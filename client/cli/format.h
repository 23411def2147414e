// Text for people: numbers with three significant digits and a unit, and lines of limited width.
#ifndef RESIDENT_CLIENT_CLI_FORMAT_H_
#define RESIDENT_CLIENT_CLI_FORMAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace resident::cli {

// 512 B, 1.50 KiB, 138 GiB.
std::string FormatBytes(uint64_t bytes);
// 12, 2.35 K, 9.81 M, 104 G; for rates and large counts.
std::string FormatCount(double count);
// 1,048,576.
std::string FormatExact(uint64_t count);
// 840 ns, 4.07 µs, 1.20 ms, 3.41 s, 5 m 12 s, 2 h 5 m, 3 d 4 h.
std::string HumanDuration(absl::Duration duration);
// 2x3; "scalar" for no dimensions.
std::string FormatShape(const std::vector<uint64_t>& shape);
// Breaks a text at spaces into lines of at most `width` bytes, if its words allow that. No newline
// at the end.
std::string WrapText(absl::string_view text, size_t width);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_FORMAT_H_
