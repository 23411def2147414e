// The headers of the operator SDK as text, for compilers. They are part of this program, so that a
// daemon needs no other files of the project.
//
// Thread safety: the functions may be called from any thread.
#ifndef RESIDENT_RUNTIME_COMPILE_SDK_HEADERS_H_
#define RESIDENT_RUNTIME_COMPILE_SDK_HEADERS_H_

#include <map>
#include <string>

namespace resident {

// Maps the name in an #include to the text. Each header has two names: "kernels/sdk/operator.h"
// and its short form "resident/operator.h".
const std::map<std::string, std::string>& SdkHeaders();

// Hash of names and texts, which is part of the cache key of a compiled unit.
const std::string& SdkHash();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_SDK_HEADERS_H_
