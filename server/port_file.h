// PortFile: --port_file, which tells other programs where the daemon serves.
//
// A reader sees all of a version or nothing of it. The text is written to a new file of an
// unpredictable name beside it, which then takes its place; symbolic links are replaced and
// never followed, so that nobody who may write the folder can have the daemon overwrite a file
// elsewhere.
//
// Thread safety: a function without state.
#ifndef RESIDENT_SERVER_PORT_FILE_H_
#define RESIDENT_SERVER_PORT_FILE_H_

#include <string>

#include "absl/status/status.h"

namespace resident {

// UNAVAILABLE: names the path and says why. Everybody may read the file.
absl::Status WritePortFile(const std::string& path, const std::string& text);

}  // namespace resident

#endif  // RESIDENT_SERVER_PORT_FILE_H_
