#include "tests/library/cpu_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/support/engine_harness.h"

namespace resident::testing {

void RunTaskOnCpuEngine(const std::string& op, const std::vector<Argument>& arguments,
                        uint32_t chunks) {
  static auto* const harness = new EngineHarness({});
  static auto* const ring = new std::shared_ptr<HostRing>(harness->NewRing());
  const uint64_t sequence = *(*ring)->Reserve();
  std::copy(arguments.begin(), arguments.end(), (*ring)->arguments(sequence)->arguments);
  (*ring)->Publish(sequence,
                   ArgumentTask(OperatorSlot(op), static_cast<uint32_t>(arguments.size()), chunks));
  harness->Ring();
  TaskCompletion completion{};
  while ((*ring)->Consume([&](uint64_t, const TaskCompletion& end) { completion = end; }) == 0) {
  }
  EXPECT_EQ(completion.status, CompletionStatus::kOk);
}

}  // namespace resident::testing
