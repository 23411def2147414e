// ExactModel: a decoder whose steps a client can compute exactly, on any engine, because all values
// are whole numbers that float32 represents. It has the form of a language model: each step reads a
// token, appends a row to a cache, combines all rows so far, and chooses the next token.
//
//   e   = table[token at pos]
//   row = mix(e)
//   sum = cache[0] + ... + cache[pos], with cache[pos] = row
//   b   = mix(sum)
//   token at pos + 1 = argmax(w b + bias)
//
//   mix(x)[i] = (x[i] * key + salt) modulo 256
//
// `mix` is the installed operator soak.mix. Its versions have different keys, so that each row
// shows which version computed it. All that a step writes has a place of its own (`pos`), so that a
// step that was interrupted can be repeated.
//
// Thread safety: immutable after its construction.
#ifndef RESIDENT_TESTS_SOAK_EXACT_MODEL_H_
#define RESIDENT_TESTS_SOAK_EXACT_MODEL_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "client/operators.h"
#include "resident/v1/graphs.pb.h"

namespace resident::soak {

class ExactModel {
 public:
  static constexpr char kOperator[] = "soak.mix";
  static constexpr uint32_t kVersions = 2;
  static constexpr int kContext = 512;
  static constexpr int kDim = 16;
  static constexpr int kVocab = 64;
  static constexpr uint32_t kSalts = 256;
  using Row = std::array<float, kDim>;

  explicit ExactModel(uint64_t seed);

  // Of version 1 to kVersions.
  static client::Installation MakeOperator(uint32_t version);
  // The records of a step are the next token, b, and pos. Weights are found by their names.
  v1::Graph MakeGraph() const;
  struct Weight {
    std::string name;
    std::vector<float> values;
  };
  std::vector<Weight> Weights() const;

  struct Step {
    Row row;    // Appended to the cache.
    Row mixed;  // b.
    int next = 0;
  };
  // A step of one version. `before`: the sum of all rows so far.
  Step Compute(uint32_t version, uint32_t salt, int token, const Row& before) const;

 private:
  static Row Mix(uint32_t version, uint32_t salt, const Row& x);

  std::vector<float> table_;
  std::vector<float> weights_;
  std::vector<float> bias_;
};

}  // namespace resident::soak

#endif  // RESIDENT_TESTS_SOAK_EXACT_MODEL_H_
