// QuantumWorkload::ReadReport: the engine's process, in which installed operators run, can write
// anything into the memory of a quantum.
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/layout/ring_layout.h"
#include "runtime/device/fake_device.h"
#include "server/admission/admission.h"
#include "server/graphs/quantum_workload.h"

namespace resident {
namespace {

constexpr uint32_t kNodes = 3;
constexpr uint32_t kSteps = 4;
constexpr uint32_t kRoom = 8;
constexpr uint64_t kRecordBytes = 12;

class QuantumReportTest : public ::testing::Test {
 protected:
  QuantumReportTest() {
    admission_.AddDevice(1 << 20);
    QuantumWorkload::Plan plan;
    plan.session = session_;
    plan.quantum.first_step = 10;
    plan.quantum.last_step = 1000;
    plan.quantum.max_steps = kSteps;
    plan.quantum.record_bytes = kRecordBytes;
    plan.quantum.trace_capacity = kRoom;
    plan.operators.resize(2);
    plan.nodes.rows = std::make_shared<const std::vector<uint32_t>>(kNodes);
    plan.nodes.slots = {0, 1};
    work_ = std::make_unique<QuantumWorkload>(std::move(plan));
    const Needs needs = work_->ResourcesNeeded();
    bytes_ = needs.staging_bytes;
    auto ticket = admission_.TryAcquire(account_, needs);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    ticket_ = *std::move(ticket);
    std::memset(ticket_.staging()->host, 0xff, bytes_);
    work_->Fill(ticket_, batch_);
  }

  GraphQuantum& quantum() { return *reinterpret_cast<GraphQuantum*>(ticket_.staging()->host); }
  void Write(const std::vector<GraphTraceEvent>& events) {
    std::memcpy(reinterpret_cast<void*>(quantum().trace), events.data(),
                events.size() * sizeof(GraphTraceEvent));
    quantum().trace_events = static_cast<u32>(events.size());
  }

  Limits limits_;
  DrainGate gate_;
  Admission admission_{limits_, &gate_, TimeSource::Steady()};
  const std::shared_ptr<ClientAccounts> account_ = std::make_shared<ClientAccounts>(
      std::make_shared<Account>("anonymous", Rights{.roles = {}, .tasks_in_flight = 500}), 1);
  const std::shared_ptr<FakeSession> session_ = std::make_shared<FakeSession>(1, 0, 1 << 20);
  std::unique_ptr<QuantumWorkload> work_;
  Ticket ticket_;
  uint64_t bytes_ = 0;
  RequestBatch batch_;
};

TEST_F(QuantumReportTest, TheTraceFollowsTheRecords) {
  const uint64_t begin = ticket_.staging()->address;
  EXPECT_EQ(quantum().trace_capacity, kRoom);
  EXPECT_GE(quantum().trace, quantum().records + kSteps * kRecordBytes);
  EXPECT_EQ(quantum().trace % alignof(GraphTraceEvent), 0u);
  EXPECT_EQ(quantum().trace + kRoom * sizeof(GraphTraceEvent), begin + bytes_);
}

TEST_F(QuantumReportTest, ValidEventsAreTaken) {
  Write(
      {{.node = 2, .step = 3, .chunk = 7, .worker = 1, .wait_ns = 5, .begin_ns = 5, .end_ns = 5},
       {.node = 0, .step = 0, .chunk = 0, .worker = 0, .wait_ns = 1, .begin_ns = 2, .end_ns = 3}});
  const QuantumReport report = work_->ReadReport();
  ASSERT_EQ(report.trace.size(), 2u);
  EXPECT_EQ(report.dropped_events, 0u);
  EXPECT_EQ(report.trace[0].chunk, 7u);
  EXPECT_EQ(report.trace[1].end_ns, 3u);
}

TEST_F(QuantumReportTest, InvalidEventsAreCounted) {
  const GraphTraceEvent valid = {
      .node = 0, .step = 0, .chunk = 0, .worker = 0, .wait_ns = 10, .begin_ns = 20, .end_ns = 30};
  std::vector<GraphTraceEvent> events(7, valid);
  events[1].node = kNodes;
  events[2].step = kSteps;
  events[3].worker = kMaxWorkers;
  events[4].wait_ns = 21;
  events[5].end_ns = 19;
  Write(events);
  const QuantumReport report = work_->ReadReport();
  EXPECT_EQ(report.trace.size(), 2u);
  EXPECT_EQ(report.dropped_events, 5u);
}

TEST_F(QuantumReportTest, EventsWithoutRoomAreCounted) {
  Write(std::vector<GraphTraceEvent>(kRoom));
  quantum().trace_events = kRoom + 5;
  QuantumReport report = work_->ReadReport();
  EXPECT_EQ(report.trace.size(), kRoom);
  EXPECT_EQ(report.dropped_events, 5u);
  // Also if the engine has changed what it was given.
  quantum().trace_events = UINT32_MAX;
  quantum().trace_capacity = UINT32_MAX;
  quantum().trace = 8;
  report = work_->ReadReport();
  EXPECT_EQ(report.trace.size(), kRoom);
  EXPECT_EQ(report.dropped_events, uint64_t{UINT32_MAX} - kRoom);
}

// Whatever is there, the report is within the quantum's bounds.
TEST_F(QuantumReportTest, RandomMemory) {
  std::mt19937_64 random(1);
  int failures = 0;
  for (int i = 0; i < 20'000; ++i) {
    auto* const words = reinterpret_cast<uint32_t*>(ticket_.staging()->host);
    for (uint64_t word = 0; word < bytes_ / sizeof(uint32_t); ++word) {
      words[word] = static_cast<uint32_t>(random()) >> random() % 33 % 32;
    }
    const QuantumReport report = work_->ReadReport();
    EXPECT_LE(report.steps, kSteps);
    EXPECT_LE(report.trace.size(), kRoom);
    if (report.failed_node.has_value()) {
      EXPECT_LT(*report.failed_node, kNodes);
      EXPECT_GE(report.failed_step, work_->planned().first_step);
      EXPECT_LT(report.failed_step, work_->planned().last_step);
      ++failures;
    }
    for (const GraphTraceEvent& event : report.trace) {
      EXPECT_LT(event.node, kNodes);
      EXPECT_LT(event.step, kSteps);
      EXPECT_LE(event.wait_ns, event.begin_ns);
      EXPECT_LE(event.begin_ns, event.end_ns);
    }
  }
  EXPECT_GT(failures, 0);
}

}  // namespace
}  // namespace resident
