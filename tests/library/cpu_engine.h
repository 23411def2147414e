// RunTaskOnCpuEngine: the daemon's CPU engine, for comparisons with libresident_ops. The program
// for GPU machines, which compares the library on the GPU with the library on the CPU, is linked
// with no_cpu_engine.cc, so that a bundle does not contain the engines once more.
#ifndef RESIDENT_TESTS_LIBRARY_CPU_ENGINE_H_
#define RESIDENT_TESTS_LIBRARY_CPU_ENGINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/layout/task.h"

namespace resident::testing {

// Runs one task, which must succeed, in this process.
void RunTaskOnCpuEngine(const std::string& op, const std::vector<Argument>& arguments,
                        uint32_t chunks);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_LIBRARY_CPU_ENGINE_H_
