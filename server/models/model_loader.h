// ModelLoader: makes a version of a model of the messages of one Models.Load.
//
//   header ──▶ parts of weights, in any order ──▶ Finish ──▶ Load (may block)
//      └──▶ parts of files of an ONNX model ────────▲
//
// What a message may make the daemon keep is known from the header: the bytes of all weights are
// taken from the daemon's memory at once, and a part that exceeds its tensor is refused.
//
// Thread safety: one thread at a time, but for Withdraw.
//
//   ModelLoader loader(models, identity, holder);
//   RETURN_IF_ERROR(loader.Add(message));                       // each, in order
//   RETURN_IF_ERROR(loader.Finish());
//   RETURN_IF_ERROR(loader.Load(progress));                     // On a thread that may block.
#ifndef RESIDENT_SERVER_MODELS_MODEL_LOADER_H_
#define RESIDENT_SERVER_MODELS_MODEL_LOADER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "resident/internal/model_import.pb.h"
#include "resident/v1/models.pb.h"
#include "server/auth/account.h"
#include "server/models/graph_model.h"
#include "server/models/models.h"

namespace resident {

class ModelLoader {
 public:
  // `client`: the one of the call, to which the header is charged. `holder`: of the caller
  // (NameHolder).
  ModelLoader(Models& models, std::shared_ptr<Identity> identity, std::shared_ptr<Client> client,
              std::string holder)
      : models_(models),
        core_(models.core),
        identity_(std::move(identity)),
        client_(std::move(client)),
        holder_(std::move(holder)) {}

  // Takes the contents out of the message. After an error nothing more may be added. Errors: see
  // Models.Load.
  absl::Status Add(v1::LoadModelRequest& message);
  // Called after the last message. INVALID_ARGUMENT: something is missing.
  absl::Status Finish() const;

  using Progress = std::function<void(v1::LoadModelResponse response)>;
  // Checks, loads and activates. REQUIRES: Finish has returned OK. Errors: see Models.Load;
  // CANCELLED after Withdraw.
  absl::Status Load(const Progress& progress) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends Load, unless the version is in the table. Any thread.
  void Withdraw() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Weight {
    uint64_t bytes = 0;  // That are wanted.
    std::string data;
  };

  absl::Status AddHeader(v1::LoadModelHeader& header);
  absl::Status AddWeight(v1::ModelWeightPart& part);
  // Sets weights_ to what the graph needs, and takes the memory.
  absl::Status ExpectWeights();
  absl::Status CheckWeights() const;
  // The same for files.
  absl::Status ExpectFiles();
  absl::Status AddFile(v1::ModelFilePart& part);
  // Takes so much of the daemon's memory, in place of what was taken before.
  absl::Status TakeMemory(uint64_t bytes);
  // Sets the header's graph and the weights; or the report, if the model is not accepted.
  absl::Status ImportFiles(v1::GraphReport* report) ABSL_LOCKS_EXCLUDED(mu_);
  // Sets graph_content_ and what is stored. REQUIRES: called before MakeModel takes the weights.
  void HashContents();
  // Checks the graph as it was sent, for the report, and then the one that instances execute. Null:
  // it is not accepted.
  absl::StatusOr<LoadedGraph::Checked> Check(v1::GraphReport* report) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckOnThread(graph::CheckBudget& budget, v1::GraphReport* report,
                             LoadedGraph::Checked* checked);
  absl::Status CheckRights(const graph::CheckedGraph& checked) const;
  absl::StatusOr<std::shared_ptr<GraphModel>> MakeModel(const LoadedGraph::Checked& checked)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The sizes of the plans that are made now. INVALID_ARGUMENT: shapes that do not fit.
  absl::StatusOr<std::vector<PlanSizes>> ReadWarmup(const ModelInterface& interface) const;
  // Makes the first instance of a plan.
  absl::Status MakeInstance(const std::shared_ptr<ModelInstances>& plan) ABSL_LOCKS_EXCLUDED(mu_);

  Models& models_;
  Core& core_;
  const std::shared_ptr<Identity> identity_;
  const std::shared_ptr<Client> client_;
  const std::string holder_;
  v1::LoadModelHeader header_;
  bool has_header_ = false;
  Budget::Charge header_charge_;
  Budget::Charge charge_;                  // For the weights, or the files.
  std::map<std::string, Weight> weights_;  // By tensor.
  internal::ImportRequest import_;
  uint64_t file_bytes_ = 0;
  // Of a model with plans; null: it has one graph.
  std::shared_ptr<const ImportSource> source_;
  internal::PlanRules rules_;
  std::shared_ptr<LoadedGraph> graph_;
  std::string graph_content_;  // The serialized graph, as it was sent.
  StoredModel::Version stored_;

  absl::Mutex mu_;
  bool withdrawn_ ABSL_GUARDED_BY(mu_) = false;
  // What Withdraw ends; null: nothing.
  std::shared_ptr<GraphChecker::Check> check_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<ModelInstances> making_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_MODEL_LOADER_H_
