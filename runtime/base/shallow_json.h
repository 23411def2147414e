// ParseShallowJson: JSON that somebody else wrote, and that is not nested deeply.
//
// The functions of nlohmann::json that copy, compare or print a value call themselves for each
// level of nesting: a text of 100 kB can use up the stack of the program that prints a part of it.
//
// Thread safety: a pure function.
//
//   const Json json = ParseShallowJson<Json>(text);
//   if (json.is_discarded()) ... it is not JSON, or nested deeper than kMaxJsonDepth ...
#ifndef RESIDENT_RUNTIME_BASE_SHALLOW_JSON_H_
#define RESIDENT_RUNTIME_BASE_SHALLOW_JSON_H_

#include <nlohmann/json.hpp>
#include <string_view>

namespace resident {

inline constexpr int kMaxJsonDepth = 64;

template <typename Json>
Json ParseShallowJson(std::string_view text) {
  bool deep = false;
  Json json = Json::parse(
      text.begin(), text.end(),
      [&](int depth, typename Json::parse_event_t event, Json&) {
        const bool opens =
            event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
        deep |= opens && depth >= kMaxJsonDepth;
        return !deep;
      },
      /*allow_exceptions=*/false);
  return deep ? Json(Json::value_t::discarded) : json;
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_SHALLOW_JSON_H_
