// Aligned text tables for people.
//
//   Table table({"NAME", "TASKS"}, {Table::kLeft, Table::kRight});
//   table.Add({"add", "1024"});
//   std::fputs(table.ToString().c_str(), stdout);
#ifndef RESIDENT_CLIENT_CLI_TABLE_H_
#define RESIDENT_CLIENT_CLI_TABLE_H_

#include <string>
#include <string_view>
#include <vector>

namespace resident::cli {

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

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_TABLE_H_
