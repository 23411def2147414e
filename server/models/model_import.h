// Imports a file in the form of ONNX (server/onnx) in a process of its own: it comes from a client.
//
//   front end ──ImportRequest, a sealed memory object──▶ residentd import
//             ──ImportPlan────────────────────────────▶
//             ◀──ImportResponse, a memory object────────
//
// A model with a graph for each size (plans) is imported again for each of them, from the same
// object, which its version keeps.
//
// The process is confined as an engine of the CPU is (runtime/base/sandbox/engine_sandbox.h): it
// can open nothing. Its memory and its time are limited, so that a file can end this process only.
// What comes back is checked as what a client sends.
//
// Thread safety: functions without state, and a class that does not change. ImportModel blocks.
//
//   ASSIGN_OR_RETURN(const auto source, ImportSource::Make(std::move(request)));
//   ASSIGN_OR_RETURN(const auto response, ImportModel(*source, /*plan=*/{}, withdrawn, take));
#ifndef RESIDENT_SERVER_MODELS_MODEL_IMPORT_H_
#define RESIDENT_SERVER_MODELS_MODEL_IMPORT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "resident/internal/model_import.pb.h"
#include "runtime/base/process/unique_fd.h"

namespace resident {

inline constexpr std::chrono::seconds kImportTimeLimit{60};

using TakeMemory = std::function<absl::Status(uint64_t bytes)>;

// What a model is made of: an ImportRequest and the files, in a sealed memory object.
class ImportSource {
 public:
  // RESOURCE_EXHAUSTED: no memory.
  static absl::StatusOr<std::shared_ptr<const ImportSource>> Make(internal::ImportRequest request);
  // Of the bytes that content() returned.
  static absl::StatusOr<std::shared_ptr<const ImportSource>> FromContent(std::string_view content);
  ~ImportSource();
  ImportSource(const ImportSource&) = delete;
  ImportSource& operator=(const ImportSource&) = delete;

  int fd() const { return fd_.get(); }
  std::string_view content() const { return {static_cast<const char*>(memory_), bytes_}; }

 private:
  explicit ImportSource(UniqueFd fd) : fd_(std::move(fd)) {}
  // Seals the object and maps it.
  static absl::StatusOr<std::shared_ptr<const ImportSource>> Seal(UniqueFd fd);

  const UniqueFd fd_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

// Makes the graph that `plan` wants. `take` is asked for the memory of the answer, by its bytes,
// before it is read; its error ends the import. INVALID_ARGUMENT: the process ended without an
// answer: it crashed, or needed more memory or time than it has. CANCELLED: `withdrawn` returned
// true. RESOURCE_EXHAUSTED: no process or memory.
absl::StatusOr<internal::ImportResponse> ImportModel(const ImportSource& source,
                                                     const internal::ImportPlan& plan,
                                                     const std::function<bool()>& withdrawn,
                                                     const TakeMemory& take);

// The process: `residentd import`, started by ImportModel only. Returns its exit status.
int ImportMain(int argc, char** argv);

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_MODEL_IMPORT_H_
