// CheckStructure: the parts of the checks of a model that concern its form: names, numbers of
// nodes, the order of the nodes, and the data of all tensors.
//
// Thread safety: a pure function.
//
//   RETURN_IF_ERROR(CheckStructure(files, &model));
#ifndef RESIDENT_SERVER_ONNX_STRUCTURE_H_
#define RESIDENT_SERVER_ONNX_STRUCTURE_H_

#include "absl/status/status.h"
#include "server/onnx/import.h"
#include "server/onnx/onnx.pb.h"

namespace resident::onnx {

// Also moves the data of all tensors to raw_data (tensor_data.h). REQUIRES: functions are inlined.
// E103 to E107, E109.
absl::Status CheckStructure(const Files& files, ModelProto* model);

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_STRUCTURE_H_
