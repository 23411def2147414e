#include "server/models/errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::InvalidArgumentError;
using absl::StrCat;

absl::Status NotAModel(const std::string& why, const std::string& fix) {
  return InvalidArgumentError(StrCat("the graph cannot be a model: ", why, ". Fix: ", fix));
}

absl::Status ModelName(const std::string& name) {
  return InvalidArgumentError(StrCat(
      "the name of a model cannot be ", Quote(name),
      ". Fix: use letters, digits, '_', '.' and '-', beginning with a letter, at most 128 bytes"));
}

absl::Status ModelNameIsOperator(const std::string& name) {
  return absl::AlreadyExistsError(StrCat("there is an operator ", Quote(name),
                                         ", and models and operators share their names. Fix: use "
                                         "another name, or remove the operator"));
}

absl::Status ModelLoadWithoutHeader() {
  return InvalidArgumentError("the load does not begin with a header. Fix: send the header first");
}

absl::Status ModelLoadSecondHeader() {
  return InvalidArgumentError("the load has a second header. Fix: send one");
}

absl::Status ModelLoadEmptyMessage() {
  return InvalidArgumentError(
      "a message of the load is empty. Fix: set the header or a part of a weight");
}

absl::Status ModelInstances(uint32_t wanted, uint32_t limit) {
  return InvalidArgumentError(StrCat("a model cannot have ", wanted, " instances. Fix: use 1 to ",
                                     limit, ", or 0 for the default"));
}

absl::Status ModelWeightUnknown(const std::string& tensor) {
  return InvalidArgumentError(StrCat(
      "contents were sent for ", Quote(tensor),
      ", which is not a weight or a constant of the graph with memory of its own. Fix: correct "
      "the name, or leave it out"));
}

absl::Status ModelWeightBytes(const std::string& tensor, uint64_t got, uint64_t wanted) {
  return InvalidArgumentError(StrCat("weight ", Quote(tensor), " has ", wanted, " bytes, and ", got,
                                     " were sent. Fix: send all of its bytes once"));
}

absl::Status ModelMemoryFull(uint64_t bytes, uint64_t used, uint64_t limit) {
  return absl::ResourceExhaustedError(
      StrCat("the model needs ", bytes, " bytes of the daemon's memory, where models use ", used,
             " of ", limit, ". Fix: remove models, or raise --max_host_mib"));
}

absl::Status ModelStagingFull(uint64_t bytes, uint64_t used) {
  return absl::ResourceExhaustedError(
      StrCat("an instance of the model needs ", bytes,
             " bytes of staging memory for its inputs and outputs, of which ", used,
             " are in use. Fix: load fewer models or instances, make the largest sizes smaller, or "
             "raise --staging_mib"));
}

absl::Status ModelNeedsGraphsInEngine(uint32_t device) {
  return absl::FailedPreconditionError(StrCat(
      "device ", device,
      " executes this graph node by node, and models need an engine that executes graphs. Fix: "
      "start the daemon without --graphs_in_engine=false, or make the graph smaller"));
}

absl::Status ModelWithoutSource() {
  return InvalidArgumentError(
      "the header has neither a graph nor an ONNX model, or both. Fix: set one of them");
}

absl::Status ModelFileName(const std::string& name) {
  return InvalidArgumentError(StrCat("a file of a model cannot be called ", Quote(name),
                                     ". Fix: send plain names of 1 to 255 bytes, without folders"));
}

absl::Status ModelFileLimit(uint64_t bytes, uint64_t limit) {
  return InvalidArgumentError(StrCat("the files of the model have ", bytes,
                                     " bytes, and may have at most ", limit,
                                     ". Fix: make a graph of it, and send its weights"));
}

absl::Status ModelFileCount(int limit) {
  return InvalidArgumentError(
      StrCat("the model has more than ", limit, " files. Fix: put external data into fewer files"));
}

absl::Status ModelFileMissing(const std::string& name) {
  return InvalidArgumentError(
      StrCat("no file ", Quote(name),
             " was sent, which the header names as the model. Fix: send it, "
             "or correct OnnxModel.file"));
}

absl::Status ModelFileBytes(uint64_t got, uint64_t wanted) {
  return InvalidArgumentError(
      StrCat("the header announces ", wanted, " bytes of files, and ", got,
             " were sent. Fix: set OnnxModel.file_bytes to the bytes of all "
             "files"));
}

absl::Status ModelPartOfOther(const std::string& what) {
  return InvalidArgumentError(
      StrCat("a part of ", what,
             " does not belong to this load. Fix: send weights with a graph, and files with ONNX"));
}

absl::Status ImportNotStarted(const std::string& why) {
  return absl::ResourceExhaustedError(
      StrCat("the process that imports models cannot be started: ", why, ". Fix: try again later"));
}

