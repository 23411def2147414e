#include "client/importers/llama/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <numbers>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "client/importers/errors.h"
#include "client/importers/model_json.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/limits.h"

namespace resident::cli {
namespace {

using absl::StrCat;
using Json = nlohmann::json;

constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;
constexpr const char* kLlama = "LlamaForCausalLM";
constexpr const char* kMistral = "MistralForCausalLM";
constexpr const char* kQwen2 = "Qwen2ForCausalLM";
constexpr int64_t kMistralWindow = 4096;
// The largest float32.
constexpr double kMaxFloat = 3.4028234663852886e38;

std::string ToText(const Json& json) {
  return json.is_string() ? json.get<std::string>()
                          : json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

// Values that would change the computation.
absl::Status CheckUnsupported(const ModelObject& object) {
  if (object.Find("quantization_config") != nullptr) {
    return errors::UnsupportedModelValue(
        "quantization_config", "set", "none, as --weights quantizes a model of f32, f16 or bf16");
  }
  ASSIGN_OR_RETURN(const std::string activation, object.Text("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") {
    return errors::UnsupportedModelValue("hidden_act", activation, "'silu'");
  }
  ASSIGN_OR_RETURN(const double rotary, object.Number("partial_rotary_factor", 0, 1, 1.0));
  if (rotary != 1) {
    return errors::UnsupportedModelValue("partial_rotary_factor", StrCat(rotary), "1");
  }
  return absl::OkStatus();
}

absl::Status ReadArchitecture(const ModelObject& object, LlamaConfig& config) {
  const Json* const list = object.Find("architectures");
  if (list == nullptr || !list->is_array() || list->size() != 1 || !list->at(0).is_string()) {
    return errors::BadModelValue("architectures", "is not a list with one text");
  }
  config.architecture = list->at(0).get<std::string>();
  if (config.architecture == kLlama) {
    ASSIGN_OR_RETURN(config.qkv_bias, object.Bool("attention_bias", false));
    config.output_bias = config.qkv_bias;
    ASSIGN_OR_RETURN(config.mlp_bias, object.Bool("mlp_bias", false));
    return absl::OkStatus();
  }
  if (config.architecture == kQwen2) {
    config.qkv_bias = true;
    ASSIGN_OR_RETURN(const bool window, object.Bool("use_sliding_window", false));
    if (!window) return absl::OkStatus();
    return errors::UnsupportedModelValue("use_sliding_window", "true", "false");
  }
  if (config.architecture != kMistral) {
    return errors::UnsupportedModelValue("architectures", config.architecture,
                                         StrCat(kLlama, ", ", kMistral, " and ", kQwen2));
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const ModelObject& object, LlamaConfig& config) {
  constexpr int64_t kMax = LlamaConfig::kMaxDimension;
  ASSIGN_OR_RETURN(config.hidden, object.Integer("hidden_size", 1, kMax));
  ASSIGN_OR_RETURN(config.intermediate, object.Integer("intermediate_size", 1, kMax));
  ASSIGN_OR_RETURN(config.layers, object.Integer("num_hidden_layers", 1, LlamaConfig::kMaxLayers));
  ASSIGN_OR_RETURN(config.heads, object.Integer("num_attention_heads", 1, kMax));
  ASSIGN_OR_RETURN(config.kv_heads,
                   object.Integer("num_key_value_heads", 1, config.heads, config.heads));
  if (config.heads % config.kv_heads != 0) {
    return errors::BadModelValue(
        "num_key_value_heads",
        StrCat("is ", config.kv_heads, " and must divide num_attention_heads, ", config.heads));
  }
  const bool given = object.Find("head_dim") != nullptr;
  if (!given && config.hidden % config.heads != 0) {
    return errors::BadModelValue("num_attention_heads",
                                 StrCat("is ", config.heads, " and must divide hidden_size, ",
                                        config.hidden, ", because there is no head_dim"));
  }
  ASSIGN_OR_RETURN(config.head_dim,
                   object.Integer("head_dim", 1, kMax, config.hidden / config.heads));
  // An odd number has no pairs, and rope_freqs refuses a single pair.
  if (config.head_dim < 4 || config.head_dim > LlamaConfig::kMaxHeadDim ||
      config.head_dim % 2 != 0) {
    return errors::BadModelValue(
        "head_dim", StrCat("is ", config.head_dim, " and may be an even number from 4 to ",
                           LlamaConfig::kMaxHeadDim));
  }
  ASSIGN_OR_RETURN(config.vocab, object.Integer("vocab_size", 1, kMax));
  ASSIGN_OR_RETURN(config.max_positions,
                   object.Integer("max_position_embeddings", 2, int64_t{1} << 40, 2048));
  if (config.architecture == kMistral) {
    // A text that fits the window is not affected by it. Without the key, transformers has a
    // window; null means that there is none.
    const int64_t absent = object.Has("sliding_window") ? config.max_positions : kMistralWindow;
    ASSIGN_OR_RETURN(const int64_t window,
                     object.Integer("sliding_window", 2, int64_t{1} << 40, absent));
    config.max_positions = std::min(config.max_positions, window);
  }
  ASSIGN_OR_RETURN(config.norm_epsilon, object.Number("rms_norm_eps", 0, 1, 1e-6));
  ASSIGN_OR_RETURN(config.tied, object.Bool("tie_word_embeddings", false));
  return absl::OkStatus();
}

// Keys of rotary parameters that are read; another one would change the computation, or be ignored.
constexpr std::string_view kRopeKeys[] = {
    "rope_type",
    "type",
    "factor",
    "rope_theta",
    "partial_rotary_factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
};

// The rotary parameters: as transformers 5, those of `rope_scaling` if they are not null or empty,
// otherwise those of `rope_parameters`.
absl::StatusOr<const char*> FindRopeKey(const ModelObject& object) {
  for (const char* const key : {"rope_scaling", "rope_parameters"}) {
    const Json* const json = object.Find(key);
    if (json == nullptr) continue;
    if (!json->is_object()) return object.Bad(key, "is not an object");
    if (!json->empty()) return key;
  }
  return nullptr;
}

absl::Status CheckRopeKeys(const Json& json, const ModelObject& parameters) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_null()) continue;
    if (value.is_object()) {
      return errors::UnsupportedModelValue(parameters.Name(key.c_str()),
                                           "parameters of a type of layers",
                                           "one set of parameters for all layers");
    }
    if (std::find(std::begin(kRopeKeys), std::end(kRopeKeys), key) == std::end(kRopeKeys)) {
      return errors::UnsupportedModelValue(parameters.Name(key.c_str()), ToText(value),
                                           "a rope without this value");
    }
  }
  if (parameters.Find("rope_type") != nullptr && parameters.Find("type") != nullptr &&
      *parameters.Find("rope_type") != *parameters.Find("type")) {
    return parameters.Bad("type",
                          StrCat("is ", ToText(*parameters.Find("type")), ", and rope_type is ",
                                 ToText(*parameters.Find("rope_type"))));
  }
  ASSIGN_OR_RETURN(const double rotary, parameters.Number("partial_rotary_factor", 0, 1, 1.0));
  if (rotary == 1) return absl::OkStatus();
  return errors::UnsupportedModelValue(parameters.Name("partial_rotary_factor"), StrCat(rotary),
                                       "1");
}

absl::Status ReadRope(const ModelObject& object, LlamaConfig& config) {
  ASSIGN_OR_RETURN(config.rope_theta, object.Number("rope_theta", 0, kMaxFloat, 10000.0));
  ASSIGN_OR_RETURN(const char* const key, FindRopeKey(object));
  if (key == nullptr) return absl::OkStatus();
  const Json& json = *object.Find(key);
  const ModelObject scaling(json, StrCat(key, "."));
  RETURN_IF_ERROR(CheckRopeKeys(json, scaling));
  ASSIGN_OR_RETURN(config.rope_theta,
                   scaling.Number("rope_theta", 0, kMaxFloat, config.rope_theta));
  const char* const type_key = scaling.Find("rope_type") != nullptr ? "rope_type" : "type";
  ASSIGN_OR_RETURN(const std::string type, scaling.Text(type_key, "default"));
  if (type == "default") {
    ASSIGN_OR_RETURN(const double factor, scaling.Number("factor", 0, 1e6, 1.0));
    if (factor == 1) return absl::OkStatus();
    return scaling.Bad("factor", StrCat("is ", factor, ", and there is no rope_type that uses it"));
  }
  if (type != "linear" && type != "llama3") {
    return errors::UnsupportedModelValue(scaling.Name(type_key), type,
                                         "'default', 'linear' and 'llama3'");
  }
  RopeScaling& rope = config.rope;
  ASSIGN_OR_RETURN(rope.factor, scaling.Number("factor", 0, 1e6));
  if (type == "linear") {
    rope.type = RopeScaling::Type::kLinear;
    return absl::OkStatus();
  }
  rope.type = RopeScaling::Type::kLlama3;
  ASSIGN_OR_RETURN(rope.low_frequency, scaling.Number("low_freq_factor", 0, 1e6));
  ASSIGN_OR_RETURN(rope.high_frequency,
                   scaling.Number("high_freq_factor", rope.low_frequency, 1e6));
  ASSIGN_OR_RETURN(rope.original_context,
                   scaling.Number("original_max_position_embeddings", 0, 1e12));
  return absl::OkStatus();
}

absl::Status ReadStopTokens(const ModelObject& object, LlamaConfig& config) {
  const Json* const value = object.Find("eos_token_id");
  if (value == nullptr) return absl::OkStatus();
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > graph::kMaxStopValues) {
    return object.Bad("eos_token_id",
                      StrCat("has ", list.size(), " values and may have ", graph::kMaxStopValues));
  }
  config.stop_tokens.clear();
  for (const Json& token : list) {
    if (!token.is_number_unsigned() || token.get<uint64_t>() >= uint64_t(config.vocab)) {
      return object.Bad("eos_token_id", StrCat("is ", ToText(token),
                                               " and may be a token from 0 to ", config.vocab - 1));
    }
    config.stop_tokens.push_back(token.get<int64_t>());
  }
  return absl::OkStatus();
}

}  // namespace

