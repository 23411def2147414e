// Models of a daemon: load, activate, share, roll back, remove, and requests to them.
//
//   resident::client::Models models(*client);
//   resident::v1::LoadModelHeader header;
//   header.set_name("ranker");
//   *header.mutable_graph() = graph;                       // GraphBuilder, or a file
//   auto loaded = models.Load(header, {{"w", bytes}});     // Contents of the weights, by tensor.
//   models.Activate("ranker");                             // Serves from now on.
//   resident::v1::ModelCall call;  ...
//   auto result = models.Run(call);                        // The dense outputs.
//
// Errors: the status code and message of the daemon, unchanged; proto/resident/v1/models.proto and
// executor.proto document the codes. ABORTED: another change happened before.
//
// Thread safety: all members may be called from several threads.
#ifndef RESIDENT_CLIENT_MODELS_H_
#define RESIDENT_CLIENT_MODELS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/residentd_client.h"
#include "resident/v1/executor.pb.h"
#include "resident/v1/models.pb.h"
#include "resident/v1/operators.pb.h"

namespace resident::client {

class Models {
 public:
  // Reads bytes [offset, offset + to->size()) of a weight or file.
  using ReadPart =
      std::function<absl::Status(const std::string& name, uint64_t offset, std::string* to)>;
  // Shares the client's connection, and may outlive it.
  explicit Models(const Client& client);

  // Loads a version. `parts`: the contents of the graph's weights by tensor, or with header.onnx
  // those of the files by name; onnx.file_bytes is set here. The last response: state CHECKED with
  // the report if the model is refused.
  absl::StatusOr<v1::LoadModelResponse> Load(const v1::LoadModelHeader& header,
                                             const std::map<std::string, std::string_view>& parts);
  // The same for contents that are read piece by piece; `sizes`: their bytes. An error of `read`
  // ends the load.
  absl::StatusOr<v1::LoadModelResponse> Load(v1::LoadModelHeader header,
                                             const std::map<std::string, uint64_t>& sizes,
                                             const ReadPart& read);

  // Empty: all.
  absl::StatusOr<std::vector<v1::Model>> List(const std::string& name = "");
  // `version` 0: the one that was loaded last. `bake`: how it is compared with the one before.
  absl::StatusOr<v1::ChangeModelResponse> Activate(
      const std::string& name, uint32_t version = 0,
      std::optional<uint64_t> expected_revision = std::nullopt, const v1::BakeOptions& bake = {});
  // Lets a version serve a share of the requests that name none; 0 percent: ends the share.
  absl::StatusOr<v1::ChangeModelResponse> Share(
      const std::string& name, uint32_t version, double percent,
      std::optional<uint64_t> expected_revision = std::nullopt);
  absl::StatusOr<v1::ChangeModelResponse> Rollback(
      const std::string& name, std::optional<uint64_t> expected_revision = std::nullopt);
  // `version` 0: the model.
  absl::StatusOr<v1::ChangeModelResponse> Remove(
      const std::string& name, uint32_t version = 0,
      std::optional<uint64_t> expected_revision = std::nullopt);

  // One request. `timeout`: after which it is refused if it has not begun; zero: that of the calls.
  // A failed task is an error with the status that it has.
  absl::StatusOr<v1::BatchResult> Run(const v1::ModelCall& call,
                                      absl::Duration timeout = absl::ZeroDuration());

 private:
  std::shared_ptr<Connection> connection_;
};

}  // namespace resident::client

#endif  // RESIDENT_CLIENT_MODELS_H_
