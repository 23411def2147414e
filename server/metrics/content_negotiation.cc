#include "server/metrics/content_negotiation.h"

#include <zlib.h>

#include <algorithm>
#include <cassert>
#include <new>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace resident {
namespace {

// The weight of an entry such as "gzip;q=0.5": 1 if it has none, 0 if it is not valid.
double ParseWeight(const std::vector<absl::string_view>& parts) {
  for (size_t i = 1; i < parts.size(); ++i) {
    absl::string_view part = absl::StripAsciiWhitespace(parts[i]);
    if (!absl::ConsumePrefix(&part, "q=") && !absl::ConsumePrefix(&part, "Q=")) continue;
    double weight = 0;
    if (!absl::SimpleAtod(part, &weight) || !(weight >= 0 && weight <= 1)) return 0;
    return weight;
  }
  return 1;
}

}  // namespace

std::optional<double> FindWeight(absl::string_view header, absl::string_view name) {
  std::optional<double> found;
  for (const absl::string_view entry : absl::StrSplit(header, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(entry, ';');
    if (!absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(parts[0]), name)) continue;
    found = std::max(found.value_or(0), ParseWeight(parts));
  }
  return found;
}

bool AcceptsGzip(absl::string_view accept_encoding) {
  const std::optional<double> named = FindWeight(accept_encoding, "gzip");
  return named.has_value() ? *named > 0 : FindWeight(accept_encoding, "*").value_or(0) > 0;
}

bool PrefersOpenMetrics(absl::string_view accept) {
  const double weight = FindWeight(accept, "application/openmetrics-text").value_or(0);
  return weight > 0 && weight >= FindWeight(accept, "text/plain").value_or(0);
}

std::string Gzip(absl::string_view text) {
  // 16 more than the size of the window: with a header and an end of gzip.
  constexpr int kGzipWindowBits = MAX_WBITS + 16;
  constexpr int kMemoryLevel = 8;  // zlib's default.
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzipWindowBits, kMemoryLevel,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::bad_alloc();
  }
  std::string compressed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(compressed.data());
  stream.avail_out = static_cast<uInt>(compressed.size());
  // The output has room for everything, so that one call ends it.
  deflate(&stream, Z_FINISH);
  compressed.resize(stream.total_out);
  deflateEnd(&stream);
  return compressed;
}

std::string ToOpenMetrics(absl::string_view text) {
  constexpr absl::string_view kSuffix = "_total";
  std::string out;
  out.reserve(text.size() + 16);
  for (absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    if (absl::StartsWith(line, "# ")) {
      // "# TYPE name type", "# HELP name text".
      constexpr size_t kNameBegins = 7;
      const size_t end = std::min(line.find(' ', kNameBegins), line.size());
      const absl::string_view head = absl::StripSuffix(line.substr(0, end), kSuffix);
      assert(line.substr(end) != " counter" || head.size() < end);
      absl::StrAppend(&out, head, line.substr(end), "\n");
    } else {
      absl::StrAppend(&out, line, "\n");
    }
  }
  return out + "# EOF\n";
}

}  // namespace resident
