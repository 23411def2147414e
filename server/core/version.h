// residentd's version.
#ifndef RESIDENT_SERVER_CORE_VERSION_H_
#define RESIDENT_SERVER_CORE_VERSION_H_

namespace resident {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_VERSION_H_
