// Throughput of streamed FLUX batches with a known answer: one program, which sums the
// squares from 1 to n, for many values of n. Registers and cycle counts are checked against
// n (n + 1) (2n + 1) / 6 and 3n + 3.
#ifndef RESIDENT_CLIENT_BENCH_FLUX_STREAM_H_
#define RESIDENT_CLIENT_BENCH_FLUX_STREAM_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/residentd_client.h"

namespace resident::bench {

// The program as assembly.
extern const char kSumOfSquaresSource[];

struct FluxStreamOptions {
  // Runs in a batch; run i sums to n = 1 + i % largest.
  uint32_t runs = 65536;
  uint32_t largest = 1000;
  uint32_t in_flight = 4;
  // Ends after `duration`, or after `batches` if that is not 0.
  absl::Duration duration = absl::Seconds(2);
  uint64_t batches = 0;
  std::optional<uint32_t> device;
};

struct FluxStreamReport {
  uint64_t batches = 0;
  uint64_t runs = 0;
  uint64_t instructions = 0;
  double seconds = 0;
  // Runs with an unexpected register, error or cycle count; a description of the first.
  uint64_t wrong = 0;
  std::string first_difference;
};

// Fails if a batch is refused or fails as a whole. `progress` receives the completed fraction.
absl::StatusOr<FluxStreamReport> StreamFlux(client::Client& client,
                                            const FluxStreamOptions& options,
                                            const std::function<void(double)>& progress);

}  // namespace resident::bench

#endif  // RESIDENT_CLIENT_BENCH_FLUX_STREAM_H_
