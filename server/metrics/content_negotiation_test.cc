#include "server/metrics/content_negotiation.h"

#include <zlib.h>

#include <string>

#include "gtest/gtest.h"

namespace resident {
namespace {

TEST(ContentNegotiationTest, GzipIsTakenOnlyByAClientThatNamesIt) {
  for (const char* taken : {"gzip", "GZIP", "deflate, gzip", "gzip;q=0.1", "br;q=1.0, gzip ;q=0.8",
                            "*", "identity;q=0, *;q=0.5", "gzip;q=0, gzip;q=1"}) {
    EXPECT_TRUE(AcceptsGzip(taken)) << taken;
  }
  for (const char* refused :
       {"", "identity", "deflate", "gzip;q=0", "gzip; q=0.0", "*;q=0", "gzip;q=0, *", "xgzip",
        "gzip;q=", "gzip;q=nan", "gzip;q=-1", "gzip;q=2", ",;,;;"}) {
    EXPECT_FALSE(AcceptsGzip(refused)) << refused;
  }
}

TEST(ContentNegotiationTest, OpenMetricsIsSentOnlyOnRequest) {
  for (const char* wanted :
       {"application/openmetrics-text", "application/openmetrics-text; version=1.0.0",
        // Prometheus 2.42.
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;"
        "q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"}) {
    EXPECT_TRUE(PrefersOpenMetrics(wanted)) << wanted;
  }
  for (const char* other : {"", "*/*", "application/*", "text/plain", "text/html,*/*;q=0.8",
                            "application/openmetrics-text;q=0",
                            "application/openmetrics-text;q=0.3,text/plain;q=0.5"}) {
    EXPECT_FALSE(PrefersOpenMetrics(other)) << other;
  }
}

TEST(ContentNegotiationTest, GzipIsReadBackUnchanged) {
  for (const size_t bytes : {0, 1, 1000, 1 << 20}) {
    std::string text;
    for (uint32_t x = 1; text.size() < bytes; x = x * 1664525 + 1013904223) {
      text.push_back(static_cast<char>(x >> 24));  // Cannot be compressed.
    }
    const std::string compressed = Gzip(text);
    std::string back(bytes + 1, '\0');
    z_stream stream{};
    ASSERT_EQ(inflateInit2(&stream, MAX_WBITS + 16), Z_OK);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
    stream.avail_in = static_cast<uInt>(compressed.size());
    stream.next_out = reinterpret_cast<Bytef*>(back.data());
    stream.avail_out = static_cast<uInt>(back.size());
    EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
    back.resize(stream.total_out);
    inflateEnd(&stream);
    EXPECT_EQ(back, text);
  }
  EXPECT_LT(Gzip(std::string(100'000, 'a')).size(), 2000u);
}

TEST(ContentNegotiationTest, OnlyTheFamiliesOfCountersLoseTheirSuffix) {
  EXPECT_EQ(ToOpenMetrics("# HELP a_total Text with b_total.\n# TYPE a_total counter\n"
                          "a_total{l=\"# HELP c_total\"} 1\n# HELP d Text.\n# TYPE d gauge\nd 2\n"),
            "# HELP a Text with b_total.\n# TYPE a counter\na_total{l=\"# HELP c_total\"} 1\n"
            "# HELP d Text.\n# TYPE d gauge\nd 2\n# EOF\n");
}

}  // namespace
}  // namespace resident
