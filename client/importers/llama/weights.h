// LlamaWeights: the tensors of a model's safetensors files by name. Only the headers are read.
//
// A folder has either model.safetensors, or several files and model.safetensors.index.json, which
// lists them.
//
// Thread safety: const members may be called from several threads.
//
//   ASSIGN_OR_RETURN(LlamaWeights weights, LlamaWeights::Read("model"));
//   ASSIGN_OR_RETURN(const v1::DType dtype, weights.Take("model.norm.weight", {64},
//   "hidden_size"));
#ifndef RESIDENT_CLIENT_IMPORTERS_LLAMA_WEIGHTS_H_
#define RESIDENT_CLIENT_IMPORTERS_LLAMA_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "resident/v1/types.pb.h"
#include "runtime/model/safetensors.h"

namespace resident::cli {

class LlamaWeights {
 public:
  // INVALID_ARGUMENT: there are no files, one is damaged, or two have a tensor of the same name.
  static absl::StatusOr<LlamaWeights> Read(const std::string& folder);

  // Notes that the model uses the tensor, and returns its dtype. INVALID_ARGUMENT: it does not
  // exist, its dtype is not f32, bf16 or f16, or it has another shape. `because`: the keys of
  // config.json from which the shape follows.
  absl::StatusOr<v1::DType> Take(const std::string& name, const std::vector<uint64_t>& shape,
                                 const std::string& because);

  // Name and dtype of the tensors whose dtype residentd does not have.
  const std::map<std::string, std::string>& unsupported() const { return unsupported_; }
  // The tensors that nothing has taken, by name.
  std::vector<std::string> Rest() const;
  // Names of the files, in the folder, in alphabetical order.
  const std::vector<std::string>& files() const { return files_; }

 private:
  struct Entry {
    SafetensorsTensor tensor;
    size_t file = 0;
    bool taken = false;
  };

  absl::Status AddFile(const std::string& path);
  // The error about a tensor that does not exist with this name.
  absl::Status Missing(const std::string& name) const;

  std::vector<std::string> files_;
  std::map<std::string, Entry> tensors_;
  // Tensors whose dtype residentd does not have: the format's name of it.
  std::map<std::string, std::string> unsupported_;
};

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_IMPORTERS_LLAMA_WEIGHTS_H_
