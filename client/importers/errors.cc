#include "client/importers/errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::StrCat;

absl::Status BadModelFile(const std::string& path, const std::string& what,
                          const std::string& fix) {
  return absl::InvalidArgumentError(StrCat(path, " ", what, ". Fix: ", fix));
}

absl::Status ModelFileTooLarge(const std::string& path, uint64_t bytes, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat(path, " has ", bytes, " bytes, and at most ", limit,
                                           " are accepted. Fix: give the folder of a model"));
}

absl::Status BadModelValue(const std::string& key, const std::string& what,
                           const std::string& file) {
  return absl::InvalidArgumentError(
      StrCat(file, ": ", Quote(key), " ", what, ". Fix: correct the value"));
}

absl::Status UnsupportedModelValue(const std::string& key, const std::string& value,
                                   const std::string& supported) {
  return absl::InvalidArgumentError(StrCat("config.json: ", Quote(key), " is ", Quote(value),
                                           ", and supported is ", supported,
                                           ". Fix: use a model that has a supported value"));
}

absl::Status MissingModelTensor(const std::string& name) {
  return absl::InvalidArgumentError(StrCat("the safetensors files have no tensor ", Quote(name),
                                           ", which config.json requires. Fix: add the file that "
                                           "has it, or correct config.json"));
}

absl::Status ModelTensorPrefix(const std::string& name, const std::string& other) {
  if (other.size() < name.size()) {
    const std::string prefix = name.substr(0, name.size() - other.size());
    return absl::InvalidArgumentError(StrCat("the safetensors files have ", Quote(other),
                                             " in place of ", Quote(name),
                                             ". Fix: save the whole model with its head, or put ",
                                             Quote(prefix), " before the names in the files"));
  }
  const std::string prefix = other.substr(0, other.size() - name.size());
  const char* const why = prefix == "_orig_mod." ? " (a compiled module was saved)"
                          : prefix == "module."  ? " (a module of DataParallel was saved)"
                                                 : "";
  return absl::InvalidArgumentError(StrCat("the safetensors files have ", Quote(other),
                                           " in place of ", Quote(name), ". Fix: strip ",
                                           Quote(prefix), " from the names in the files", why));
}

absl::Status UnsupportedModelTensor(const std::string& name, const std::string& dtype) {
  return absl::InvalidArgumentError(StrCat(
      "tensor ", Quote(name), " has the dtype ", Quote(dtype),
      ", which residentd does not have. Fix: give --skip_unsupported to leave it out, which is "
      "right for masks that the model computes itself"));
}

absl::Status ModelTensorShape(const std::string& name, const std::string& shape,
                              const std::string& wanted, const std::string& because) {
  return absl::InvalidArgumentError(StrCat("tensor ", Quote(name), " has the shape ", shape,
                                           ", and config.json requires ", wanted, " (", because,
                                           "). Fix: use the config.json of these weights"));
}

absl::Status ModelTensorDType(const std::string& name, const std::string& dtype) {
  return absl::InvalidArgumentError(
      StrCat("tensor ", Quote(name), " has the dtype ", dtype,
             ", and weights may be f32, bf16 or f16. Fix: use the model before it was quantized or "
             "converted; --weights quantizes it"));
}

absl::Status UnknownModelTensor(const std::string& name, const std::string& architecture) {
  return absl::InvalidArgumentError(
      StrCat("tensor ", Quote(name), " is not part of a ", architecture,
             " with this config.json, so that the graph would compute something else. Fix: use the "
             "config.json of these weights; models with other parts are not supported"));
}

absl::Status ModelTensorTwice(const std::string& name, const std::string& first,
                              const std::string& second) {
  return absl::InvalidArgumentError(StrCat("tensor ", Quote(name), " is in ", first, " and in ",
                                           second, ". Fix: remove one of the files"));
}

absl::Status ModelTensorName(const std::string& name, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("the name ", Quote(name), " has ", name.size(),
                                           " bytes, and a tensor of a graph has at most ", limit,
                                           ". Fix: give a shorter --prefix"));
}

absl::Status WeightOutOfRange(const std::string& tensor, uint64_t row, double limit) {
  return absl::InvalidArgumentError(StrCat(
      "row ", row, " of tensor ", Quote(tensor), " has a weight that is not finite or above ",
      limit, ", which cannot be quantized. Fix: correct the weights, or omit --weights"));
}

absl::Status ModelFileChanged(const std::string& path) {
  return absl::InvalidArgumentError(StrCat(
      path, " has changed since its header was read. Fix: try again when nothing writes it"));
}

absl::Status ContextLength(uint64_t wanted, uint64_t limit, const std::string& why) {
  return absl::InvalidArgumentError(StrCat("--max_context is ", wanted, " and may be 2 to ", limit,
                                           " (", why, "). Fix: give a value in this range"));
}

absl::Status PromptLength(uint64_t wanted, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("--prompt is ", wanted, " and may be up to ", limit,
                                           ", the positions of the cache. Fix: give a value in "
                                           "this range, or raise --max_context"));
}

absl::Status BatchOfTexts(uint64_t wanted, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("--batch is ", wanted, " and may be 1 to ", limit,
                                           ". Fix: give a value in this range"));
}

absl::Status BadModelOption(const std::string& option, const std::string& what,
                            const std::string& fix) {
  return absl::InvalidArgumentError(StrCat(option, " ", what, ". Fix: ", fix));
}

absl::Status CacheTooLarge(const std::string& shape) {
  return absl::InvalidArgumentError(StrCat("the cache of keys and values has the shape ", shape,
                                           " and more than 2^56 elements. Fix: give a smaller "
                                           "--max_context"));
}

}  // namespace resident::errors
