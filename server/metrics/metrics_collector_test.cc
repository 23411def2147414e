#include "server/metrics/metrics_collector.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/text_serializer.h"
#include "server/metrics/fake_sources.h"
#include "server/metrics/process_metrics.h"

namespace resident {
namespace {

using ::testing::HasSubstr;

std::string Page(FakeSources& fake) {
  const MetricsCollector collector(fake.Sources());
  return prometheus::TextSerializer().Serialize(collector.Collect());
}

// Lines of the page that start with `prefix`.
std::vector<std::string> Lines(const std::string& page, const std::string& prefix) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end; (end = page.find('\n', begin)) != std::string::npos; begin = end + 1) {
    if (page.compare(begin, prefix.size(), prefix) == 0) {
      lines.push_back(page.substr(begin, end - begin));
    }
  }
  return lines;
}

TEST(MetricsCollectorTest, TasksAreCountedByOperatorVersionDeviceAndStatus) {
  FakeSources fake;
  fake.add.CountTasks(0, 41);
  fake.add.CountTasks(4, 1);
  const std::string page = Page(fake);
  const std::string labels =
      R"(resident_tasks_total{operator="add",version="1",device="0",status=)";
  EXPECT_THAT(page, HasSubstr(labels + "\"ok\"} 41\n"));
  EXPECT_THAT(page, HasSubstr(labels + "\"aborted\"} 1\n"));
}

TEST(MetricsCollectorTest, ASeriesOfTasksExistsFromTheFirstTaskOn) {
  FakeSources fake;
  EXPECT_THAT(Lines(Page(fake), "resident_tasks_total{"), testing::IsEmpty());
  EXPECT_THAT(Lines(Page(fake), "resident_batch_seconds_bucket{"), testing::IsEmpty());
  fake.add.CountTasks(2, 3);
  EXPECT_THAT(Lines(Page(fake), "resident_tasks_total{"),
              testing::ElementsAre(HasSubstr(R"(status="deadline_exceeded"} 3)")));
  EXPECT_THAT(Lines(Page(fake), "resident_batch_seconds_bucket{"),
              testing::SizeIs(DurationHistogram::kBuckets));
  fake.add.CountTasks(0, 1);
  EXPECT_THAT(Lines(Page(fake), "resident_tasks_total{"), testing::SizeIs(2));
}

// Its values are those of DeviceQueue (device_queue_states_test.cc).
TEST(MetricsCollectorTest, TheTimeWithATaskIsReportedBeforeTheFirstTask) {
  FakeSources fake;
  EXPECT_THAT(Page(fake), HasSubstr("resident_device_busy_seconds_total{device=\"0\"} 0\n"));
}

