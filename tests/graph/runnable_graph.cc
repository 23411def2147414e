#include "tests/graph/runnable_graph.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/graph/graph_maker.h"
#include "tests/graph/interpreter_memory.h"

namespace resident::testing {
namespace {

using Kind = v1::GraphTensor;

constexpr int kRows = 4, kColumns = 8;
// Rows of four elements in the cache, which has as many elements as the other tensors.
constexpr int kCacheRows = 8, kCacheColumns = 4;
constexpr int kLimit = 64;

// Tensors whose values may be combined in one call.
enum Group { kFloats, kDoubles, kIntegers, kInexact };

struct Pooled {
  std::string name;
  Group group;
  int rows;
  // The tensor that owns the memory.
  std::string root;
  bool writable;
};

class Maker {
 public:
  Maker(std::mt19937_64& random, int nodes) : random_(random), nodes_(nodes) {}

  v1::RunGraphRequest Make() {
    if (Chance(2)) MakeLoop();
    MakeScalars();
    MakeTensors();
    while (g_.graph.nodes_size() < nodes_) AddNodes();
    AddResults();
    for (v1::GraphNode& node : *g_.graph.mutable_nodes()) {
      if (Chance(4)) node.clear_name();
    }
    *request_.mutable_graph() = std::move(g_.graph);
    return std::move(request_);
  }

 private:
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool Chance(int of) { return Below(of) == 0; }
  template <typename T>
  const T& Pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(Below(static_cast<int>(from.size())))];
  }

  // --- Tensors, scalars and the loop -------------------------------------------------------------

  void MakeLoop() {
    loop_ = true;
    v1::GraphLoop& loop = *g_.graph.mutable_loop();
    steps_ = 1 + Below(5);
    loop.set_max_steps(static_cast<uint64_t>(steps_));
    if (Chance(3)) request_.set_max_steps(static_cast<uint64_t>(1 + Below(steps_)));
  }

  void Update(const char* scalar, double factor, double addend) {
    v1::GraphUpdate& update = *g_.graph.mutable_loop()->add_updates();
    update.set_scalar(scalar);
    if (factor != 1) update.set_factor(factor);
    update.set_addend(addend);
  }

  void MakeScalars() {
    g_.Scalar("pos", 0, kCacheRows - 1).Scalar("n", 1, kRows);
    g_.Scalar("level", -40, 40, v1::DTYPE_F32).Scalar("time", 0, 20, v1::DTYPE_F32);
    (*request_.mutable_scalars())["pos"] = Below(kCacheRows);
    (*request_.mutable_scalars())["n"] = 1 + Below(kRows);
    g_.graph.mutable_scalars(2)->set_initial(Below(20));
    g_.graph.mutable_scalars(3)->set_initial(Below(10));
    if (!loop_) return;
    // Sometimes the end of the range is met before the last step.
    Update("pos", 1, 1);
    Update("time", 1, 2);
    if (Chance(2)) Update("n", -1, kRows + 1);
    if (Chance(2)) Update("level", -1, 1);
  }

  // Whole numbers as the elements of a tensor.
  std::string MakeData(v1::DType dtype, int elements) {
    const auto bytes = static_cast<size_t>(ElementBytes(dtype));
    std::string data(bytes * static_cast<size_t>(elements), '\0');
    for (size_t i = 0; i < static_cast<size_t>(elements); ++i) {
      EncodeNumber(dtype, Below(2 * kLimit + 1) - kLimit, data.data() + i * bytes);
    }
    return data;
  }

  void Bind(const std::string& name, std::string data) {
    v1::GraphBinding& binding = *request_.add_bindings();
    binding.set_tensor(name);
    binding.set_data(std::move(data));
  }

  void AddTensor(Kind::Kind kind, const std::string& name, v1::DType dtype, Group group) {
    g_.Tensor(kind, name, {kRows, kColumns}, dtype);
    if (kind == Kind::KIND_INPUT || (kind == Kind::KIND_STATE && Chance(2))) {
      Bind(name, MakeData(dtype, kRows * kColumns));
    }
    pool_.push_back({name, group, kRows, name, kind != Kind::KIND_INPUT});
  }

