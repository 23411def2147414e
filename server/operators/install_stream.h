// InstallStream: one Operators.Install (server/operators/upload_stream.h). The manager installs,
// and each state that it reports is sent as an answer. It checks whether the install was withdrawn
// before it loads anything.
//
// Thread safety: see UploadStream.
#ifndef RESIDENT_SERVER_OPERATORS_INSTALL_STREAM_H_
#define RESIDENT_SERVER_OPERATORS_INSTALL_STREAM_H_

#include <atomic>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/operators/install_collector.h"
#include "server/operators/upload_stream.h"

namespace resident {

class InstallStream final : public UploadStream {
 public:
  InstallStream(Transport& transport, Installs& installs)
      : UploadStream(transport, installs, "resident.v1.Operators/Install") {}

 private:
  absl::Status Begin(const grpc::CallbackServerContext&, const Caller& caller) override {
    identity_ = caller.identity;
    return absl::OkStatus();
  }
  // The header names the operator, for which the caller's permission is checked.
  absl::Status Add(grpc::ByteBuffer& bytes) override;
  absl::StatusOr<grpc::ByteBuffer> Finish() override;
  absl::Status Work() override;
  void Withdraw() override { withdrawn_ = true; }

  const Clock::time_point started_ = Clock::now();
  std::shared_ptr<Identity> identity_;
  InstallCollector collector_;
  InstallRequest request_;
  std::atomic<bool> withdrawn_{false};
};

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATORS_INSTALL_STREAM_H_
