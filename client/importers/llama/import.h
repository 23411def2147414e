// Converts a model of the Llama form into a task graph: the folder has config.json (llama_config.h)
// and safetensors files (llama_weights.h). There are two kinds of graph, which share the states.
//
// A graph that decodes: a step takes one token of a text and computes the next one.
//
//   prompt ─▶ text ─▶ embedding ─▶ layers ─▶ norm ─▶ head ─▶ argmax or sample ─▶ text
//                                  │   ▲                              └─▶ token (stream, stop)
//                                  cache
//
// Weights have the names of the safetensors tensors, so that `residentctl buffers load` provides
// them. With LlamaOptions::quantization, the matrices of the layers and the head have 8 or 4 bits
// and another tensor with their scales; WriteQuantizedLlama (llama_quantize.h) writes a file with
// all weights of such a graph. Activations are float32; the cache has the dtype of the weights.
// In a step that decodes, attention is computed for parts of the keys, which are then combined.
// What a run sets:
//
//   prompt      input, i64[context]: the tokens of the first positions
//   prompt_len  scalar: their number, at least 1
//   pos         scalar: the position of the first step, initially 0; position: the same as f32
//   cache, text states: keys and values of all layers; the next token
//
// Steps at positions before prompt_len - 1 read the prompt. Their own result is replaced by the
// prompt's next token, and their record of `token` is -1, which is no stop value.
//
// With LlamaOptions::batch = B a step does that for B texts, each at a position of its own. The
// number of the text, from 0, follows each of these names (prompt0, pos0), and `token` is i64[B].
// There is no stop token. Text i draws its tokens with seed + i.
//
// A graph that reads a prompt (LlamaOptions::prompt): one step takes all tokens of a text, fills
// the cache with them, and computes the token after them. It has the input `prompt`
// i64[options.prompt] and the scalar prompt_len. A run of a graph that decodes continues with its
// states, with `pos` and `position` equal to prompt_len, which remains as it was.
//
// Thread safety: pure function.
//
//   ASSIGN_OR_RETURN(const LlamaGraph imported, ImportLlama("model", {}));
#ifndef RESIDENT_CLIENT_IMPORTERS_LLAMA_IMPORT_H_
#define RESIDENT_CLIENT_IMPORTERS_LLAMA_IMPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/model/quantize.h"

namespace resident::cli {

struct LlamaOptions {
  // Positions of the cache, and the most steps; 0: those of the model, at most kDefaultContext.
  uint64_t max_context = 0;
  // The most tokens that the step of a graph that reads a prompt takes; 0: a graph that decodes.
  uint64_t prompt = 0;
  // Texts that a step decodes: 1 to kMaxBatch, 1 with `prompt`.
  static constexpr uint64_t kMaxBatch = 16;
  uint64_t batch = 1;
  // Before the names of weights, as in `residentctl buffers load --prefix`.
  std::string prefix;
  // Applies to the matrices of the layers and the head, not to the table of embeddings. Null: their
  // dtype is that of the files.
  std::optional<Quantization> quantization;
  // The dtype of the cache; unspecified: that of the weights.
  v1::DType cache = v1::DTYPE_UNSPECIFIED;
  // A scalar `temperature` and a scalar `seed` in place of argmax.
  bool sample = false;
  // With `sample`: only the k largest logits; 0: all.
  uint64_t top_k = 0;
  // With `sample`: only the fewest largest logits whose probabilities reach p; 1: all.
  double top_p = 1;
  // Tensors whose dtype residentd does not have are left out, with a note.
  bool skip_unsupported = false;
  // Another stream with the logits of each step.
  bool logits = false;
};

struct LlamaGraph {
  static constexpr uint64_t kDefaultContext = 4096;

  // Follows the name of a quantized weight in the name of the tensor with its scales.
  static constexpr const char* kScalesSuffix = ".scales";

  v1::Graph graph;
  // Notes for people.
  std::vector<std::string> notes;
  // Names of the safetensors files, in the folder.
  std::vector<std::string> files;
  // The weights of the graph, except the scales of those that are quantized.
  struct Weight {
    std::string name;  // Without the prefix.
    std::string from;  // The tensor of the files.
    bool quantized = false;
  };
  std::vector<Weight> weights;
};

// INVALID_ARGUMENT: a file is missing or damaged, the model has another form, or an option is out
// of range; the message names the value and ends with "Fix: ...".
absl::StatusOr<LlamaGraph> ImportLlama(const std::string& folder, const LlamaOptions& options);

// WriteQuantizedLlama: the weights of a graph that ImportLlama made with
// LlamaOptions::quantization, as one safetensors file. Weights that are not quantized are copied,
// so that nothing else has to be loaded for the graph.
//
// The files of the model are read in pieces, of which a few are in memory at a time.
//
//   ASSIGN_OR_RETURN(const LlamaGraph imported, ImportLlama("model", {.quantization = form}));
//   RETURN_IF_ERROR(WriteQuantizedLlama("model", imported, form, "int8.safetensors"));

// `path` is replaced as a whole, or remains as it is. INVALID_ARGUMENT: it is a file of the model,
// or a weight cannot be quantized, or a file of the model has changed since it was imported;
// UNAVAILABLE: the file cannot be written; other errors: a file of the model cannot be read.
absl::Status WriteQuantizedLlama(const std::string& folder, const LlamaGraph& imported,
                                 const Quantization& form, const std::string& path);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_IMPORTERS_LLAMA_IMPORT_H_
