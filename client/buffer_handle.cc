// BufferHandle: owns a buffer and frees it in its destructor.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/connection.h"
#include "client/residentd_client.h"

namespace resident::client {

BufferHandle::BufferHandle(std::shared_ptr<Connection> connection, std::string session,
                           v1::BufferInfo info)
    : connection_(std::move(connection)), session_(std::move(session)), info_(std::move(info)) {}

BufferHandle::BufferHandle(BufferHandle&& other) noexcept
    : connection_(std::move(other.connection_)),
      session_(std::move(other.session_)),
      info_(std::move(other.info_)) {}

BufferHandle& BufferHandle::operator=(BufferHandle&& other) noexcept {
  if (this != &other) {
    Free().IgnoreError();
    connection_ = std::move(other.connection_);
    session_ = std::move(other.session_);
    info_ = std::move(other.info_);
  }
  return *this;
}

BufferHandle::~BufferHandle() { Free().IgnoreError(); }

absl::Status BufferHandle::Free() {
  if (connection_ == nullptr) return absl::OkStatus();
  const std::shared_ptr<Connection> connection = std::move(connection_);
  connection_ = nullptr;
  // The daemon freed it with its session, and may have reused the id for another client.
  if (!connection->IsCurrentSession(session_)) return absl::OkStatus();
  return connection->Free(info_.id());
}

void BufferHandle::Release() { connection_ = nullptr; }

absl::Status BufferHandle::UploadBytes(const void* data, uint64_t size_bytes,
                                       uint64_t offset_bytes) {
  if (connection_ == nullptr) return absl::FailedPreconditionError("the buffer was freed");
  return connection_->Upload(info_.id(), offset_bytes, static_cast<const char*>(data), size_bytes);
}

absl::Status BufferHandle::DownloadBytes(void* data, uint64_t size_bytes,
                                         uint64_t offset_bytes) const {
  if (connection_ == nullptr) return absl::FailedPreconditionError("the buffer was freed");
  if (size_bytes == 0) return absl::OkStatus();
  uint64_t received = 0;
  absl::Status status =
      connection_->Download(info_.id(), offset_bytes, size_bytes, [&](std::string_view piece) {
        if (piece.size() > size_bytes - received) return false;
        std::memcpy(static_cast<char*>(data) + received, piece.data(), piece.size());
        received += piece.size();
        return true;
      });
  if (status.ok() && received != size_bytes) {
    status = absl::DataLossError(absl::StrCat("the server sent ", received, " of ", size_bytes,
                                              " bytes of buffer ", info_.id()));
  }
  return status;
}

}  // namespace resident::client