TEST(MetricsCollectorTest, BucketsAreCumulativeInSecondsAndEndInInfinity) {
  FakeSources fake;
  fake.add.CountTasks(0, 3);
  fake.add.device.Observe(256);             // At the first bound: inside.
  fake.add.device.Observe(257);             // One above the bound: the next bucket.
  fake.add.device.Observe(60'000'000'000);  // Beyond every bound.
  const auto lines = Lines(Page(fake), "resident_task_device_seconds_bucket");
  ASSERT_EQ(lines.size(), size_t{DurationHistogram::kBuckets});
  EXPECT_THAT(lines[0], HasSubstr(R"(le="2.56e-07"} 1)"));
  EXPECT_THAT(lines[1], HasSubstr(R"(le="5.12e-07"} 2)"));
  EXPECT_THAT(lines[lines.size() - 2], HasSubstr("} 2"));
  EXPECT_THAT(lines.back(), HasSubstr(R"(le="+Inf"} 3)"));
  EXPECT_THAT(Lines(Page(fake), "resident_task_device_seconds_count").at(0), HasSubstr("} 3"));
  EXPECT_THAT(Lines(Page(fake), "resident_task_device_seconds_sum").at(0),
              HasSubstr("} 60.0000005"));
}

TEST(MetricsCollectorTest, Graphs) {
  FakeSources fake;
  fake.rpc.CountGraphRun(/*ok=*/true, 5);
  fake.rpc.CountGraphRun(/*ok=*/true, 0);
  fake.rpc.CountGraphRun(/*ok=*/false, 3);
  const std::string page = Page(fake);
  EXPECT_THAT(page, HasSubstr("resident_graphs 2"));
  EXPECT_THAT(page, HasSubstr("resident_graph_bytes 3000"));
  EXPECT_THAT(page, HasSubstr("resident_graph_sessions 4"));
  EXPECT_THAT(page, HasSubstr("resident_graph_session_bytes 5000"));
  EXPECT_THAT(page, HasSubstr(R"(resident_graph_runs_total{outcome="ok"} 2)"));
  EXPECT_THAT(page, HasSubstr(R"(resident_graph_runs_total{outcome="failed"} 1)"));
  EXPECT_THAT(page, HasSubstr("resident_graph_steps_total 8"));
}

TEST(MetricsCollectorTest, OnlyModelsThatAreLoadedHaveSeries) {
  FakeSources fake;
  EXPECT_THAT(Page(fake), testing::Not(HasSubstr("resident_model_")));
  v1::Model& model = fake.models.emplace_back();
  model.set_name("rank");
  v1::ModelVersion* const version = model.add_versions();
  version->set_version(3);
  version->set_state(v1::ModelVersion::STATE_ACTIVE);
  version->set_requests(10);
  version->set_failed(4);
  version->set_device_ns(2'500'000'000);
  version->set_rows(60);
  version->set_executions(5);
  version->set_instances(2);
  version->set_weight_bytes(4096);
  const std::string page = Page(fake);
  const std::string labels = R"({model="rank",version="3")";
  EXPECT_THAT(page, HasSubstr("resident_model_requests_total" + labels + R"(,outcome="ok"} 6)"));
  EXPECT_THAT(page,
              HasSubstr("resident_model_requests_total" + labels + R"(,outcome="failed"} 4)"));
  EXPECT_THAT(page, HasSubstr("resident_model_device_seconds_total" + labels + "} 2.5"));
  EXPECT_THAT(page, HasSubstr("resident_model_rows_total" + labels + "} 60"));
  EXPECT_THAT(page, HasSubstr("resident_model_executions_total" + labels + "} 5"));
  EXPECT_THAT(page, HasSubstr("resident_model_active" + labels + "} 1"));
  EXPECT_THAT(page, HasSubstr("resident_model_instances" + labels + "} 2"));
  EXPECT_THAT(page, HasSubstr("resident_model_weight_bytes" + labels + "} 4096"));
  // Only those with plans for several sizes have these.
  EXPECT_THAT(page, testing::Not(HasSubstr("resident_model_plan")));
  version->add_dimensions()->set_name("seq");
  version->add_plans();
  version->set_plan_misses(7);
  EXPECT_THAT(Page(fake), HasSubstr("resident_model_plans" + labels + "} 1"));
  EXPECT_THAT(Page(fake), HasSubstr("resident_model_plan_misses_total" + labels + "} 7"));
}

TEST(MetricsCollectorTest, ChangesOfOperatorsAndTheirPauses) {
  FakeSources fake;
  fake.device.status().generation_changes = 3;
  fake.device.status().failed_generation_changes = 1;
  for (int i = 0; i < 3; ++i) fake.device.generation_pauses().Observe(200'000);
  const std::string page = Page(fake);
  EXPECT_THAT(page, HasSubstr(R"(resident_operator_events_total{event="installed"} 5)"));
  EXPECT_THAT(page, HasSubstr(R"(resident_operator_events_total{event="quarantined"} 0)"));
  EXPECT_THAT(page, HasSubstr(R"(resident_isolation_refusals_total{rule="C1"} 4)"));
  EXPECT_THAT(page, HasSubstr(R"(resident_isolation_refusals_total{rule="other"} 0)"));
  EXPECT_THAT(page, HasSubstr(R"(resident_trial_shadow_tasks{operator="add",version="2"} 40)"));
  EXPECT_THAT(page, HasSubstr(R"(resident_trial_shadow_mismatches{operator="add",version="2"} 1)"));
  EXPECT_THAT(page, HasSubstr("resident_operator_active_info{operator=\"swish\",set=\"ranking\","
                              "label=\"r-1\",hash=\"0123456789ab\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("\nresident_claim_seconds 12.5\n"));
  EXPECT_THAT(page, HasSubstr("\nresident_operators_dir_state{state=\"failed\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("\nresident_operators_drift 0\n"));
  EXPECT_THAT(page, HasSubstr("resident_flux_native_forms 3"));
  EXPECT_THAT(page, HasSubstr("resident_flux_native_comparisons_total 7"));
  EXPECT_THAT(page, HasSubstr("resident_flux_native_mismatch_total 0"));
  EXPECT_THAT(page, HasSubstr("resident_flux_native_quarantined_total 1"));
  EXPECT_THAT(page, HasSubstr(R"(resident_generation_changes_total{device="0",outcome="ok"} 3)"));
  EXPECT_THAT(page,
              HasSubstr(R"(resident_generation_changes_total{device="0",outcome="failed"} 1)"));
  EXPECT_THAT(page, HasSubstr(R"(resident_generation_pause_seconds_count{device="0"} 3)"));
  EXPECT_THAT(page, HasSubstr(R"(resident_stop_seconds_count{device="0"} 0)"));
}

TEST(MetricsCollectorTest, MemoryThatClientsUse) {
  FakeSources fake;
  const std::string page = Page(fake);
  EXPECT_THAT(page, HasSubstr(R"(resident_staging_used_bytes{device="0"} 4096)"));
  EXPECT_THAT(page, HasSubstr(R"(resident_staging_waiting{device="0"} 2)"));
  EXPECT_THAT(page, HasSubstr(R"(resident_host_memory_used_bytes{purpose="requests"} 11)"));
}

TEST(MetricsCollectorTest, DeviceIsInExactlyOneState) {
  FakeSources fake;
  for (int state = 1; state <= 6; ++state) {
    fake.device.status().state = static_cast<Device::State>(state);
    const auto lines = Lines(Page(fake), "resident_device_state{");
    EXPECT_EQ(lines.size(), 6u);
    EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                            [](const std::string& line) { return line.ends_with("} 1"); }),
              1);
  }
}

TEST(MetricsCollectorTest, RestartsAreCountedByTheReasonsLabel) {
  FakeSources fake;
  fake.device.status().restarts_by_reason = {{EngineEndReason::kFault, 2}};
  const std::string page = Page(fake);
  EXPECT_THAT(page, HasSubstr(R"(resident_engine_restarts_total{device="0",cause="fault"} 2)"));
  EXPECT_THAT(page, HasSubstr(R"(cause="killed"} 0)"));
}

// increase() does not count the first event of a counter that appears only with that event.
TEST(MetricsCollectorTest, EveryCauseOfARestartIsReportedBeforeItsFirst) {
  FakeSources fake;
  fake.device.status().restarts_by_reason.clear();
  const std::string page = Page(fake);
  for (const char* cause : {"fault", "hang", "heartbeat", "killed", "start"}) {
    EXPECT_THAT(page,
                HasSubstr(std::string(R"(resident_engine_restarts_total{device="0",cause=")") +
                          cause + "\"} 0\n"));
  }
}

TEST(MetricsCollectorTest, DeviceWithoutAnEngineHasNoProcessFigures) {
  FakeSources fake;
  fake.device.status().engine_pid = 0;
  EXPECT_THAT(Lines(Page(fake), "resident_engine_resident_memory_bytes{"), testing::IsEmpty());
  fake.device.status().engine_pid = getpid();
  EXPECT_THAT(Lines(Page(fake), "resident_engine_resident_memory_bytes{"), testing::SizeIs(1));
}

TEST(MetricsCollectorTest, LabelsThatNeedEscapingStayOneLine) {
  FakeSources fake;
  fake.device.status().info.name = "NVIDIA \"H200\"\n\\";
  EXPECT_THAT(Page(fake), HasSubstr(R"(name="NVIDIA \"H200\"\n\\"} 1)"));
}

TEST(MetricsCollectorTest, PromtoolAcceptsThePage) {
  FakeSources fake;
  fake.device.status().engine_pid = getpid();
  fake.add.CountTasks(0, 1);
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / "metrics_collector_test.prom";
  std::ofstream(file) << Page(fake);
  FILE* promtool = popen(("promtool check metrics < " + file.string() + " 2>&1").c_str(), "r");
  ASSERT_NE(promtool, nullptr);
  std::string output;
  for (char buffer[256]; fgets(buffer, sizeof buffer, promtool) != nullptr;) output += buffer;
  EXPECT_EQ(pclose(promtool), 0) << output;
  EXPECT_EQ(output, "");
}

TEST(ProcessMetricsTest, ReadsThisProcess) {
  const auto before = ReadProcess(getpid());
  ASSERT_TRUE(before.has_value());
  EXPECT_GT(before->resident_bytes, 1u << 20);
  EXPECT_GE(before->virtual_bytes, before->resident_bytes);
  EXPECT_GE(before->threads, 1u);
  EXPECT_GE(before->max_fds, before->open_fds);
  EXPECT_GT(before->start_time_seconds, 1.6e9);
  const std::ifstream one_more("/proc/self/stat");
  EXPECT_EQ(ReadProcess(getpid())->open_fds, before->open_fds + 1);
}

TEST(ProcessMetricsTest, NoSuchProcessIsEmpty) {
  EXPECT_FALSE(ReadProcess(0).has_value());
  EXPECT_FALSE(ReadProcess(-1).has_value());
  EXPECT_FALSE(ReadProcess(int64_t{1} << 40).has_value());
}

}  // namespace
}  // namespace resident
