// Buffers of device memory that belongs to a process of a client (Buffers.ImportCuda).
//
// Thread safety: functions; may be called from any thread.
#ifndef RESIDENT_SERVER_BUFFERS_CUDA_IMPORT_H_
#define RESIDENT_SERVER_BUFFERS_CUDA_IMPORT_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "resident/v1/buffers.pb.h"
#include "server/buffers/buffers.h"

namespace resident {

// Whether this daemon accepts the way in which the request identifies the memory. Errors:
// FAILED_PRECONDITION, INVALID_ARGUMENT.
absl::Status CheckCudaImport(const Buffers& buffers, const v1::ImportCudaRequest& request);

// Makes the buffer; a call to the engine. It consumes the token, also if it fails. Errors: those of
// Buffers.ImportCuda. REQUIRES: CheckCudaImport.
absl::StatusOr<std::shared_ptr<const Buffer>> ImportCuda(Buffers& buffers, const Client& client,
                                                         const v1::ImportCudaRequest& request);

}  // namespace resident

#endif  // RESIDENT_SERVER_BUFFERS_CUDA_IMPORT_H_
