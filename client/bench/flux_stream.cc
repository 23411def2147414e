#include <algorithm>
#include <chrono>
#include <deque>
#include <future>

#include "absl/strings/str_cat.h"
#include "client/bench/measurements.h"
#include "runtime/base/status_macros.h"
#include "runtime/flux/assembler.h"

namespace resident::bench {

const char kSumOfSquaresSource[] = R"(        MOV   R1, R0          ; R1 = n, the input
        MOVI  R0, 0           ; R0 = the sum
next:   MUL   R2, R1, R1
        ADD   R0, R0, R2
        LOOP  R1, next        ; until R1 is 0
        HALT
)";

namespace {

using Clock = std::chrono::steady_clock;

// Two instructions before the loop, three in each iteration, and HALT.
uint32_t ExpectedCycles(uint32_t n) { return 2 + 3 * n + 1; }

int32_t ExpectedSum(uint32_t n) {
  const uint64_t m = n;
  return static_cast<int32_t>(static_cast<uint32_t>(m * (m + 1) * (2 * m + 1) / 6));
}

uint32_t RunInput(uint32_t run, const FluxStreamOptions& options) {
  return 1 + run % options.largest;
}

void Check(const client::Result& result, const FluxStreamOptions& options,
           FluxStreamReport& report) {
  const bool complete =
      result.registers().size() == options.runs && result.cycles().size() == options.runs;
  if (!complete) {
    if (report.wrong == 0) {
      report.first_difference = absl::StrCat("results of ", result.registers().size(), " of ",
                                             options.runs, " runs were returned");
    }
    report.wrong += options.runs;
    return;
  }
  for (uint32_t i = 0; i < options.runs; ++i) {
    const uint32_t n = RunInput(i, options);
    const int32_t sum = result.registers()[i];
    const uint32_t cycles = result.cycles()[i];
    const int error = result.flux_errors().empty() ? 0 : result.flux_errors()[i];
    report.instructions += cycles;
    if (sum == ExpectedSum(n) && cycles == ExpectedCycles(n) && error == 0) continue;
    if (report.wrong++ == 0) {
      report.first_difference =
          absl::StrCat("n = ", n, ": sum ", sum, ", ", cycles, " cycles, error ", error,
                       " instead of ", ExpectedSum(n), ", ", ExpectedCycles(n), ", 0");
    }
  }
}

}  // namespace

absl::StatusOr<FluxStreamReport> StreamFlux(client::Client& client,
                                            const FluxStreamOptions& options,
                                            const std::function<void(double)>& progress) {
  ASSIGN_OR_RETURN(flux::Bytecode code, flux::Assemble(kSumOfSquaresSource));
  std::vector<int32_t> inputs(options.runs);
  for (uint32_t i = 0; i < options.runs; ++i) {
    inputs[i] = static_cast<int32_t>(RunInput(i, options));
  }
  client::FluxBatch batch;
  batch.Program(code).Inputs(inputs, 1).MaxCycles(ExpectedCycles(options.largest));
  if (options.device.has_value()) batch.set_device(*options.device);

  ASSIGN_OR_RETURN(std::unique_ptr<client::Stream> stream,
                   client.OpenStream({.max_in_flight = std::max(options.in_flight, 1u)}));
  FluxStreamReport report;
  std::deque<std::future<absl::StatusOr<client::Result>>> pending;
  const auto take_first = [&]() -> absl::Status {
    absl::StatusOr<client::Result> result = pending.front().get();
    pending.pop_front();
    if (!result.ok()) return result.status();
    if (!result->ok()) return result->status();
    Check(*result, options, report);
    return absl::OkStatus();
  };
  const Clock::duration duration = absl::ToChronoNanoseconds(options.duration);
  const Clock::time_point start = Clock::now();
  while (options.batches > 0 ? report.batches < options.batches : Clock::now() - start < duration) {
    if (pending.size() >= options.in_flight) {
      RETURN_IF_ERROR(take_first());
    }
    pending.push_back(stream->Send(batch));
    ++report.batches;
    progress(options.batches > 0
                 ? static_cast<double>(report.batches) / static_cast<double>(options.batches)
                 : std::chrono::duration<double>(Clock::now() - start) /
                       std::chrono::duration<double>(duration));
  }
  while (!pending.empty()) {
    RETURN_IF_ERROR(take_first());
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report.runs = report.batches * options.runs;
  RETURN_IF_ERROR(stream->Finish());
  return report;
}

}  // namespace resident::bench