  void MakeTensors() {
    const std::vector<v1::DType> floats = {v1::DTYPE_F32, v1::DTYPE_BF16, v1::DTYPE_F16};
    g_.Tensor(Kind::KIND_STATE, "cache", {1, 1, kCacheRows, kCacheColumns}, Pick(floats));
    AddTensor(Kind::KIND_INPUT, "input", v1::DTYPE_F32, kFloats);
    AddTensor(Kind::KIND_INPUT, "input.half", Pick(floats), kFloats);
    AddTensor(Kind::KIND_INPUT, "input.f64", v1::DTYPE_F64, kDoubles);
    AddTensor(Kind::KIND_INPUT, "input.i32", v1::DTYPE_I32, kIntegers);
    const int states = 1 + Below(4);
    for (int i = 0; i < states; ++i) {
      const v1::DType dtype = Pick(floats);
      const std::string name = "state" + std::to_string(i);
      AddTensor(Kind::KIND_STATE, name, dtype, kFloats);
      if (!Chance(3)) continue;
      // The middle rows under another name.
      const std::string alias = name + ".alias";
      g_.Tensor(Kind::KIND_STATE, alias, {kRows / 2, kColumns}, dtype);
      v1::GraphTensor& tensor = g_.tensor(g_.graph.tensors_size() - 1);
      tensor.set_alias_of(name);
      tensor.set_offset(static_cast<uint64_t>(kColumns * ElementBytes(dtype)));
      pool_.push_back({alias, kFloats, kRows / 2, name, true});
    }
    AddTensor(Kind::KIND_STATE, "sum.i32", v1::DTYPE_I32, kIntegers);
    AddTensor(Kind::KIND_STATE, "sum.f64", v1::DTYPE_F64, kDoubles);
    const int activations = 2 + Below(6);
    for (int i = 0; i < activations; ++i) {
      const Group group = Pick(std::vector<Group>{kFloats, kFloats, kDoubles, kIntegers, kInexact});
      const v1::DType dtype = group == kDoubles    ? v1::DTYPE_F64
                              : group == kIntegers ? v1::DTYPE_I32
                                                   : Pick(floats);
      AddTensor(Kind::KIND_ACTIVATION, "a" + std::to_string(i), dtype, group);
      g_.Call("copy", {"input", pool_.back().name});
    }
    // Each group has two tensors at least: one can be the source of the other.
    for (const char* name : {"inexact", "inexact2"}) {
      AddTensor(Kind::KIND_ACTIVATION, name, v1::DTYPE_F32, kInexact);
      g_.Call("softmax", {"input", name});
    }
    g_.Tensor(Kind::KIND_ACTIVATION, "keys", {1, 1, kCacheRows, kCacheColumns}, Pick(floats));
    g_.Call("copy", {"cache", "keys"});
    // Memory of sums and products, and of results with other shapes.
    g_.Tensor(Kind::KIND_ACTIVATION, "wide.f32", {kRows, kColumns}, v1::DTYPE_F32);
    g_.Tensor(Kind::KIND_ACTIVATION, "wide.bf16", {kRows, kColumns}, v1::DTYPE_BF16);
    g_.Tensor(Kind::KIND_ACTIVATION, "wide.f64", {kRows, kColumns}, v1::DTYPE_F64);
    g_.Tensor(Kind::KIND_ACTIVATION, "wide.i32", {kRows, kColumns}, v1::DTYPE_I32);
    g_.Tensor(Kind::KIND_ACTIVATION, "square", {kRows, kRows});
    g_.Tensor(Kind::KIND_ACTIVATION, "row", {kColumns});
    g_.Tensor(Kind::KIND_ACTIVATION, "ids", {kRows}, v1::DTYPE_I64);
    g_.Tensor(Kind::KIND_ACTIVATION, "token", {1}, v1::DTYPE_I64);
  }

  // --- Nodes -------------------------------------------------------------------------------------

  struct Box {
    int row, column, rows, columns;
    // With the scalar n as the number of rows, of all of them.
    bool dynamic;
  };

  Arg BoxOf(const Pooled& tensor, int row, int column, const Box& box, bool target = false) {
    if (box.dynamic) return View(tensor.name, {D("n"), D(box.columns)}, column);
    if (row == 0 && column == 0 && box.rows == tensor.rows && box.columns == kColumns &&
        Chance(2)) {
      return Arg(tensor.name);
    }
    if (!target && Chance(8)) {  // Backwards.
      return View(tensor.name, {D(box.rows), D(box.columns)},
                  (row + box.rows - 1) * kColumns + column + box.columns - 1, {-kColumns, -1});
    }
    return View(tensor.name, {D(box.rows), D(box.columns)}, row * kColumns + column);
  }