absl::Status ImportFailed(const std::string& how) {
  return InvalidArgumentError(
      StrCat("the process that imports the model ", how,
             ". Fix: check the file with another tool; if it is right, report it"));
}

absl::Status ImportTooSlow(std::chrono::seconds limit) {
  return InvalidArgumentError(
      StrCat("the import of the model took more than ", limit.count(),
             " s. Fix: simplify the model, for example fold its constants"));
}

absl::Status ModelPlanDiffers(const std::string& why) {
  return InvalidArgumentError(
      StrCat("the graph of these sizes cannot serve the model: ", why,
             ". Fix: load a model for these sizes, with --sizes in place of --max"));
}

absl::Status ModelPlanFailed(const std::string& sizes, const absl::Status& why) {
  return absl::Status(why.code(), StrCat("the plan of the model for ", sizes, ": ", why.message()));
}

absl::Status ModelWarmupCount(int limit) {
  return InvalidArgumentError(StrCat("the load makes more than ", limit,
                                     " plans, and a model keeps ", limit,
                                     ". Fix: name fewer shapes in `warmup`"));
}

absl::Status ModelWarmup(const std::string& why) {
  return InvalidArgumentError(
      StrCat("the shapes in `warmup` do not fit: ", why,
             ". Fix: give shapes of inputs that have all dimensions of `max_sizes`"));
}

absl::Status ModelSizeAboveBound(const std::string& model, const std::string& tensor,
                                 const std::string& dimension, uint64_t got, uint64_t max) {
  return InvalidArgumentError(StrCat("input ", Quote(tensor), " of model ", model, ": ", dimension,
                                     " is ", got, ", the model was loaded for ", max,
                                     ". Fix: send 1 to ", max, ", or load the model with --max ",
                                     dimension, "=", got));
}

absl::Status StoredModelDamaged(const std::string& name, uint32_t version) {
  return absl::DataLossError(StrCat("the stored contents of version ", version, " of model ", name,
                                    " are not complete. Fix: load it again"));
}

absl::Status ModelDeviceGone(const std::string& name, uint32_t version, uint32_t device) {
  return absl::UnavailableError(StrCat("version ", version, " of model ", name,
                                       " was loaded on device ", device,
                                       ", which the daemon does not have now. Fix: load it again"));
}

absl::Status ModelInputMissing(const std::string& model, const std::string& tensor) {
  return InvalidArgumentError(
      StrCat("model ", model, " needs the input ", Quote(tensor), ". Fix: send it"));
}

absl::Status ModelTensorUnknown(const std::string& model, const std::string& kind,
                                const std::string& tensor, const std::string& names) {
  return InvalidArgumentError(StrCat("model ", model, " has no ", kind, " ", Quote(tensor),
                                     "; it has ", names, ". Fix: correct the name"));
}

absl::Status ModelTensorTwice(const std::string& model, const std::string& tensor) {
  return InvalidArgumentError(
      StrCat("tensor ", Quote(tensor), " of model ", model, " is named twice. Fix: name it once"));
}

absl::Status ModelTensorType(const std::string& model, const std::string& tensor,
                             const std::string& what, const std::string& got,
                             const std::string& wanted) {
  return InvalidArgumentError(StrCat("input ", Quote(tensor), " of model ", model, " has the ",
                                     what, " ", got, ", and must have ", wanted,
                                     ". Fix: send it so"));
}

absl::Status ModelSizesDiffer(const std::string& model, const std::string& tensor, uint64_t got,
                              const std::string& scalar, uint64_t other) {
  return InvalidArgumentError(StrCat("input ", Quote(tensor), " of model ", model, " has ", got,
                                     " as ", scalar, ", and another input has ", other,
                                     ". Fix: send inputs with one size"));
}

absl::Status ModelScalarMissing(const std::string& model, const std::string& scalar) {
  return InvalidArgumentError(StrCat("scalar ", Quote(scalar), " of model ", model,
                                     " has no value. Fix: set it in `scalars`"));
}

absl::Status ModelScalarIsSize(const std::string& model, const std::string& scalar) {
  return InvalidArgumentError(
      StrCat("scalar ", Quote(scalar), " of model ", model,
             " is the size of an input. Fix: leave it out; the shapes of the "
             "inputs set it"));
}

absl::Status ModelOnOtherDevice(const std::string& model, uint32_t device, uint32_t wanted) {
  return InvalidArgumentError(StrCat("model ", model, " is on device ", device, ", and device ",
                                     wanted, " is requested. Fix: leave the device out"));
}

std::string ModelTooSlow(std::chrono::milliseconds limit) {
  return StrCat(
      "the model did not end within ", limit.count(),
      " ms, the limit of one request; its outputs are incomplete. Fix: send fewer rows, or "
      "run the graph with Graphs.Run");
}

}  // namespace resident::errors
