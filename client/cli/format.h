// Makes text for people: tables, numbers with three significant digits and a unit, lines of limited
// width, and summaries of latencies.
#ifndef RESIDENT_CLIENT_CLI_FORMAT_H_
#define RESIDENT_CLIENT_CLI_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace resident::cli {

// Aligned text tables for people.
//
//   Table table({"NAME", "TASKS"}, {Table::kLeft, Table::kRight});
//   table.Add({"add", "1024"});
//   std::fputs(table.ToString().c_str(), stdout);
class Table {
 public:
  enum Align { kLeft, kRight };

  // Columns without an alignment are left-aligned. An empty header prints no header line.
  explicit Table(std::vector<std::string> header, std::vector<Align> align = {});

  // Rows may be shorter than the header.
  void Add(std::vector<std::string> row);
  bool empty() const { return rows_.empty(); }

  // Lines with two spaces between columns and none at the end.
  std::string ToString() const;

 private:
  std::vector<std::string> header_;
  std::vector<Align> align_;
  std::vector<std::vector<std::string>> rows_;
};

// Number of terminal columns of UTF-8 text, counted as its code points.
size_t DisplayWidth(std::string_view text);

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
// The first twelve digits of a content hash, or of the id of a plan or a graph.
std::string ShortHash(std::string_view hash);
// Breaks a text at spaces into lines of at most `width` bytes, if its words allow that. No newline
// at the end.
std::string WrapText(absl::string_view text, size_t width);

// Percentiles of measured durations.
struct LatencySummary {
  size_t samples = 0;
  double p50_us = 0;
  double p90_us = 0;
  double p99_us = 0;
  double p999_us = 0;
  double min_us = 0;
  double max_us = 0;
  double mean_us = 0;
};

// Percentiles by nearest rank. No samples: zeros.
LatencySummary Summarize(std::vector<double> samples_us);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_FORMAT_H_
