#include "runtime/graph/errors.h"

#include "absl/strings/str_cat.h"

namespace resident::errors {

using absl::StrCat;

absl::Status TooLargeToDraw(const std::string& what, uint64_t count, uint64_t limit,
                            const std::string& format) {
  return absl::InvalidArgumentError(StrCat("the graph has ", count, " ", what,
                                           ", and a picture as ", format, " has at most ", limit,
                                           ". Fix: draw a part of the graph"));
}

absl::Status TooLongToDraw(uint64_t dependencies, uint64_t limit) {
  return absl::InvalidArgumentError(
      StrCat("the ", dependencies,
             " dependencies that are drawn go past so many layers of nodes "
             "that the picture would have more than ",
             limit, " nodes and bends. Fix: draw a part of the graph, or use FORMAT_DOT"));
}

}  // namespace resident::errors
