// Imports a file in the form of ONNX (server/onnx) in a process of its own: it comes from a client.
//
//   front end ──ImportRequest, a sealed memory object──▶ residentd import
//             ◀──ImportResponse, a memory object────────
//
// The process is confined as an engine of the CPU is (runtime/base/sandbox/engine_sandbox.h): it
// can open nothing. Its memory and its time are limited, so that a file can end this process only.
// What comes back is checked as what a client sends.
//
// Thread safety: functions without state. ImportModel blocks.
//
//   ASSIGN_OR_RETURN(const auto response, ImportModel(std::move(request), withdrawn, take));
#ifndef RESIDENT_SERVER_MODELS_MODEL_IMPORT_H_
#define RESIDENT_SERVER_MODELS_MODEL_IMPORT_H_

#include <chrono>
#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "resident/internal/model_import.pb.h"

namespace resident {

inline constexpr std::chrono::seconds kImportTimeLimit{60};

using TakeMemory = std::function<absl::Status(uint64_t bytes)>;

// `take` is asked for the memory of the answer, by its bytes, before it is read; its error ends the
// import. INVALID_ARGUMENT: the process ended without an answer: it crashed, or needed more memory
// or time than it has. CANCELLED: `withdrawn` returned true. RESOURCE_EXHAUSTED: no process or
// memory.
absl::StatusOr<internal::ImportResponse> ImportModel(internal::ImportRequest request,
                                                     const std::function<bool()>& withdrawn,
                                                     const TakeMemory& take);

// The process: `residentd import`, started by ImportModel only. Returns its exit status.
int ImportMain(int argc, char** argv);

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_MODEL_IMPORT_H_