  const Pooled& PickTarget(std::vector<Group> groups) {
    while (true) {
      const Pooled& tensor = Pick(pool_);
      if (tensor.writable && std::count(groups.begin(), groups.end(), tensor.group) > 0) {
        return tensor;
      }
    }
  }

  Box PickBox(const Pooled& target) {
    Box box{0, 0, target.rows, kColumns, false};
    if (Chance(3)) return box;
    box.columns = 1 + Below(kColumns);
    box.column = Below(kColumns - box.columns + 1);
    if (target.rows == kRows && Chance(4)) {
      box.dynamic = true;
      return box;
    }
    box.rows = 1 + Below(target.rows);
    box.row = Below(target.rows - box.rows + 1);
    return box;
  }

  // A part with the box's shape of a tensor that is not the target.
  Arg PickSource(Group group, const Pooled& target, const Box& box) {
    // Of the same tensor, but other rows.
    if (!box.dynamic && target.group == group && box.row >= box.rows && Chance(4)) {
      return BoxOf(target, Below(box.row - box.rows + 1), box.column, box);
    }
    while (true) {
      const Pooled& tensor = Pick(pool_);
      if (tensor.group != group || tensor.root == target.root || tensor.rows < box.rows) continue;
      if (box.dynamic && tensor.rows != kRows) continue;
      const int row = box.dynamic ? 0 : Below(tensor.rows - box.rows + 1);
      return BoxOf(tensor, row, Below(kColumns - box.columns + 1), box);
    }
  }

  Arg TargetBox(const Pooled& target, const Box& box) {
    if (box.dynamic) return View(target.name, {D("n"), D(box.columns)}, box.column);
    return BoxOf(target, box.row, box.column, box, /*target=*/true);
  }

  // A tensor for sums of a group.
  Pooled Wide(Group group) {
    const char* name = group == kDoubles    ? "wide.f64"
                       : group == kIntegers ? "wide.i32"
                       : Chance(3)          ? "wide.bf16"
                                            : "wide.f32";
    return {name, group, kRows, name, true};
  }

  void AddNodes() {
    switch (Below(16)) {
      case 0:
        return AddConstant();
      case 1:
        return AddGemm();
      case 2:
        return AddGemv();
      case 3:
        return AddLookup();
      case 4:
        return AddCache();
      case 5:
        return AddReduction();
      case 6:
        return AddInexact();
      case 7:
      case 8:
      case 9:
        return AddChoice();
      case 10:
      case 11:
        return AddCopy();
      default:
        return AddSum();
    }
  }

  // A bound of clamp.
  Arg Bound(int low, int high) { return F(low + Below(high - low + 1)); }

  void AddConstant() {
    const Pooled& target = PickTarget({kFloats, kDoubles, kIntegers});
    const Arg to = TargetBox(target, PickBox(target));
    if (Chance(4)) {
      g_.Call("zero", {to});
    } else if (Chance(3)) {
      g_.Call("fill", {to, S("level", 1, Below(20) - 10)});
    } else {
      g_.Call("fill", {to, S("time", Below(5) - 2, Below(41) - 20)});
    }
  }

  void AddChoice() {
    const Pooled& target = PickTarget({kFloats, kDoubles, kIntegers, kInexact});
    const Box box = PickBox(target);
    // Results of functions never reach tensors with exact values.
    const Arg x = PickSource(target.group, target, box);
    if (target.group == kFloats || target.group == kInexact) {
      if (Chance(2)) {
        g_.Call(Pick(std::vector<std::string>{"relu", "neg", "abs"}), {x, TargetBox(target, box)});
        return;
      }
    }
    if (Chance(3)) {
      g_.Call("clamp", {x, TargetBox(target, box), Bound(-kLimit, -1), Bound(1, kLimit)});
      if (Chance(3)) g_.node(g_.graph.nodes_size() - 1).mutable_arguments()->RemoveLast();
      return;
    }
    g_.Call(Chance(2) ? "maximum" : "minimum",
            {x, PickSource(target.group, target, box), TargetBox(target, box)});
  }

  void AddCopy() {
    const Pooled& target = PickTarget({kFloats, kDoubles, kIntegers, kInexact});
    const Box box = PickBox(target);
    const Group from = target.group == kInexact && Chance(3)
                           ? kInexact
                           : Pick(std::vector<Group>{kFloats, kDoubles, kIntegers});
    g_.Call("copy", {PickSource(from, target, box), TargetBox(target, box)});
  }

