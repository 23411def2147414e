// CopyWorkload: one copy of bytes to, from or between buffers, as a batch of one task (workload.h).
// Uploads, downloads, loads of files, restored buffers, and the setup of a graph copy with it,
// because while a kernel is resident only tasks of the ring copy data.
//
//   Write   staging memory ──▶ buffer; the owner of the ticket writes the bytes to its staging
//           memory before the batch is enqueued, or gives them to WriteData
//   Read    buffer ──▶ staging memory
//   Copy    buffer ──▶ buffer
//   Clear   zeros ──▶ buffer
//
// A copy is a task of its client (ResourcesNeeded), or a piece of a transfer, which takes neither
// quota nor places in the client's queue (TransferNeeds). It has no part in the trial of a version
// of its operator.
//
// Thread safety: one thread at a time.
//
//   auto copy = CopyWorkload::Write(planner.sources(), {buffer, offset}, bytes);
//   RETURN_IF_ERROR(copy->Check());
//   ... a ticket for copy->TransferNeeds(), and the bytes to ticket.staging()->host ...
//   auto batch = Planner::Fill(deadline, std::move(copy), std::move(ticket));
#ifndef RESIDENT_SERVER_WORKLOAD_COPY_WORKLOAD_H_
#define RESIDENT_SERVER_WORKLOAD_COPY_WORKLOAD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/device/buffer_table.h"
#include "runtime/device/device.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/queue/batch.h"
#include "server/workload/planner.h"
#include "server/workload/workload.h"

namespace resident {

// Tasks whose arguments are dense vectors, such as those of copy_bytes, which copies between
// staging memory, device memory and clients' shared memory.

// A dense vector as a task's argument.
Argument VectorArgument(DType dtype, uint64_t address, int64_t elements);

// Fills in a task of an operator whose arguments have `bytes` bytes each, at these addresses, which
// must be valid for operators; and its arguments. `workers`: of the engine.
void FillBytesTask(const ResolvedOperator& op, absl::Span<const uint64_t> addresses, uint64_t bytes,
                   uint64_t workers, TaskDescriptor& task, Argument* arguments);

// Bytes that one piece of an upload, a download or a restore moves.
inline constexpr uint64_t kCopyPieceBytes = 4u << 20;

class CopyWorkload final : public Workload {
 public:
  // Bytes of a buffer, from `offset` on.
  struct Part {
    Part(std::shared_ptr<const Buffer> found, uint64_t byte)
        : buffer(std::move(found)), offset(byte) {}
    // Check finds the buffer, for this client.
    Part(ClientId access, uint64_t buffer_id, uint64_t byte)
        : client(access), id(buffer_id), offset(byte) {}

    std::shared_ptr<const Buffer> buffer = nullptr;
    ClientId client = 0;
    uint64_t id = 0;
    uint64_t offset;
  };

  // `sources` must outlive the object.
  static std::unique_ptr<CopyWorkload> Write(const PlanSources& sources, Part to, uint64_t bytes);
  static std::unique_ptr<CopyWorkload> WriteData(const PlanSources& sources, Part to,
                                                 std::string data);
  static std::unique_ptr<CopyWorkload> Read(const PlanSources& sources, Part from, uint64_t bytes);
  static std::unique_ptr<CopyWorkload> Copy(const PlanSources& sources, Part from, Part to,
                                            uint64_t bytes);
  static std::unique_ptr<CopyWorkload> Clear(const PlanSources& sources, Part to, uint64_t bytes);

  uint64_t bytes() const { return bytes_; }

  // NOT_FOUND: no such buffer. FAILED_PRECONDITION: a buffer was lost, or they are on two devices.
  // OUT_OF_RANGE: the bytes exceed a buffer. UNAVAILABLE: no engine, or it is being replaced.
  absl::Status Check() override;
  Needs ResourcesNeeded() const override;
  Needs TransferNeeds() const;
  void Fill(const Ticket& ticket, RequestBatch& batch) override;
  void BuildResult(const RequestBatch& batch, v1::BatchResult* result) const override;

 private:
  enum class Source : uint8_t { kStaging, kBuffer, kZeros };

  CopyWorkload(const PlanSources& sources, Source source, std::optional<Part> from,
               std::optional<Part> to, uint64_t bytes)
      : sources_(sources),
        source_(source),
        from_(std::move(from)),
        to_(std::move(to)),
        bytes_(bytes) {}

  // Finds a buffer, and the engine of the copy.
  absl::Status CheckPart(Part& part);

  const PlanSources& sources_;
  const Source source_;
  std::optional<Part> from_;  // Of kBuffer.
  std::optional<Part> to_;    // Without a value: staging memory.
  const uint64_t bytes_;
  std::string data_;  // Until Fill.
  // Set by Check, until Fill.
  ResolvedOperator op_;
  uint32_t device_ = 0;
  std::shared_ptr<EngineSession> session_;
};

// Writes bytes to device memory, piece by piece through staging memory, and waits until they are
// written, without a ticket: for buffers of an engine that runs nothing else yet. `fill` provides
// the bytes at an offset; it has returned, with its locks released, before the function waits for
// the device. Errors: those of `fill`, RESOURCE_EXHAUSTED (staging memory), UNAVAILABLE (the engine
// ended, or a piece took longer than half a minute).
absl::Status WriteAndWait(
    const ResolvedOperator& copy_bytes, Device& device, ClientId client, EngineSession& session,
    uint64_t address, uint64_t bytes,
    const std::function<absl::Status(uint64_t offset, absl::Span<uint8_t> to)>& fill);

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_COPY_WORKLOAD_H_
