#include "client/cli/buffer_word.h"

#include "absl/strings/numbers.h"
#include "runtime/base/status_macros.h"

namespace resident::cli {

absl::StatusOr<uint64_t> FindBufferId(client::Client& client, const std::string& word) {
  if (uint64_t id; absl::SimpleAtoi(word, &id)) return id;
  ASSIGN_OR_RETURN(const v1::BufferInfo buffer, client.FindBuffer(word));
  return buffer.id();
}

}  // namespace resident::cli
