#include "runtime/state/state_database.h"

#include <stdlib.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace resident {
namespace {

class StateDatabaseTest : public testing::Test {
 protected:
  StateDatabaseTest() {
    folder_ = testing::TempDir() + "/database.XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }
  ~StateDatabaseTest() override { std::filesystem::remove_all(folder_); }

  // A model with one record of each kind, which a restart accepts.
  static StateModel MakeModel() {
    StateModel model;
    StoredVersion version;
    version.version = 1;
    version.spec.task_time_limit = std::chrono::milliseconds(UINT32_MAX);
    StoredOperator& op = model.operators["swish"];
    op.name = "swish";
    op.revision = op.last_version = 1;
    op.versions = {version};
    model.buffers[7] = {.id = 7, .dtype = 1, .shape = {2, 3}, .size_bytes = 24};
    model.AddEvent({.revision = 1, .operator_name = "swish"}, 10);
    return model;
  }
  // Writes the model, and reads it.
  absl::Status Read(const StateModel& model, StateModel* found,
                    std::vector<std::string>* problems) {
    EXPECT_TRUE(StateDatabase::Create(folder_, model).ok());
    const auto database = StateDatabase::Open(folder_, {});
    EXPECT_TRUE(database.ok()) << database.status();
    return (*database)->Read(found, problems);
  }

  std::string folder_;
};

TEST_F(StateDatabaseTest, AModelIsReadAsItWasWritten) {
  StateModel found;
  const absl::Status status = Read(MakeModel(), &found, nullptr);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(found.operators["swish"].versions[0].spec.task_time_limit.count(), UINT32_MAX);
  EXPECT_EQ(found.buffers[7].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(found.events.size(), 1u);
}

// A row with a right checksum that this daemon cannot have written.
TEST_F(StateDatabaseTest, ARecordWithAValueOutOfRangeIsDamage) {
  struct Case {
    const char* what;
    std::string row;
    std::function<void(StateModel& model)> damage;
  };
  const auto version = [](StateModel& model) -> StoredVersion& {
    return model.operators["swish"].versions[0];
  };
  const std::string op = "row 'swish' of table operators", buffer = "row 7 of table buffers";
  const std::vector<Case> cases = {
      {"state", op, [&](auto& m) { version(m).state = static_cast<VersionState>(11); }},
      {"no state", op, [&](auto& m) { version(m).state = static_cast<VersionState>(0); }},
      {"kind", op, [&](auto& m) { version(m).spec.kind = static_cast<OperatorKind>(5); }},
      {"isolation", op, [&](auto& m) { version(m).spec.isolation = static_cast<Isolation>(4); }},
      {"built in", op, [&](auto& m) { version(m).spec.kind = OperatorKind::kBuiltin; }},
      {"time", op,
       [&](auto& m) { version(m).spec.task_time_limit = std::chrono::milliseconds(-1); }},
      {"long time", op,
       [&](auto& m) {
         version(m).spec.task_time_limit = std::chrono::milliseconds(int64_t{1} << 32);
       }},
      {"share", op, [](auto& m) { m.operators["swish"].traffic_percent = 101; }},
      {"no share", op,
       [](auto& m) {
         m.operators["swish"].shadow_percent = std::numeric_limits<double>::quiet_NaN();
       }},
      {"event", "row 1 of table events",
       [](auto& m) {
         OperatorEvent event = *m.events[0];
         event.kind = static_cast<EventKind>(11);
         m.events[0] = std::make_shared<const OperatorEvent>(event);
       }},
      {"dtype", buffer, [](auto& m) { m.buffers[7].dtype = 10; }},
      {"wide dtype", buffer, [](auto& m) { m.buffers[7].dtype = 257; }},
      {"size", buffer, [](auto& m) { m.buffers[7].size_bytes = 25; }},
      {"negative", buffer,
       [](auto& m) {
         m.buffers[7].shape = {-2, -3};
       }},
      {"overflow", buffer,
       [](auto& m) {
         m.buffers[7].shape = {int64_t{1} << 62, 1};
         m.buffers[7].size_bytes = 0;
       }},
      {"rank", buffer, [](auto& m) { m.buffers[7].shape = {2, 3, 1, 1, 1, 1, 1, 1, 1}; }},
  };
  for (const Case& damaged : cases) {
    SCOPED_TRACE(damaged.what);
    StateModel model = MakeModel();
    damaged.damage(model);
    StateModel found;
    const absl::Status status = Read(model, &found, nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_NE(status.message().find(damaged.row), std::string::npos) << status;
    // A repair keeps the other records.
    StateModel kept;
    std::vector<std::string> problems;
    EXPECT_TRUE(Read(model, &kept, &problems).ok());
    ASSERT_EQ(problems.size(), 1u);
    EXPECT_NE(problems[0].find(damaged.row), std::string::npos) << problems[0];
    EXPECT_EQ(kept.operators.size() + kept.buffers.size() + kept.events.size(), 2u);
  }
}

}  // namespace
}  // namespace resident
