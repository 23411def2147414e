#include "server/inference/errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/errors/words.h"

namespace resident::errors {

using absl::InvalidArgumentError;
using absl::StrCat;

std::string TensorText(const TensorRef& tensor) {
  return StrCat(tensor.kind, " ", Quote(tensor.name), " of ", tensor.model);
}

absl::Status InInferenceWords(const absl::Status& status) {
  constexpr Phrase kWords[] = {
      {"send version 0 for the active one", "send no version for the active one"},
      {"or one that Operators.Describe lists in a slot", "or one that ModelMetadata lists"},
      {"send the output's shape in place of infer_shape",
       "give it as the parameter shape.NAME with the output's name, for example shape.out=\"2,3\""},
      {"see Operators.List for all operators", "see RepositoryIndex for all models"},
      {"Operators.List lists all operators", "RepositoryIndex lists all models"},
      {"or use Operators.Remove", "or remove it with residentctl ops remove"},
      {"Admin.Status lists", "residentctl status lists"},
      {"Admin.Status returns", "residentctl status shows"},
  };
  return InWords(status, kWords);
}

absl::Status ModelVersion(const std::string& text) {
  return InvalidArgumentError(StrCat("version ", Quote(text),
                                     " cannot exist: versions are numbers from 1 on, or have a "
                                     "content hash or a label. Fix: send the number of a version; "
                                     "sha256: and the first 12 to 64 digits of its content hash; @ "
                                     "and its label; or nothing for the active one"));
}

absl::Status UnknownModel(const std::string& name) {
  return absl::NotFoundError(StrCat("no model ", Quote(name),
                                    ". Fix: send the name of an operator, or NAME:batch for many "
                                    "tasks; RepositoryIndex lists them"));
}

absl::Status UnknownTensor(const TensorRef& tensor, const std::string& known) {
  return InvalidArgumentError(StrCat(tensor.model, " has no ", tensor.kind, " ", Quote(tensor.name),
                                     ". Fix: use one of: ", known.empty() ? "(none)" : known));
}

absl::Status TensorTwice(const TensorRef& tensor) {
  return InvalidArgumentError(
      StrCat(TensorText(tensor), " occurs twice. Fix: send each tensor once"));
}

absl::Status InputMissing(const TensorRef& tensor) {
  return InvalidArgumentError(StrCat(TensorText(tensor), " is missing. Fix: send it"));
}

absl::Status Datatype(const TensorRef& tensor, const std::string& datatype,
                      const std::string& known) {
  return InvalidArgumentError(StrCat(TensorText(tensor), ": datatype ", Quote(datatype),
                                     " is not supported. Fix: send one of: ", known));
}

absl::Status ScalarDatatype(const TensorRef& tensor, const std::string& datatype,
                            const std::string& wanted) {
  return InvalidArgumentError(StrCat(TensorText(tensor), ": datatype ", Quote(datatype),
                                     " is not that of the scalar. Fix: send ", wanted));
}

absl::Status Dimension(const TensorRef& tensor, int64_t size) {
  return InvalidArgumentError(StrCat(TensorText(tensor), ": a dimension is ", size,
                                     ". Fix: send the shape of the tensor, without negative "
                                     "dimensions"));
}

absl::Status TooManyDimensions(const TensorRef& tensor, int got, int limit) {
  return InvalidArgumentError(StrCat(TensorText(tensor), " has ", got,
                                     " dimensions, over the limit of ", limit,
                                     ". Fix: send fewer dimensions"));
}

absl::Status TensorTooLarge(const TensorRef& tensor) {
  return InvalidArgumentError(StrCat(
      TensorText(tensor), ": its size overflows 64 bits. Fix: send the shape of the tensor"));
}

absl::Status ContentsSize(const TensorRef& tensor, uint64_t got, uint64_t wanted) {
  return InvalidArgumentError(StrCat(TensorText(tensor), " has ", got,
                                     " bytes, but its shape and "
                                     "datatype require ",
                                     wanted,
                                     ". Fix: send all elements, little-endian and row-major"));
}

absl::Status ScalarShape(const TensorRef& tensor, const std::string& shape,
                         const std::string& wanted) {
  return InvalidArgumentError(StrCat(TensorText(tensor), " is a scalar and got the shape ", shape,
                                     ". Fix: send the shape ", wanted));
}

absl::Status RegistersShape(const TensorRef& tensor, const std::string& shape, int64_t registers) {
  return InvalidArgumentError(StrCat(TensorText(tensor), " got the shape ", shape,
                                     ". Fix: send [runs, registers], with at most ", registers,
                                     " registers for each run"));
}

absl::Status NoRuns(const TensorRef& tensor) {
  return InvalidArgumentError(
      StrCat(TensorText(tensor), " has no rows. Fix: send one row for each run"));
}

absl::Status NoBatchDimension(const TensorRef& tensor) {
  return InvalidArgumentError(StrCat(TensorText(tensor),
                                     " has no dimensions. Fix: give it the number of tasks as its "
                                     "first dimension, or send the request to the model without "
                                     "':batch'"));
}

absl::Status BatchDimensions(const TensorRef& tensor, int64_t got, int64_t wanted,
                             const std::string& other) {
  return InvalidArgumentError(StrCat(TensorText(tensor), ": its first dimension is ", got,
                                     " and that of ", Quote(other), " is ", wanted,
                                     ". Fix: the first dimension is the number of tasks; give all "
                                     "inputs the same"));
}

absl::Status EmptyBatchDimension(const TensorRef& tensor) {
  return InvalidArgumentError(StrCat(TensorText(tensor),
                                     " has 0 tasks: its first dimension is 0. "
                                     "Fix: send at least one task"));
}

absl::Status NoBatchSize(const std::string& model) {
  return InvalidArgumentError(StrCat(model,
                                     ": the request has no input, so that its number of tasks is "
                                     "not known. Fix: send it to the model without ':batch'"));
}

absl::Status OutputMissing(const TensorRef& tensor) {
  return absl::UnavailableError(StrCat(
      TensorText(tensor), " is not in the result of the tasks. Fix: send the request again"));
}

absl::Status RawAndTypedContents() {
  return InvalidArgumentError(
      "the request has raw_input_contents and also an input with contents. Fix: send one of them");
}

absl::Status RawContentsCount(size_t got, size_t wanted) {
  return InvalidArgumentError(StrCat("raw_input_contents has ", got, " entries for ", wanted,
                                     " inputs that are not in shared memory. Fix: send one entry "
                                     "for each of these inputs, in their order"));
}

absl::Status NoTypedContents(const TensorRef& tensor, const std::string& datatype) {
  return InvalidArgumentError(StrCat(TensorText(tensor), ": contents has no field for ", datatype,
                                     ". Fix: send the elements in raw_input_contents"));
}

absl::Status TypedContentsField(const TensorRef& tensor, const std::string& datatype,
                                const std::string& field) {
  return InvalidArgumentError(StrCat(TensorText(tensor), ": elements of ", datatype,
                                     " are in the wrong field of contents. Fix: send them in ",
                                     field));
}

absl::Status TypedContentsCount(const TensorRef& tensor, uint64_t got, uint64_t wanted) {
  return InvalidArgumentError(StrCat(TensorText(tensor), " has ", got,
                                     " elements, but its shape requires ", wanted,
                                     ". Fix: send all elements, row-major"));
}

absl::Status TypedContentsRange(const TensorRef& tensor, const std::string& datatype,
                                uint64_t index, const std::string& value) {
  return InvalidArgumentError(StrCat(TensorText(tensor), ": element ", index, " is ", value,
                                     ", which is not a value of ", datatype,
                                     ". Fix: send values of this type, or another datatype"));
}

absl::Status UnknownInferParameter(const std::string& model, const std::string& name,
                                   const std::string& known) {
  return InvalidArgumentError(StrCat("parameter ", Quote(name), " is not known to ", model,
                                     ". Fix: remove it, or use one of: ", known));
}

absl::Status InferParameterValue(const std::string& name, const std::string& wanted) {
  return InvalidArgumentError(StrCat(
      "parameter ", Quote(name), " has a value of the wrong kind or range. Fix: send ", wanted));
}

absl::Status ScalarTwice(const std::string& model, const std::string& name) {
  return InvalidArgumentError(StrCat("scalar ", Quote(name), " of ", model,
                                     " is an input and also a parameter. Fix: send one of them"));
}

absl::Status SequencesUnsupported() {
  return InvalidArgumentError(
      "the request belongs to a sequence (sequence_id, sequence_start or sequence_end), but "
      "operators have no state between requests. Fix: remove these parameters");
}

absl::Status ClassificationUnsupported(const std::string& output) {
  return InvalidArgumentError(StrCat("output ", Quote(output),
                                     " is requested as a classification, which the daemon does "
                                     "not compute. Fix: request the output without the parameter "
                                     "classification"));
}

absl::Status InferenceFailed(absl::StatusCode code, uint64_t index, uint64_t count, uint64_t failed,
                             const std::string& detail) {
  if (count == 1) return {code, detail};
  return {code, StrCat("task ", index, " of ", count, " (", failed, " failed): ", detail)};
}

absl::Status RegionName(size_t bytes, size_t limit) {
  return InvalidArgumentError(StrCat("the name of a region of shared memory has ", bytes,
                                     " bytes. Fix: send a name of 1 to ", limit, " bytes"));
}

absl::Status RegionExists(const std::string& name) {
  return absl::AlreadyExistsError(StrCat("there is a region of shared memory ", Quote(name),
                                         " already. Fix: unregister it, or use another name; all "
                                         "clients share the names"));
}

absl::Status UnknownRegion(const std::string& name) {
  return absl::NotFoundError(StrCat("no region of shared memory ", Quote(name),
                                    ". Fix: register it with SystemSharedMemoryRegister or "
                                    "CudaSharedMemoryRegister; a region that was not used for "
                                    "--oip_region_idle is unregistered"));
}

absl::Status RegionSize(const std::string& name, uint64_t offset, uint64_t bytes) {
  return InvalidArgumentError(StrCat("region of shared memory ", Quote(name), ": ", bytes,
                                     " bytes from offset ", offset,
                                     " are not a region. Fix: send at least one byte, and an "
                                     "offset whose sum with it fits 64 bits"));
}

absl::Status BeyondRegion(const TensorRef& tensor, const std::string& region, uint64_t offset,
                          uint64_t bytes, uint64_t region_bytes) {
  return InvalidArgumentError(StrCat(TensorText(tensor), ": ", bytes, " bytes from offset ", offset,
                                     " exceed the region of shared memory ", Quote(region),
                                     ", which has ", region_bytes,
                                     " bytes. Fix: send a smaller tensor or register a larger "
                                     "region"));
}

absl::Status RegionTooSmall(const TensorRef& tensor, uint64_t bytes, uint64_t wanted) {
  return InvalidArgumentError(StrCat(TensorText(tensor), " needs ", wanted,
                                     " bytes, but shared_memory_byte_size is ", bytes,
                                     ". Fix: send at least ", wanted));
}

absl::Status RegionCopyTooLarge(const TensorRef& tensor, uint64_t bytes, uint64_t limit) {
  return InvalidArgumentError(
      StrCat(TensorText(tensor), " has ", bytes,
             " bytes in shared memory that the daemon must copy, over the limit of ", limit,
             ". Fix: send a smaller tensor or raise --max_message_mib"));
}

absl::Status RegionAlignment(const TensorRef& tensor, uint64_t offset, uint64_t element_bytes) {
  return InvalidArgumentError(StrCat(TensorText(tensor), " starts at byte ", offset,
                                     " of its shared-memory object, which is not a multiple of its "
                                     "element size ",
                                     element_bytes, ". Fix: align the region and the offset"));
}

absl::Status RegionOnOtherDevice(const TensorRef& tensor, const std::string& region,
                                 uint32_t device, const std::string& other, uint32_t other_device) {
  return InvalidArgumentError(StrCat(
      TensorText(tensor), " is in the region of shared memory ", Quote(region), " on device ",
      device, ", and another tensor of the request is in ", Quote(other), " on device ",
      other_device,
      ". Fix: register all regions of a request on one device, or send one of the tensors in the "
      "message"));
}

absl::Status RegionTruncated(const std::string& name) {
  return absl::FailedPreconditionError(StrCat(
      "the memory of the region of shared memory ", Quote(name),
      " cannot be accessed. Fix: do not truncate the memory while the region is registered"));
}

absl::Status UnregisteredButUsed(const std::string& name) {
  return absl::DeadlineExceededError(
      StrCat(name.empty() ? "all regions of shared memory were"
                          : StrCat("the region of shared memory ", Quote(name), " was"),
             " unregistered, but requests still use the memory. Fix: keep the memory until they "
             "are answered"));
}

absl::Status RegionLost(const std::string& name, const std::string& cause) {
  return absl::FailedPreconditionError(StrCat("the region of shared memory ", Quote(name),
                                              " was lost: ", cause,
                                              ". Fix: unregister it and register it again"));
}

absl::Status RegionAndContents(const TensorRef& tensor) {
  return InvalidArgumentError(StrCat(TensorText(tensor),
                                     " is in shared memory and also has contents. Fix: send one of "
                                     "them"));
}

absl::Status CudaRegionsNotAccepted(const std::string& why) {
  return absl::FailedPreconditionError(
      StrCat("CUDA shared memory is not accepted: ", why,
             ", and a handle does not prove that the caller may use the memory. Fix: send the "
             "tensors in requests, or upload them to buffers of resident.v1.Buffers"));
}

absl::Status CudaRegionsUnsupported(uint32_t device, const std::string& engine) {
  return absl::UnimplementedError(StrCat(
      "device ", device, " has no CUDA shared memory: its engine is ", engine,
      ". Fix: send the device_id of a GPU of the daemon (Admin.Status lists the devices), or "
      "register a system region with SystemSharedMemoryRegister"));
}

absl::Status CudaHandleSize(const std::string& name, size_t got, size_t wanted) {
  return InvalidArgumentError(StrCat("region of shared memory ", Quote(name), ": raw_handle has ",
                                     got, " bytes. Fix: send the ", wanted,
                                     " bytes of the cudaIpcMemHandle_t of the memory"));
}

absl::Status CudaRegionCopied(const TensorRef& tensor) {
  return InvalidArgumentError(StrCat(
      TensorText(tensor),
      " is in CUDA shared memory, to which only tasks have access: the daemon copies scalars, "
      "inout parameters and the tensors of bytecode operators. "
      "Fix: send or request its contents in the message, or use a system region for it"));
}

absl::Status UnknownRepository(const std::string& name) {
  return absl::NotFoundError(StrCat("no model repository ", Quote(name),
                                    ". Fix: leave repository_name empty: the operators of the "
                                    "daemon are its only repository"));
}

absl::Status LoadConfig(const std::string& what) {
  return InvalidArgumentError(
      StrCat("parameter 'config': ", what,
             ". Fix: send JSON such as {\"parameters\": {\"signature\": {\"string_value\": \"x: in "
             "f32[*S], out: out f32[*S]\"}}}, with signature and split, or with expression "
             "(docs/inference.md)"));
}

absl::Status LoadConfigTooLarge(size_t bytes, size_t limit) {
  return InvalidArgumentError(
      StrCat("parameter 'config' has ", bytes, " bytes, over the limit of ", limit,
             ". Fix: send a smaller configuration, and the source in files"));
}

absl::Status LoadFileName(const std::string& name) {
  return InvalidArgumentError(StrCat("parameter ", Quote(name),
                                     " does not name a file of the operator. Fix: send the main "
                                     "file as \"file:1/NAME.cc\", and others as \"file:1/...\""));
}

absl::Status LoadFileTwice(const std::string& file) {
  return InvalidArgumentError(StrCat("the request has two files ", Quote(file),
                                     " in different folders. Fix: send each file once; the folder "
                                     "of a version has no meaning"));
}

absl::Status LoadFilesWithoutConfig() {
  return InvalidArgumentError(
      "the request has files and no parameter 'config'. Fix: send the config with the operator's "
      "signature");
}

absl::Status LoadModelConfig(const std::string& what) {
  return InvalidArgumentError(StrCat(
      "parameter 'config': ", what,
      ". Fix: of a model in the form of ONNX, send JSON with max_batch_size, instance_group, "
      "and parameters sizes.NAME and fixed.NAME, or send none (docs/inference.md)"));
}

absl::Status LoadModelTwice(const std::string& file, const std::string& other) {
  return InvalidArgumentError(StrCat("the request has two models, ", Quote(file), " and ",
                                     Quote(other), ". Fix: send one file that ends with .onnx"));
}

absl::Status LoadModelRefused(const std::string& findings) {
  return InvalidArgumentError(
      StrCat(findings, "\nThe model is not loaded. Fix: see the codes in docs/models.md"));
}

absl::Status LoadParameter(const std::string& name) {
  return InvalidArgumentError(
      StrCat("parameter ", Quote(name), " is not known. Fix: send config and files, or nothing"));
}

absl::Status InstallRefused(absl::StatusCode code, const std::string& message,
                            const std::string& log) {
  if (log.empty()) return {code, message};
  // What to do stays at the end.
  return {code, StrCat("the compiler wrote: ", log, "\n", message)};
}

absl::Status UnloadDisabled(const std::string& name) {
  return absl::PermissionDeniedError(
      StrCat("model ", Quote(name),
             " is not unloaded, because this would remove the operator with all its versions. Fix: "
             "start the daemon with --oip_unload=true, or use Operators.Remove"));
}

absl::Status SettingsAreReadOnly(const std::string& what, const std::string& fix) {
  return absl::UnimplementedError(StrCat(what, " cannot be changed by a call. Fix: ", fix));
}

}  // namespace resident::errors
