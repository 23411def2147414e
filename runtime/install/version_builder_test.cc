#include "runtime/install/version_builder.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/install/fake_compiler.h"
#include "runtime/install/scripted_device.h"

namespace resident {
namespace {

constexpr UnitTarget kGpu = 90;

std::shared_ptr<const UnitPayload> Payload(const std::string& symbol, const std::string& object) {
  auto payload = std::make_shared<UnitPayload>();
  payload->symbol = symbol;
  payload->units[kGpu] = {std::make_shared<const std::string>(object), {}};
  return payload;
}

class VersionBuilderTest : public ::testing::Test {
 protected:
  FakeCompiler compiler_;
  ScriptedDevice device_{0};
  const VersionBuilder builder_{&compiler_, {&device_}};
};

TEST_F(VersionBuilderTest, TheSameUnitInTwoSlotsIsLinkedOnce) {
  const auto generation = builder_.Link(kGpu, 2,
                                        {{40, Payload("same", "code")},
                                         {41, Payload("other", "more")},
                                         {42, Payload("same", "code")}});
  ASSERT_TRUE(generation.ok()) << generation.status();
  ASSERT_EQ((*generation)->operators.size(), 3u);
  EXPECT_EQ((*generation)->operators[0].slot, 40u);
  EXPECT_EQ((*generation)->operators[2].slot, 42u);
  EXPECT_EQ((*generation)->operators[2].symbol, "same");
  ASSERT_EQ(compiler_.links().size(), 1u);
  const auto linked = compiler_.links()[0].operators;
  ASSERT_EQ(linked.size(), 3u);
  EXPECT_NE(linked[0].object, nullptr);
  EXPECT_NE(linked[1].object, nullptr);
  EXPECT_EQ(linked[2].object, nullptr);
  EXPECT_EQ(linked[2].symbol, "same");
}

TEST_F(VersionBuilderTest, UnitsThatOnlyShareANameAreTheLinkersToRefuse) {
  ASSERT_TRUE(
      builder_.Link(kGpu, 2, {{40, Payload("same", "one")}, {42, Payload("same", "two")}}).ok());
  const std::vector<LinkJob> links = compiler_.links();
  ASSERT_EQ(links.size(), 1u);
  for (const GenerationOperator& op : links[0].operators) {
    EXPECT_NE(op.object, nullptr);
  }
}

TEST_F(VersionBuilderTest, ABuildAsksWhetherItIsWithdrawn) {
  for (const InstallKind kind : {InstallKind::kSource, InstallKind::kObject}) {
    std::atomic<int> asked = 0;
    BuildRequest request;
    request.operator_name = "times";
    request.kind = kind;
    request.main_file = "times.cc";
    request.files["times.cc"] = "";
    request.cancelled = [&] {
      ++asked;
      return true;
    };
    std::string log;
    EXPECT_EQ(builder_.Build(request, &log).status().code(), absl::StatusCode::kCancelled);
    EXPECT_GT(asked, 0);
  }
}

}  // namespace
}  // namespace resident