  void AddSum() {
    const Pooled& target = PickTarget({kFloats, kDoubles, kIntegers, kInexact});
    const Box box = PickBox(target);
    const Pooled wide = Wide(target.group);
    const Arg x = PickSource(target.group, target, box);
    // An exact number may be added to an inexact one.
    const Arg y = target.group == kInexact ? PickSource(kFloats, target, box)
                                           : PickSource(target.group, target, box);
    const Arg sum = box.dynamic ? View(wide.name, {D("n"), D(box.columns)})
                                : View(wide.name, {D(box.rows), D(box.columns)});
    switch (Below(3)) {
      case 0:
        g_.Call("mul", {target.group == kInexact ? y : x, y, sum});
        break;
      case 1:
        g_.Call("sub", {x, y, sum});
        break;
      default:
        g_.Call("add", {x, y, sum, F(Below(5) - 2)});
        break;
    }
    g_.Call("clamp", {sum, TargetBox(target, box), Bound(-kLimit, -kLimit / 2),
                      Named("hi", Bound(kLimit / 2, kLimit))});
  }

  // wide = a * b, or a * b + wide; b may be a transposed view.
  void AddGemm() {
    const Pooled& target = PickTarget({kFloats});
    const int m = 1 + Below(target.rows), n = 1 + Below(kRows), k = 1 + Below(kRows);
    const Pooled none{"", kFloats, 0, "", false};
    const Arg a = PickSource(kFloats, none, {0, 0, m, k, false});
    Arg b = PickSource(kFloats, none, {0, 0, k, n, false});
    if (Chance(2)) b = View("input", {D(k), D(n)}, Below(3), {1, kColumns});
    const Arg sum = View("wide.f32", {D(m), D(n)});
    const bool add = Chance(2);
    if (add) g_.Call("copy", {PickSource(kFloats, none, {0, 0, m, n, false}), sum});
    g_.Call("gemm", {a, b, sum, F(1 + Below(2)), F(add ? 1 : 0)});
    const Box box{Below(target.rows - m + 1), Below(kColumns - n + 1), m, n, false};
    g_.Call("clamp", {sum, TargetBox(target, box), F(-kLimit), F(kLimit)});
  }

  const Pooled& PickWhole() {
    while (true) {
      const Pooled& tensor = Pick(pool_);
      if (tensor.group == kFloats && tensor.rows == kRows) return tensor;
    }
  }

  void AddGemv() {
    const Pooled& target = PickTarget({kFloats});
    // None, a row for all vectors, or one for each of them.
    const int64_t form = Below(3);
    const Arg bias = form == 0   ? None()
                     : form == 1 ? View(PickWhole().name, {D(kRows)}, kColumns)
                                 : View(PickWhole().name, {D(kRows), D(kRows)}, 0, {kRows, 1});
    g_.Call("gemv", {PickWhole().name, PickWhole().name, bias, "square"});
    const Box box{0, Below(kColumns - kRows + 1), target.rows, kRows, false};
    g_.Call("clamp", {View("square", {D(target.rows), D(kRows)}), TargetBox(target, box),
                      F(-kLimit), F(kLimit)});
  }

  // ids = argmax of the rows, and the rows of a table with these ids.
  void AddLookup() {
    const Pooled& target = PickTarget({kFloats});
    g_.Call("argmax", {PickWhole().name, "ids", I(2)});
    g_.Call("embedding",
            {"ids", View(PickWhole().name, {D(kColumns), D(kRows)}, 0, {kRows, 1}), "square"});
    const Box box{0, 0, target.rows, kRows, false};
    g_.Call("copy", {View("square", {D(target.rows), D(kRows)}), TargetBox(target, box)});
  }

  Arg Rows(const Pooled& tensor, int rows) {
    return View(tensor.name, {D(1), D(1), D(rows), D(kCacheColumns)},
                kCacheColumns * Below(kCacheRows - rows + 1));
  }

  void AddCache() {
    if (Chance(2)) {
      const int rows = Chance(2) ? 1 : 1 + Below(3);
      const Arg pos = rows == 1 && !Chance(3) ? S("pos") : I(Below(kCacheRows - rows + 1));
      g_.Call("kv_append", {Rows(PickWhole(), rows), "cache", pos});
    } else if (Chance(2)) {
      const Pooled& target = PickTarget({kFloats});
      if (target.rows != kRows) return;
      g_.Call("copy", {View("cache", {D(kRows), D(kColumns)}), target.name});
    } else {
      const Pooled& target = PickTarget({kInexact});
      // A state must not be read before it is appended to, an activation may.
      if (Chance(2)) g_.Call("copy", {"cache", "keys"});
      const Arg length = Chance(2) ? S("pos", 1, Below(2)) : I(Below(kCacheRows + 2) - 1);
      g_.Call("attention", {Rows(PickWhole(), 2), "keys", "keys", None(), Rows(target, 2), F(0.125),
                            Named("kv_len", length)});
    }
  }

