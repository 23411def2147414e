// residentctl's version.
#ifndef RESIDENT_CLIENT_VERSION_H_
#define RESIDENT_CLIENT_VERSION_H_

namespace resident::cli {

inline constexpr char kClientVersion[] = "0.1.0";

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_VERSION_H_
