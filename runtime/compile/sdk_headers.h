// The operator SDK as text, part of this program: what compilers are given, so that a
// daemon needs no files of the project beside it.
//
// Thread safety: the functions may be called from any thread.
#ifndef RESIDENT_RUNTIME_COMPILE_SDK_HEADERS_H_
#define RESIDENT_RUNTIME_COMPILE_SDK_HEADERS_H_

#include <map>
#include <string>

namespace resident {

// Name, as an #include gives it, to text. "resident/operator.h" is short for
// "kernels/sdk/operator.h", and so for each header of the SDK.
const std::map<std::string, std::string>& SdkHeaders();

// Of names and texts: part of what a compiled unit depends on.
const std::string& SdkHash();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_SDK_HEADERS_H_
