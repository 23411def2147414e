// Files of AMK with the values of their inputs, which tests import, load and run on a real daemon.
//
// Thread safety: one thread at a time.
//
//   class MyTest : public AmkRuns {};
//   TEST_F(MyTest, Adds) {
//     ValuedAmk amk;
//     const int x = amk.RandomIn({3, 8}), out = amk.Out({3, 8});
//     amk.Task("ADD", {x, x}, {out});
//     Check(amk, {{out, Sum(amk[x], amk[x])}});
//   }
#ifndef RESIDENT_TESTS_GRAPH_AMK_RUNS_H_
#define RESIDENT_TESTS_GRAPH_AMK_RUNS_H_

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/graph/amk_maker.h"
#include "tests/graph/amk_reference.h"
#include "tests/graph/loaded_graphs.h"

namespace resident::testing::amk {

// A file with the values of its inputs and weights.
struct ValuedAmk : Amk {
  using Shape = std::vector<int64_t>;

  int Given(const std::string& kind, Shape shape, const std::string& dtype, Reals reals) {
    const int id = Buffer(kind, dtype, std::move(shape));
    values[id] = std::move(reals);
    return id;
  }
  int GivenIn(Shape shape, const std::string& dtype, Reals reals) {
    return Given("IO_INPUT", std::move(shape), dtype, std::move(reals));
  }
  // Multiples of 1/8 from -2 on and below 2, which all floating-point dtypes represent.
  int RandomIn(Shape shape, const std::string& dtype = "F32") {
    Reals reals = Numbers(shape, -16, 15);
    for (double& value : reals) value /= 8;
    return GivenIn(std::move(shape), dtype, std::move(reals));
  }
  int RandomWeight(Shape shape, const std::string& dtype = "F32") {
    const int id = RandomIn(std::move(shape), dtype);
    file["buffers"][static_cast<size_t>(id)]["kind"] = "WEIGHT";
    return id;
  }
  // Whole numbers.
  Reals Numbers(const Shape& shape, int min, int max);
  int RandomWhole(Shape shape, const std::string& dtype, int min, int max) {
    Reals reals = Numbers(shape, min, max);
    return Given("WEIGHT", std::move(shape), dtype, std::move(reals));
  }
  const Reals& operator[](int id) const { return values.at(id); }

  // In the file's form: two elements of I4 in a byte, the first one in its lower half.
  std::string Bytes(int id) const;

  std::map<int, Reals> values;
  std::mt19937 random{5};
};

class AmkRuns : public DaemonTest {
 protected:
  // Loads the file's graph and runs it twice. `expected`: by output buffer.
  void Check(const ValuedAmk& amk, const std::map<int, Reals>& expected);

  const GraphCalls calls_{*daemon_, client_};
  // Opcodes of the files whose outputs were right.
  std::set<std::string> ran_;

 private:
  static void Compare(const v1::GraphValue& output, const Reals& expected);
};

}  // namespace resident::testing::amk

#endif  // RESIDENT_TESTS_GRAPH_AMK_RUNS_H_
