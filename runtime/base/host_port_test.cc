#include "runtime/base/host_port.h"

#include <tuple>

#include "gtest/gtest.h"

namespace resident {
namespace {

TEST(HostPortTest, NamesAndAddresses) {
  for (const auto& [text, host, port] :
       {std::tuple("localhost:80", "localhost", 80), std::tuple("127.0.0.1:0", "127.0.0.1", 0),
        std::tuple("[::1]:65535", "::1", 65535)}) {
    const auto parts = ParseHostPort(text);
    ASSERT_TRUE(parts.has_value()) << text;
    EXPECT_EQ(parts->host, host);
    EXPECT_EQ(parts->port, port);
  }
}

TEST(HostPortTest, RefusesOtherForms) {
  for (const char* text : {"", ":", "localhost", ":80", "localhost:", "localhost:65536",
                           "localhost:-1", "localhost:+1", "localhost: 1", "::1:80", "[]:80"}) {
    EXPECT_FALSE(ParseHostPort(text).has_value()) << text;
  }
}

TEST(HostPortTest, BracketsOfTheHostCanBeKeptOrRemoved) {
  EXPECT_EQ(HostPart("[::1]:80"), "[::1]");
  EXPECT_EQ(WithoutBrackets("[::1]"), "::1");
  EXPECT_EQ(WithoutBrackets("localhost"), "localhost");
}

}  // namespace
}  // namespace resident
