// What the image of a generation is linked from, beside the units of its operators: the
// relocatable kernel and built-in operators, compiled at build time, and a jump table,
// which is text made here.
//
// Needs neither the driver nor a GPU, and exists in builds without CUDA too, where it has
// no objects.
//
// Thread safety: may be called from any thread.
//
//   GenerationObjects objects = FirstGenerationObjects(9, 0);
//   std::string table = JumpTablePtx(generation.operators);
//   // nvJitLink, -arch=sm_{objects.architecture}: objects.inputs, the table, the units.
#ifndef RESIDENT_RUNTIME_ENGINE_IMAGE_GENERATION_OBJECTS_H_
#define RESIDENT_RUNTIME_ENGINE_IMAGE_GENERATION_OBJECTS_H_

#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/generation.h"

namespace resident {

struct LinkInput {
  std::string name;
  // A relocatable cubin, or PTX; of PTX, bytes.data()[bytes.size()] is a zero. From
  // FirstGenerationObjects: valid for good.
  std::string_view bytes;
  bool is_ptx = false;
};

struct GenerationObjects {
  // What to link for, as in 90: units are compiled for the same.
  int architecture = 0;
  std::vector<LinkInput> inputs;
};

// For a GPU of compute capability major.minor: the objects compiled for it or for an
// earlier minor of the same major; else PTX, to be linked for the GPU itself. Empty in a
// build without CUDA.
GenerationObjects FirstGenerationObjects(int major, int minor);

// The jump table as PTX: the built-in and the test operators in their slots, and
// `operators` in theirs. REQUIRES: invariant 2 of Generation.
std::string JumpTablePtx(const std::vector<GenerationOperator>& operators);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_IMAGE_GENERATION_OBJECTS_H_
