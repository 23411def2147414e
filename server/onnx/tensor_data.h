// The data of a model's tensors, which a file has in several forms: as raw bytes, as lists of
// numbers, or in another file.
//
// Thread safety: functions without state.
//
//   RETURN_IF_ERROR(NormalizeTensor(files, &tensor));   // Its data are in raw_data, and fit.
//   const Constant constant = TakeConstant(&tensor);
#ifndef RESIDENT_SERVER_ONNX_TENSOR_DATA_H_
#define RESIDENT_SERVER_ONNX_TENSOR_DATA_H_

#include "absl/status/status.h"
#include "server/onnx/import.h"
#include "server/onnx/onnx.pb.h"
#include "server/onnx/values/constant.h"

namespace resident::onnx {

// Moves a tensor's data into raw_data and checks that they fit its shape and type. Tensors of types
// that the daemon does not have keep what they have. E103, E106, E107.
absl::Status NormalizeTensor(const Files& files, TensorProto* tensor);

// REQUIRES: the tensor is normalized. Takes its bytes. The elements of types that the daemon does
// not have are empty.
Constant TakeConstant(TensorProto* tensor);

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_TENSOR_DATA_H_
