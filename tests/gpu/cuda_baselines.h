// Measures programs without residentd: launches, launches with a mapped flag, CUDA graphs,
// and a device-to-device copy, with the driver API.
//
// Must run before a resident kernel starts in the process: loading a module waits for it.
// Every function uses its own memory and frees it.
#ifndef RESIDENT_TESTS_GPU_CUDA_BASELINES_H_
#define RESIDENT_TESTS_GPU_CUDA_BASELINES_H_

#include <cstdint>
#include <vector>

namespace resident::testing {

struct Baselines {
  // Microseconds of each round trip of one add of 1,024 float32.
  std::vector<double> launch_us;
  std::vector<double> launch_flag_us;
  std::vector<double> graph_one_us;
  // Tasks per second: a graph of 1,000 independent adds on distinct buffers; launches on
  // one stream.
  double graph_independent_per_s = 0;
  double launches_per_s = 0;
  // Bytes read and written per second by a device-to-device copy of 1 GiB.
  double copy_bytes_per_s = 0;
};

// Aborts the program with a message if the GPU cannot be used.
Baselines MeasureBaselines();

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GPU_CUDA_BASELINES_H_
