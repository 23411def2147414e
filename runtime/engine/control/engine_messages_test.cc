#include "runtime/engine/control/engine_messages.h"

#include <chrono>

#include "gtest/gtest.h"

namespace resident {
namespace {

// A trait that is lost on its way to the front end is one that the front end takes for absent.
TEST(EngineMessagesTest, EachTraitReachesTheFrontEnd) {
  EngineTraits traits;
  traits.engine = "abacus";
  traits.compile_target = "beads-2";
  traits.work_units = "rods";
  traits.instructions_per_ms = uint64_t{1} << 40;
  traits.run_instructions_per_ms = uint64_t{1} << 41;
  traits.lockstep_runs = 6;
  traits.divergence_slowdown = 7;
  traits.max_operations_per_ms = uint64_t{1} << 42;
  traits.max_elements_per_ms = uint64_t{1} << 43;
  traits.max_scattered_elements_per_ms = uint64_t{1} << 44;
  traits.units_share_task = true;
  traits.executes_graphs = true;
  traits.graph_workers = 9;
  traits.maps_device_memory = true;
  traits.max_task_time = std::chrono::milliseconds(8);

  const internal::EngineTraits message = ToMessage(traits);
  const auto* const type = message.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    EXPECT_TRUE(message.GetReflection()->HasField(message, type->field(i)))
        << type->field(i)->name();
  }
  EngineInfo info;
  info.traits = traits;
  info.uuid = "GPU-1";
  EXPECT_EQ(FromMessage(ToMessage(info)).traits, traits);
  EXPECT_EQ(FromMessage(ToMessage(info)).uuid, "GPU-1");
}

}  // namespace
}  // namespace resident
