// The datatypes of the Open Inference Protocol, and the element types that they are.
//
// Thread safety: constants and pure functions.
//
//   const Datatype* type = FindDatatype("FP32");   // Null: there is no such element type.
//   type->dtype                                    // DType::kF32
#ifndef RESIDENT_SERVER_INFERENCE_DATATYPES_H_
#define RESIDENT_SERVER_INFERENCE_DATATYPES_H_

#include <string>
#include <string_view>

#include "inference/open_inference.pb.h"
#include "kernels/layout/task.h"

namespace resident {

struct Datatype {
  DType dtype;
  const char* name;
  inference::DataType config;  // In ModelConfig.
};

// Null: no element type of the daemon.
const Datatype* FindDatatype(std::string_view name);
// REQUIRES: the type is not kInvalid.
const Datatype& GetDatatype(DType dtype);
// "FP32, FP16, ...": all of them.
std::string DatatypeNames();

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_DATATYPES_H_
