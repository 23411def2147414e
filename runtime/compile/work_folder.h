// The folder that a compiler works in, whose contents are the compiler's: they may be anything, and
// change at any time.
//
// Thread safety: may be called from any thread.
//
//   if (IsFolderOver(folder, 1 << 30, 10'000)) ...  // End the compiler.
//   RemoveFolder(folder);                           // Once it has ended.
#ifndef RESIDENT_RUNTIME_COMPILE_WORK_FOLDER_H_
#define RESIDENT_RUNTIME_COMPILE_WORK_FOLDER_H_

#include <cstdint>
#include <string>

namespace resident {

// Whether all that is below the folder takes more than so much of the disk. What cannot be measured
// counts as too much: folders that cannot be read, and such as come and go faster than they are
// looked at.
bool IsFolderOver(const std::string& folder, uint64_t most_bytes, uint64_t most_entries);

// With all that is below it, whatever the modes of the folders. What cannot be removed stays.
void RemoveFolder(const std::string& folder);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_WORK_FOLDER_H_
