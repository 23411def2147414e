// Each kind of transfer is a stream with a source of its own (upload_stream.cc, download_stream.cc,
// load_stream.cc), which describes it.
//
// Thread safety: all functions may be called from any thread.
#ifndef RESIDENT_SERVER_BUFFERS_TRANSFERS_H_
#define RESIDENT_SERVER_BUFFERS_TRANSFERS_H_

#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "resident/v1/buffers.pb.h"
#include "runtime/base/process/unique_fd.h"
#include "server/buffers/buffers.h"
#include "server/core/core.h"

namespace resident {

// Buffers.Upload. `response`: sent if the stream ends OK; valid until the call is over.
grpc::ServerReadReactor<grpc::ByteBuffer>* StartUpload(grpc::CallbackServerContext& context,
                                                       Core& core, grpc::ByteBuffer& response);
// Buffers.Download.
grpc::ServerWriteReactor<v1::DownloadResponse>* StartDownload(grpc::CallbackServerContext& context,
                                                              Core& core,
                                                              const v1::DownloadRequest& request);
// Buffers.LoadFile.
grpc::ServerWriteReactor<v1::LoadFileResponse>* StartLoad(grpc::CallbackServerContext& context,
                                                          Buffers& buffers,
                                                          const v1::LoadFileRequest& request);

// Opens a file below a folder, by a path from a client, so that no path leaves the folder: neither
// by "..", nor by an absolute path, nor by symbolic links.

// Opens the file for reading; a FIFO without a writer does not block. Errors: NOT_FOUND,
// PERMISSION_DENIED (the path leaves the folder, or the file cannot be read), INVALID_ARGUMENT (the
// path is empty), INTERNAL (other errors of the system).
absl::StatusOr<UniqueFd> OpenFileInFolder(const std::string& folder, const std::string& path);

}  // namespace resident

#endif  // RESIDENT_SERVER_BUFFERS_TRANSFERS_H_
