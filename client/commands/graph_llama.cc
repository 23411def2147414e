#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/output.h"
#include "client/commands/graph_commands.h"
#include "client/importers/amk/import.h"
#include "client/importers/errors.h"
#include "client/importers/llama/import.h"

namespace resident::cli {
namespace {

struct LlamaCommand {
  LlamaOptions options;
  std::string cache;
  std::string weights;
  std::optional<uint64_t> group;
  std::string weights_out;
  std::string out;
};

v1::DType CacheDType(const std::string& name) {
  if (name == "f32") return v1::DTYPE_F32;
  if (name == "f16") return v1::DTYPE_F16;
  return name == "bf16" ? v1::DTYPE_BF16 : v1::DTYPE_UNSPECIFIED;
}

// Sets options.quantization.
absl::Status ReadQuantization(LlamaCommand& command) {
  if (!command.weights.empty()) {
    Quantization& form = command.options.quantization.emplace();
    form.bits = command.weights == "int8" ? 8 : 4;
    if (command.group.has_value()) form.group = *command.group;
    return absl::OkStatus();
  }
  for (const auto& [option, given] : {std::pair{"--group", command.group.has_value()},
                                      std::pair{"--weights_out", !command.weights_out.empty()}}) {
    if (given) {
      return errors::BadModelOption(option, "has no effect without --weights", "add --weights");
    }
  }
  return absl::OkStatus();
}

// The file of the weights is written beside its path, and then replaces what is there.
absl::Status CheckReplaceable(const LlamaCommand& command) {
  const std::string& path = command.weights_out;
  const std::string& out = command.out;
  if (path.empty()) return absl::OkStatus();
  std::error_code error;  // Such as that a file does not exist.
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    return errors::BadModelOption("--weights_out", "is not a file", "give a file");
  }
  if (path == out || (!out.empty() && std::filesystem::equivalent(path, out, error))) {
    return errors::BadModelOption("--weights_out", "is the file of --out, too",
                                  "give another file");
  }
  return absl::OkStatus();
}

int Convert(const std::string& folder, LlamaCommand command) {
  command.options.cache = CacheDType(command.cache);
  if (absl::Status status = ReadQuantization(command); !status.ok()) return UsageError(status);
  for (const std::string& path : {command.out, command.weights_out}) {
    if (absl::Status status = CheckWritable(path); !status.ok()) return UsageError(status);
  }
  if (absl::Status status = CheckReplaceable(command); !status.ok()) return UsageError(status);
  const absl::StatusOr<LlamaGraph> imported = ImportLlama(folder, command.options);
  if (!imported.ok()) return UsageError(imported.status());
  const absl::StatusOr<std::string> json = GraphJson(imported->graph);
  if (!json.ok()) return UsageError(json.status());
  if (!command.weights_out.empty()) {
    const absl::Status status =
        WriteQuantizedLlama(folder, *imported, *command.options.quantization, command.weights_out);
    if (absl::IsUnavailable(status)) {
      return WriteError(absl::InvalidArgumentError(
          absl::StrCat("cannot write ", command.weights_out, ": ", status.message())));
    }
    if (!status.ok()) return UsageError(status);
  }
  for (const std::string& note : imported->notes) {
    std::fprintf(stderr, "note: %s: %s\n", folder.c_str(), note.c_str());
  }
  if (command.out.empty()) {
    Print(*json);
    return kExitOk;
  }
  if (absl::Status status = WriteFile(command.out, *json); !status.ok()) return WriteError(status);
  return kExitOk;
}

}  // namespace

void AddGraphLlama(Command& graph) {
  auto command = std::make_shared<LlamaCommand>();
  LlamaOptions& options = command->options;
  Command& llama = graph.Add(
      "llama", "convert a Llama model to a graph that decodes, or reads a prompt",
      "DIR is a folder with config.json and model.safetensors (or several files and their index),\n"
      "as Hugging Face's transformers write it. Prints a graph whose steps each compute one "
      "token,\n"
      "or writes it to --out. Weights keep their names, so that buffers load provides them. A run\n"
      "needs the tokens of the prompt; graph run fills it up to the length of the context, and "
      "sets\n"
      "prompt_len. Each step after the prompt prints a token:\n"
      "  residentctl buffers load DIR\n"
      "  residentctl graph llama DIR --max_context=128 --out decode.json\n"
      "  residentctl graph run decode.json prompt=1,15,7\n"
      "No daemon is needed. Architectures: LlamaForCausalLM, MistralForCausalLM up to its sliding\n"
      "window, Qwen2ForCausalLM. The cache of keys and values is the state `cache`, the next "
      "token\n"
      "is in `text`: bind both to buffers to continue with the next run, and set `pos` and\n"
      "`position` to the number of steps so far.\n"
      "With --prompt=N the graph has one step, which reads a prompt of up to N tokens at once;\n"
      "a graph without it continues with `cache` and `text` in the same buffers, with the same\n"
      "prompt_len, and with pos and position equal to it.\n"
      "With --batch=N a step computes a token of each of N texts. The number of the text, from 0,\n"
      "follows the names: prompt0, prompt_len0, pos0, position0, cache0, text0. A run does not "
      "end\n"
      "at the end of a text.\n"
      "With --weights=int8 or int4 the matrices of the layers and the head have few bits; the\n"
      "embeddings, norms and biases remain. --weights_out writes all weights of such a graph:\n"
      "  residentctl graph llama DIR --weights=int8 --weights_out=int8.safetensors --out "
      "int8.json\n"
      "  residentctl buffers load int8.safetensors\n");
  llama.Flag("max_context", &options.max_context,
             "positions of the cache, and the most steps; default: those of the model, up to 4096");
  llama.Flag("prompt", &options.prompt,
             "a graph that reads a prompt of up to this many tokens in one step; default: a graph "
             "that decodes");
  llama.Flag("batch", &options.batch, "texts that a step decodes, up to 16");
  llama.Flag("prefix", &options.prefix, "text before the names of weights, as in buffers load");
  llama.Flag("weights", &command->weights,
             "quantize the matrices of the layers and the head, to 8 or 4 bits; default: they have "
             "the element type of the files",
             {.one_of = {"int8", "int4"}});
  llama.Flag("group", &command->group,
             "with --weights: adjacent columns of a row that have one scale; default: 128");
  llama.Flag("weights_out", &command->weights_out,
             "with --weights: write the weights of the graph to this safetensors file");
  llama.Flag("cache", &command->cache, "element type of the cache; default: that of the weights",
             {.one_of = {"f32", "f16", "bf16"}});
  llama.Flag("sample", &options.sample,
             "draw tokens at random; a run may set temperature (1) and seed (0)");
  llama.Flag("top_k", &options.top_k, "with --sample: only from the k most likely tokens");
  llama.Flag("top_p", &options.top_p,
             "with --sample: only from the most likely tokens that together have probability p");
  llama.Flag("skip_unsupported", &options.skip_unsupported,
             "leave out tensors whose element type residentd does not have, with a note");
  llama.Flag("logits", &options.logits, "add a stream step_logits with the logits of each step");
  AddOutFlag(llama, &command->out);
  llama.Run("DIR", [command](const Words& words) { return Convert(words[0], *command); });
}

}  // namespace resident::cli
