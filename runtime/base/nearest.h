// Nearest: what somebody most likely meant who wrote a name that there is not.
//
//   const std::string nearest = Nearest("sum_row", names);  // "sum_rows"
#ifndef RESIDENT_RUNTIME_BASE_NEAREST_H_
#define RESIDENT_RUNTIME_BASE_NEAREST_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace resident {

// Whether a candidate that the word is the beginning of (3 bytes of it or more) counts as
// near, however long it is: as near as one with a single mistake.
enum class Beginnings : uint8_t { kIgnored, kNear };

// The candidate most like `word`, of which at most a third may be mistyped (of a short one
// two characters); of equally near ones the first. Empty: none is near.
std::string Nearest(std::string_view word, std::span<const std::string_view> candidates,
                    Beginnings beginnings = Beginnings::kIgnored);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_NEAREST_H_
