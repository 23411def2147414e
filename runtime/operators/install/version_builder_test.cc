#include "runtime/operators/install/version_builder.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/device/fake_device.h"
#include "runtime/operators/install/fake_compiler.h"

namespace resident {
namespace {

std::shared_ptr<const UnitPayload> Payload(const std::string& target) {
  auto payload = std::make_shared<UnitPayload>();
  payload->symbol = "resident_op_a";
  payload->units[target] = {std::make_shared<const std::string>("code"), {}};
  return payload;
}

class VersionBuilderTest : public ::testing::Test {
 protected:
  FakeCompiler compiler_;
  FakeDevice device_{0};
  const VersionBuilder builder_{&compiler_, {&device_}};
};

TEST_F(VersionBuilderTest, AUnitMayBeInTwoSlots) {
  const auto payload = Payload("sm_90");
  const auto generation =
      VersionBuilder::MakeGeneration("sm_90", 2, {{40, payload}, {42, payload}});
  ASSERT_TRUE(generation.ok()) << generation.status();
  ASSERT_EQ((*generation)->operators.size(), 2u);
  EXPECT_EQ((*generation)->operators[0].slot, 40u);
  EXPECT_EQ((*generation)->operators[1].slot, 42u);
  EXPECT_EQ((*generation)->operators[0].object, (*generation)->operators[1].object);
}

TEST_F(VersionBuilderTest, AUnitThatWasNotCompiledForTheDeviceIsAnError) {
  const auto generation = VersionBuilder::MakeGeneration("sm_90", 2, {{40, Payload("sm_80")}});
  EXPECT_EQ(generation.status().code(), absl::StatusCode::kInternal) << generation.status();
}

TEST_F(VersionBuilderTest, ABuildChecksForCancellation) {
  for (const OperatorKind kind : {OperatorKind::kSource, OperatorKind::kObject}) {
    std::atomic<int> checks = 0;
    BuildRequest request;
    request.operator_name = "times";
    request.kind = kind;
    request.main_file = "times.cc";
    request.files["times.cc"] = "";
    request.cancelled = [&] {
      ++checks;
      return true;
    };
    std::string log;
    EXPECT_EQ(builder_.Build(request, &log).status().code(), absl::StatusCode::kCancelled);
    EXPECT_GT(checks, 0);
  }
}

// The checked build, which is always trusted, does not count.
TEST_F(VersionBuilderTest, AVersionHasTheLevelOfItsUnits) {
  for (const auto& [wanted, level] : {std::pair{Isolation::kTrusted, Isolation::kTrusted},
                                      {Isolation::kStoppable, Isolation::kStoppable},
                                      {Isolation::kUnspecified, Isolation::kStoppable}}) {
    BuildRequest request;
    request.operator_name = "times";
    request.main_file = "times.cc";
    request.files["times.cc"] = "";
    request.isolation = wanted;
    std::string log;
    const auto built = builder_.Build(request, &log);
    ASSERT_TRUE(built.ok()) << built.status();
    EXPECT_EQ(built->isolation, level);
  }
}

TEST_F(VersionBuilderTest, OnlyARequestThatWantsItIsCompiledWithChecks) {
  for (const bool with_checked : {true, false}) {
    for (const OperatorKind kind : {OperatorKind::kSource, OperatorKind::kObject}) {
      std::atomic<int> compilations = 0;
      BuildRequest request;
      request.operator_name = "times";
      request.kind = kind;
      request.main_file = "times.cc";
      request.files["times.cc"] = "";
      request.with_checked = with_checked;
      request.cancelled = [&] {
        ++compilations;
        return false;
      };
      std::string log;
      const auto built = builder_.Build(request, &log);
      ASSERT_TRUE(built.ok()) << built.status();
      EXPECT_NE(built->payload, nullptr);
      const bool checked = with_checked && kind == OperatorKind::kSource;
      EXPECT_EQ(built->checked != nullptr, checked);
      EXPECT_EQ(compilations, checked ? 2 : 1);
    }
  }
}

}  // namespace
}  // namespace resident
