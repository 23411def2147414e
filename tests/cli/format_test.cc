// Output for people and for scripts.
#include "client/cli/format.h"

#include "client/cli/progress.h"
#include "client/cli/proto_json.h"
#include "client/commands/status_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "resident/v1/admin.pb.h"

namespace resident::cli {
namespace {

using ::testing::HasSubstr;

TEST(FormatTest, BytesHaveThreeDigits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(10ull << 20), "10.0 MiB");
  EXPECT_EQ(FormatBytes(139ull << 30), "139 GiB");
}

TEST(FormatTest, CountsHaveThreeDigits) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(12.345), "12.3");
  EXPECT_EQ(FormatCount(2345678), "2.35 M");
  EXPECT_EQ(FormatCount(999999), "1.00 M");
  EXPECT_EQ(FormatExact(0), "0");
  EXPECT_EQ(FormatExact(999), "999");
  EXPECT_EQ(FormatExact(1048576), "1,048,576");
}

TEST(FormatTest, DurationsHaveTheirUnit) {
  EXPECT_EQ(HumanDuration(absl::Nanoseconds(840)), "840 ns");
  EXPECT_EQ(HumanDuration(absl::Nanoseconds(4070)), "4.07 µs");
  EXPECT_EQ(HumanDuration(absl::Microseconds(1200)), "1.20 ms");
  EXPECT_EQ(HumanDuration(absl::Seconds(3.41)), "3.41 s");
  EXPECT_EQ(HumanDuration(absl::Seconds(312)), "5 m 12 s");
  EXPECT_EQ(HumanDuration(absl::Minutes(125)), "2 h 5 m");
  EXPECT_EQ(HumanDuration(absl::Hours(76)), "3 d 4 h");
}

TEST(TableTest, ColumnsAlignAlsoWithUnicode) {
  Table table({"NAME", "TIME"}, {Table::kLeft, Table::kRight});
  table.Add({"add", "4.07 µs"});
  table.Add({"sum_rows", "12 ns"});
  EXPECT_EQ(table.ToString(),
            "NAME         TIME\n"
            "add       4.07 µs\n"
            "sum_rows    12 ns\n");
}

TEST(TableTest, ShortRowsLeaveNoTrailingSpace) {
  Table table({"A", "B"});
  table.Add({"x"});
  EXPECT_EQ(table.ToString(), "A  B\nx\n");
}

TEST(ProgressTest, TheBarFillsAndNeverOverflows) {
  EXPECT_EQ(ProgressLine("check", 0, 4, 4), "check  [....]   0%");
  EXPECT_EQ(ProgressLine("check", 2, 4, 4), "check  [##..]  50%");
  EXPECT_EQ(ProgressLine("check", 9, 4, 4), "check  [####] 100%");
  EXPECT_EQ(ProgressLine("check", 0, 0, 4), "check  [####] 100%");
}

TEST(LatencyTest, PercentilesAreByNearestRank) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  const LatencySummary summary = Summarize(samples);
  EXPECT_EQ(summary.samples, 100u);
  EXPECT_EQ(summary.p50_us, 50);
  EXPECT_EQ(summary.p99_us, 99);
  EXPECT_EQ(summary.p999_us, 100);
  EXPECT_EQ(summary.min_us, 1);
  EXPECT_EQ(summary.max_us, 100);
  EXPECT_EQ(summary.mean_us, 50.5);
  EXPECT_EQ(Summarize({}).p99_us, 0);
  EXPECT_EQ(Summarize({7}).p50_us, 7);
}

v1::StatusResponse SampleStatus(uint64_t completed) {
  v1::StatusResponse status;
  status.set_version("1.2.3");
  status.set_pid(42);
  status.set_uptime_ms(65000);
  status.set_metrics_address("127.0.0.1:9100");
  status.set_local_address("/run/residentd.sock");
  status.set_node_id("1f0e");
  status.set_node_name("node-1");
  v1::DeviceStatus& device = *status.add_devices();
  device.set_device(0);
  device.set_name("cpu");
  device.set_engine("cpu");
  device.set_state(v1::DeviceStatus::STATE_IDLE_PARKED);
  device.set_detail("why it is so");
  device.mutable_ring()->set_slots(8192);
  device.set_completed_tasks(completed);
  device.set_memory_total_bytes(1ull << 30);
  v1::ClientStatus& client = *status.add_clients();
  client.set_id("s-1");
  client.set_name("trainer");
  client.set_completed_tasks(completed);
  return status;
}

TEST(ProtoJsonTest, NumbersAreNumbersAndEnumsAreShort) {
  v1::StatusResponse status = SampleStatus((1ull << 60) + 1);
  const Json json = ToJson(status);
  EXPECT_EQ(json["devices"][0]["completed_tasks"].dump(), "1152921504606846977");
  EXPECT_EQ(json["devices"][0]["state"], "idle_parked");
  EXPECT_EQ(json["devices"][0]["ring"]["slots"], 8192);
  EXPECT_EQ(json["draining"], false);
  EXPECT_EQ(json["gpu_unavailable_reason"], "");
}

TEST(ProtoJsonTest, AnUnknownEnumValueIsItsNumber) {
  v1::StatusResponse status = SampleStatus(0);
  status.mutable_devices(0)->set_state(static_cast<v1::DeviceStatus::State>(77));
  EXPECT_EQ(ToJson(status)["devices"][0]["state"], "77");
}

TEST(FormatTest, TextIsBrokenAtSpaces) {
  EXPECT_EQ(WrapText("one two three", 7), "one two\nthree");
  EXPECT_EQ(WrapText("one two three", 6), "one\ntwo\nthree");
  EXPECT_EQ(WrapText("incomprehensible words", 5), "incomprehensible\nwords");
  EXPECT_EQ(WrapText("", 5), "");
}

TEST(StatusTextTest, ListsDevicesAndClients) {
  const std::string text = StatusText(SampleStatus(1234), "host:1");
  EXPECT_THAT(text, HasSubstr("residentd 1.2.3 at host:1, pid 42, up 1 m 5 s"));
  EXPECT_THAT(text, HasSubstr("http://127.0.0.1:9100/metrics"));
  EXPECT_THAT(text, HasSubstr("local     /run/residentd.sock\n"));
  EXPECT_THAT(text, HasSubstr("idle parked"));
  EXPECT_THAT(text, HasSubstr("1,234"));
  EXPECT_THAT(text, HasSubstr("device 0: why it is so"));
  EXPECT_THAT(text, HasSubstr("trainer"));
}

TEST(StatusTextTest, RatesAreDifferencesOverTime) {
  EXPECT_THAT(TopText(SampleStatus(1000), SampleStatus(5000), 2.0, "host:1"),
              HasSubstr("2.00 K/s"));
  // A counter that decreased (the daemon was restarted) has no rate.
  EXPECT_THAT(TopText(SampleStatus(5000), SampleStatus(10), 2.0, "host:1"), HasSubstr("0/s"));
}

}  // namespace
}  // namespace resident::cli
