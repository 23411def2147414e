// WriteQuantizedLlama: the weights of a graph that ImportLlama made with
// LlamaOptions::quantization, as one safetensors file. Weights that are not quantized are copied,
// so that nothing else has to be loaded for the graph.
//
// The files of the model are read in pieces, of which a few are in memory at a time.
//
// Thread safety: may be called from any thread.
//
//   ASSIGN_OR_RETURN(const LlamaGraph imported, ImportLlama("model", {.quantization = form}));
//   RETURN_IF_ERROR(WriteQuantizedLlama("model", imported, form, "int8.safetensors"));
#ifndef RESIDENT_CLIENT_IMPORTERS_LLAMA_QUANTIZE_H_
#define RESIDENT_CLIENT_IMPORTERS_LLAMA_QUANTIZE_H_

#include <string>

#include "absl/status/status.h"
#include "client/importers/llama/import.h"

namespace resident::cli {

// `path` is replaced as a whole, or remains as it is. INVALID_ARGUMENT: it is a file of the model,
// or a weight cannot be quantized, or a file of the model has changed since it was imported;
// UNAVAILABLE: the file cannot be written; other errors: a file of the model cannot be read.
absl::Status WriteQuantizedLlama(const std::string& folder, const LlamaGraph& imported,
                                 const Quantization& form, const std::string& path);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_IMPORTERS_LLAMA_QUANTIZE_H_
