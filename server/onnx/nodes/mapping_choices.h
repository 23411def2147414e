// MappingChoices: how nodes are mapped where that may depend on sizes. The graphs of several batch
// sizes make the same choices, so that they differ only in sizes (server/onnx/batch.h).
//
// Thread safety: a plain value.
//
//   if (choices.Choose(x.size(0) == 1)) ...
#ifndef RESIDENT_SERVER_ONNX_NODES_MAPPING_CHOICES_H_
#define RESIDENT_SERVER_ONNX_NODES_MAPPING_CHOICES_H_

#include <cstddef>
#include <vector>

namespace resident::onnx {

struct MappingChoices {
  // Whether the outermost dimension is kept apart from the others.
  bool keeps_batch = false;
  // Whether the form of a weight does not depend on the number of rows.
  bool any_rows = false;
  // Whether choices are those of an earlier graph, in their order.
  bool repeats = false;
  size_t next = 0;
  std::vector<bool> made;

  // A choice that may depend on sizes.
  bool Choose(bool choice) {
    if (!repeats) made.push_back(choice);
    return next < made.size() ? made[next++] : choice;
  }
};

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_NODES_MAPPING_CHOICES_H_
