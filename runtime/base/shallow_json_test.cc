#include "runtime/base/shallow_json.h"

#include <string>

#include "gtest/gtest.h"

namespace resident {
namespace {

using Json = nlohmann::json;

std::string Nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') +
         std::string(static_cast<size_t>(depth), ']');
}

TEST(ShallowJsonTest, ReadsWhatTheLibraryReads) {
  const std::string text = R"({"a": [1, -2.5, "x", null, true, {"b": []}], "c": {}})";
  EXPECT_EQ(ParseShallowJson<Json>(text), Json::parse(text));
  EXPECT_TRUE(ParseShallowJson<Json>("{\"a\": ").is_discarded());
  EXPECT_TRUE(ParseShallowJson<Json>("").is_discarded());
  EXPECT_TRUE(ParseShallowJson<Json>("1 2").is_discarded());
}

TEST(ShallowJsonTest, RefusesDeepNesting) {
  EXPECT_EQ(ParseShallowJson<Json>(Nested(kMaxJsonDepth)).dump(), Nested(kMaxJsonDepth));
  EXPECT_TRUE(ParseShallowJson<Json>(Nested(kMaxJsonDepth + 1)).is_discarded());
  EXPECT_TRUE(ParseShallowJson<Json>(Nested(4'000'000)).is_discarded());
  EXPECT_TRUE(ParseShallowJson<nlohmann::ordered_json>(Nested(1000)).is_discarded());
}

}  // namespace
}  // namespace resident
