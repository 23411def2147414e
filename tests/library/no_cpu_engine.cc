// For a program that runs only on GPUs.
#include <gtest/gtest.h>

#include "tests/library/cpu_engine.h"

namespace resident::testing {

void RunTaskOnCpuEngine(const std::string&, const std::vector<Argument>&, uint32_t) {
  FAIL() << "this program is for GPUs. Fix: set RESIDENT_TEST_ENGINE=cuda, or run "
            "//tests/library:agreement_test";
}

}  // namespace resident::testing