LlamaConfig::Band LlamaConfig::FindBand(int64_t pair) const {
  if (rope.type == RopeScaling::Type::kNone) return Band::kUnchanged;
  if (rope.type == RopeScaling::Type::kLinear) return Band::kDivided;
  const double frequency =
      std::pow(rope_theta, -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < rope.original_context / rope.high_frequency) return Band::kUnchanged;
  if (wavelength > rope.original_context / rope.low_frequency) return Band::kDivided;
  return Band::kBlended;
}

double LlamaConfig::InverseFrequency(int64_t pair) const {
  const double frequency =
      std::pow(rope_theta, -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
  switch (FindBand(pair)) {
    case Band::kUnchanged:
      return frequency;
    case Band::kDivided:
      return frequency / rope.factor;
    case Band::kBlended:
      break;
  }
  const double turns = rope.original_context * frequency / (2 * std::numbers::pi);
  const double share = (turns - rope.low_frequency) / (rope.high_frequency - rope.low_frequency);
  return (1 - share) * frequency / rope.factor + share * frequency;
}

absl::StatusOr<LlamaConfig> ReadLlamaConfig(const std::string& folder) {
  ASSIGN_OR_RETURN(const Json file, ReadModelJson(StrCat(folder, "/config.json"), kMaxConfigBytes));
  const ModelObject object(file);
  LlamaConfig config;
  RETURN_IF_ERROR(ReadArchitecture(object, config));
  RETURN_IF_ERROR(CheckUnsupported(object));
  RETURN_IF_ERROR(ReadSizes(object, config));
  RETURN_IF_ERROR(ReadRope(object, config));
  RETURN_IF_ERROR(ReadStopTokens(object, config));
  const std::string generation = StrCat(folder, "/generation_config.json");
  std::error_code ignored;
  if (std::filesystem::exists(generation, ignored)) {
    ASSIGN_OR_RETURN(const Json more, ReadModelJson(generation, kMaxConfigBytes));
    RETURN_IF_ERROR(ReadStopTokens(ModelObject(more, "", "generation_config.json"), config));
  }
  return config;
}

}  // namespace resident::cli
