// A graph that decodes with a model of the Llama form, of which only the sizes are given: the
// importer of residentctl (client/importers/llama/import.h) makes it from a folder whose weights
// are a file without contents.
//
// Thread safety: pure function.
//
//   const v1::Graph graph = MakeLlamaGraph({.layers = 16}, /*context=*/4096);
#ifndef RESIDENT_TESTS_GPU_LLAMA_SHAPE_H_
#define RESIDENT_TESTS_GPU_LLAMA_SHAPE_H_

#include <cstdint>
#include <optional>

#include "resident/v1/graphs.pb.h"
#include "runtime/model/quantize.h"

namespace resident::testing {

// The default is Llama-3.2-1B, but with a head that is not the table of embeddings. With random
// weights that table would make the model repeat its token forever.
struct LlamaShape {
  int64_t hidden = 2048;
  int64_t layers = 16;
  int64_t heads = 32;
  int64_t kv_heads = 8;
  int64_t head_dim = 64;
  int64_t intermediate = 8192;
  int64_t vocab = 128256;
};

// Weights and cache are bfloat16, unless the weights are quantized; there is no stop token.
// `texts`: that a step decodes. Fails if the importer refuses it.
v1::Graph MakeLlamaGraph(const LlamaShape& shape, uint64_t context,
                         std::optional<Quantization> quantization = {}, uint64_t texts = 1);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GPU_LLAMA_SHAPE_H_
