// Notes in the comments of an operator's source, so that `ops install NAME FILE` needs no
// flags:
//
//   // signature: x: in f32[*S], out: out f32[*S],
//   //            alpha: scalar f32 = 1
//   // split: out 4096
//   // summary: out = x * sigmoid(alpha * x)
//
// A note is a separate comment line; comment lines below it that are indented further
// than its key continue it. If a key is repeated, its first value is used.
#ifndef RESIDENT_RUNTIME_OPERATOR_SET_SOURCE_NOTES_H_
#define RESIDENT_RUNTIME_OPERATOR_SET_SOURCE_NOTES_H_

#include <string>
#include <string_view>

namespace resident {

// Empty: the source has no such note.
struct SourceNotes {
  std::string signature;
  std::string split;
  std::string summary;
};

SourceNotes ReadSourceNotes(std::string_view source);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATOR_SET_SOURCE_NOTES_H_
