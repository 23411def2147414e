// Nearest: the known name that is most similar to an unknown one, for "did you mean" hints.
//
//   const std::string nearest = Nearest("sum_row", names);  // "sum_rows"
#ifndef RESIDENT_RUNTIME_BASE_NEAREST_H_
#define RESIDENT_RUNTIME_BASE_NEAREST_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace resident {

// kNear: a candidate that starts with the word counts as near as one with a single mistake,
// whatever its length, if the word has at least 3 bytes.
enum class Beginnings : uint8_t { kIgnored, kNear };

// Returns the candidate that is most similar to `word`. At most a third of its characters, or two
// characters of a short word, may differ. The first of equally near candidates is returned. Empty:
// no candidate is near enough, or the word is the name of a well-known function, such as log10:
// then it is no misspelling, and a similar name would compute something else.
std::string Nearest(std::string_view word, std::span<const std::string_view> candidates,
                    Beginnings beginnings = Beginnings::kIgnored);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_NEAREST_H_
