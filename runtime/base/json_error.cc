#include "runtime/base/json_error.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "runtime/base/shallow_json.h"

namespace resident {
namespace {

// Notes where a text stops being JSON.
class ErrorFinder : public nlohmann::json_sax<nlohmann::json> {
 public:
  size_t position() const { return position_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(nlohmann::json::binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(std::string&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    position_ = position;
    return false;
  }

 private:
  size_t position_ = 0;  // The number of bytes that were read.
};

}  // namespace

std::string JsonErrorPlace(std::string_view text) {
  assert(ParseShallowJson<nlohmann::json>(text).is_discarded());
  ErrorFinder finder;
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &finder)) {
    return absl::StrCat(": it is nested more than ", kMaxJsonDepth, " levels deep");
  }
  const size_t at = std::min(finder.position() == 0 ? 0 : finder.position() - 1, text.size());
  const size_t newline = at == 0 ? std::string_view::npos : text.rfind('\n', at - 1);
  const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
  const auto line = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n');
  return absl::StrCat(" in line ", line + 1, ", column ", at - begin + 1);
}

}  // namespace resident
