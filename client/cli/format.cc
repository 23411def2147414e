#include "client/cli/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace resident::cli {

size_t DisplayWidth(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

Table::Table(std::vector<std::string> header, std::vector<Align> align)
    : header_(std::move(header)), align_(std::move(align)) {}

void Table::Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

std::string Table::ToString() const {
  std::vector<size_t> widths;
  const auto measure = [&](const std::vector<std::string>& row) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  };
  measure(header_);
  for (const auto& row : rows_) measure(row);

  std::string text;
  const auto print = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      const std::string padding(widths[i] - DisplayWidth(row[i]), ' ');
      const bool right = i < align_.size() && align_[i] == kRight;
      line += right ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  if (!header_.empty()) print(header_);
  for (const auto& row : rows_) print(row);
  return text;
}

namespace {

// Examples: 1.23, 12.3, 123.
std::string ThreeDigits(double value) {
  const double size = std::fabs(value);
  const int decimals = size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return absl::StrFormat("%.*f", decimals, value);
}

}  // namespace

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return absl::StrCat(ThreeDigits(value), " ", kUnits[unit]);
}

std::string FormatCount(double count) {
  static constexpr std::array kUnits = {"", " K", " M", " G", " T"};
  if (std::fabs(count) < 1000) {
    if (count == std::floor(count)) return absl::StrFormat("%.0f", count);
    return ThreeDigits(count);
  }
  size_t unit = 0;
  while (std::fabs(count) >= 999.5 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  return absl::StrCat(ThreeDigits(count), kUnits[unit]);
}

std::string FormatExact(uint64_t count) {
  std::string digits = absl::StrCat(count);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

std::string HumanDuration(absl::Duration duration) {
  if (duration < absl::ZeroDuration()) return absl::StrCat("-", HumanDuration(-duration));
  const double seconds = absl::ToDoubleSeconds(duration);
  if (seconds < 1e-6) return absl::StrFormat("%.0f ns", seconds * 1e9);
  if (seconds < 1e-3) return absl::StrCat(ThreeDigits(seconds * 1e6), " µs");
  if (seconds < 1) return absl::StrCat(ThreeDigits(seconds * 1e3), " ms");
  if (seconds < 60) return absl::StrCat(ThreeDigits(seconds), " s");
  const int64_t whole = absl::ToInt64Seconds(duration);
  if (whole < 3600) return absl::StrCat(whole / 60, " m ", whole % 60, " s");
  if (whole < 86400) return absl::StrCat(whole / 3600, " h ", whole / 60 % 60, " m");
  return absl::StrCat(whole / 86400, " d ", whole / 3600 % 24, " h");
}

std::string FormatShape(const std::vector<uint64_t>& shape) {
  return shape.empty() ? "scalar" : absl::StrJoin(shape, "x");
}

std::string ShortHash(std::string_view hash) { return std::string(hash.substr(0, 12)); }

std::string WrapText(absl::string_view text, size_t width) {
  std::string lines;
  size_t used = 0;  // Of the last line.
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (used > 0 && used + 1 + word.size() <= width) {
      absl::StrAppend(&lines, " ", word);
      used += 1 + word.size();
    } else {
      absl::StrAppend(&lines, used > 0 ? "\n" : "", word);
      used = word.size();
    }
  }
  return lines;
}

LatencySummary Summarize(std::vector<double> samples_us) {
  LatencySummary summary;
  summary.samples = samples_us.size();
  if (samples_us.empty()) return summary;
  std::ranges::sort(samples_us);
  const auto percentile = [&](double part) {
    const double rank = std::ceil(part * static_cast<double>(samples_us.size()));
    return samples_us[static_cast<size_t>(std::max(rank, 1.0)) - 1];
  };
  summary.p50_us = percentile(0.50);
  summary.p90_us = percentile(0.90);
  summary.p99_us = percentile(0.99);
  summary.p999_us = percentile(0.999);
  summary.min_us = samples_us.front();
  summary.max_us = samples_us.back();
  summary.mean_us = std::accumulate(samples_us.begin(), samples_us.end(), 0.0) /
                    static_cast<double>(samples_us.size());
  return summary;
}

}  // namespace resident::cli