  void AddReduction() {
    const Pooled& target = PickTarget({kFloats});
    const bool sum = Chance(2);
    g_.Call(sum ? "sum" : "max", {PickWhole().name, "row", I(1)});
    // The row in each row of the target.
    g_.Call("clamp", {View("row", {D(1), D(kColumns)}), target.name, F(-kLimit), F(kLimit)});
  }

  void AddInexact() {
    const Pooled& target = PickTarget({kInexact});
    const Pooled& source = Chance(4) ? PickTarget({kInexact}) : PickWhole();
    if (source.root == target.root) return;
    switch (Below(4)) {
      case 0:
        g_.Call("softmax", {source.name, target.name});
        return;
      case 1:
        g_.Call("rmsnorm", {source.name, View("input.half", {D(kColumns)}), target.name, F(1)});
        // Of at most 64 times the root of 8.
        g_.Call("clamp", {target.name, "wide.f32", F(-kLimit), F(kLimit)});
        g_.Call("copy", {"wide.f32", target.name});
        return;
      default: {
        const Box box = PickBox(target);
        g_.Call(Pick(std::vector<std::string>{"tanh", "sigmoid", "silu"}),
                {PickSource(source.group, target, box), TargetBox(target, box)});
      }
    }
  }

  // --- What a run returns ------------------------------------------------------------------------

  void AddResults() {
    int outputs = 0;
    const std::vector<Pooled> pool = pool_;
    for (const Pooled& tensor : pool) {
      if (!tensor.writable) continue;
      const std::string name = "out" + std::to_string(outputs++);
      const v1::DType dtype = DTypeOf(tensor.name);
      if (tensor.rows == kRows && Chance(5)) {
        g_.Tensor(Kind::KIND_OUTPUT, name, {D("n"), D(kColumns)}, dtype);
        g_.Call("copy", {View(tensor.name, {D("n"), D(kColumns)}), name});
      } else {
        g_.Tensor(Kind::KIND_OUTPUT, name, {D(tensor.rows), D(kColumns)}, dtype);
        g_.Call("copy", {tensor.name, name});
      }
    }
    g_.Tensor(Kind::KIND_OUTPUT, "out.cache", {D(kCacheRows * kCacheColumns)});
    g_.Call("copy", {View("cache", {D(kCacheRows * kCacheColumns)}), "out.cache"});
    if (!loop_) return;
    g_.Tensor(Kind::KIND_STREAM, "record", {D(steps_), D(kRows), D(kColumns)});
    g_.Call("copy", {PickWhole().name, "record"});
    if (Chance(2)) {
      g_.Tensor(Kind::KIND_STREAM, "record.i32", {D(steps_), D(2), D(kColumns)}, v1::DTYPE_I32);
      g_.Call("add", {View("sum.i32", {D(2), D(kColumns)}), View("input.i32", {D(2), D(kColumns)}),
                      "record.i32"});
    }
    if (!Chance(2)) return;
    g_.Call("argmax", {View(PickWhole().name, {D(1), D(kRows * kColumns)}), "token", I(2)});
    v1::GraphStop& stop = *g_.graph.mutable_loop()->mutable_stop();
    stop.set_tensor("token");
    for (int i = 0; i < 4; ++i) stop.add_values(Below(kRows * kColumns));
  }

  v1::DType DTypeOf(const std::string& name) const {
    for (const v1::GraphTensor& tensor : g_.graph.tensors()) {
      if (tensor.name() == name) return tensor.dtype();
    }
    return v1::DTYPE_UNSPECIFIED;
  }

  std::mt19937_64& random_;
  const int nodes_;
  GraphMaker g_;
  v1::RunGraphRequest request_;
  std::vector<Pooled> pool_;
  bool loop_ = false;
  int steps_ = 1;
};

}  // namespace

v1::RunGraphRequest MakeRunnableGraph(std::mt19937_64& random, int nodes) {
  return Maker(random, nodes).Make();
}

}  // namespace resident::testing
