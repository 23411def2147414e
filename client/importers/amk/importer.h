// Importer: converts the parts of an AMK file, and then each task into calls of operators.
//
//   amk_import.cc      the file, the order of the tasks, and the nodes of a task
//   amk_lowering.cc    the calls of each opcode
//   amk_attention.cc   those of attention
//
// Thread safety: none.
//
//   Importer importer;
//   ASSIGN_OR_RETURN(const AmkGraph imported, importer.Import(file));
#ifndef RESIDENT_CLIENT_IMPORTERS_AMK_IMPORTER_H_
#define RESIDENT_CLIENT_IMPORTERS_AMK_IMPORTER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/graph_messages.h"
#include "client/importers/amk/file.h"
#include "client/importers/amk/import.h"
#include "client/importers/amk/operand.h"

namespace resident::cli::amk {

class Importer {
 public:
  absl::StatusOr<AmkGraph> Import(const Json& file);

 private:
  using Operands = std::vector<Operand>;

  struct Task {
    Op op = Op::kNop;
    std::vector<uint32_t> inputs;
    std::vector<uint32_t> outputs;
    uint32_t out_counter = 0;
    std::vector<std::pair<uint32_t, uint32_t>> waits;
    std::optional<uint32_t> sm;
    const Json* params = nullptr;
  };

  // An argument of a call.
  struct Arg {
    Arg(const Operand& operand)  // NOLINT(google-explicit-constructor)
        : message(operand.whole ? client::graph_messages::Whole(operand.tensor)
                                : client::graph_messages::View(
                                      operand.tensor, {operand.shape.begin(), operand.shape.end()},
                                      operand.offset, operand.strides)) {}
    explicit Arg(v1::GraphArgument argument) : message(std::move(argument)) {}
    Arg(int64_t value) : message(client::graph_messages::Integer(value)) {}  // NOLINT
    Arg(double value) : message(client::graph_messages::Real(value)) {}      // NOLINT
    static Arg None() { return Arg(client::graph_messages::None()); }
    v1::GraphArgument message;
  };

  // Where a call writes: the output itself, or a temporary that is copied to it.
  struct Target {
    Operand to;
    std::optional<Operand> final;
  };

  static constexpr size_t kMaxNotes = 20;

  void Note(std::string text) {
    if (result_.notes.size() < kMaxNotes) result_.notes.push_back(std::move(text));
  }
  std::string UniqueName(std::string stem, size_t index);

  absl::Status ReadVersions(const Json& file);
  absl::Status ReadBuffers(const Json& list);
  absl::Status ReadBuffer(const Json& json, size_t index);
  absl::Status ReadCounters(const Json& list);
  absl::Status ReadTasks(const Json& list);
  absl::Status ReadTask(const Json& json, size_t index, Task* task);
  absl::Status ReadBlocks(const Json& target);
  // The tasks, each one after those for whose counters it waits and the one before it in its block.
  // If there is no such order, that of the file: the validator describes the cycle.
  std::vector<uint32_t> SortTasks() const;
  absl::Status ConvertTask(uint32_t index);
  absl::Status CheckParams(Op op, const Params& params);
  void Finish(uint32_t index);

  absl::StatusOr<Operand> BufferOperand(uint32_t id) const;
  Operand Temporary(Type type, Shape shape);
  void Call(const char* op, std::vector<Arg> arguments);
  absl::StatusOr<Operand> Float(const Operand& in);
  absl::StatusOr<Operand> ExactF16(const Operand& in, const char* what);
  // `inputs`: those of the task; `dense`: whether the operator writes only dense tensors.
  absl::StatusOr<Target> MakeTarget(const Operand& out, const Operands& inputs, bool dense,
                                    std::optional<Type> required = {});
  void Store(const Target& target);
  // `in` as the operators read it: with the output's shape if it has as many elements, otherwise
  // broadcast.
  absl::StatusOr<Operand> Aligned(const Operand& in, const Operand& out);

  absl::Status Lower(Op op, const Operands& inputs, const Operand& out, const Params& params,
                     bool scratch);
  absl::Status LowerCopy(const Operands& inputs, const Operand& out);
  absl::Status LowerElementwise(const char* op, const Operands& inputs, const Operand& out,
                                std::vector<Arg> scalars);
  absl::Status LowerSum(const Operands& inputs, const Operand& out);
  absl::Status LowerEmbed(const Operands& inputs, const Operand& out);
  absl::Status LowerNorm(Op op, const Operands& inputs, const Operand& out, const Params& params);
  absl::Status LowerTile(Op op, const Operands& inputs, const Operand& out, const Params& params,
                         bool scratch);
  absl::Status LowerDequant(const Operands& inputs, const Operand& out, const Params& params);
  struct Quantized {
    Operand q;
    Operand scales;
    std::optional<Operand> zeros;
  };
  // Rows [first, first + rows) of a quantized matrix of K columns.
  absl::StatusOr<Quantized> QuantizedRows(const Operand& q, const Operand& scales,
                                          const Operand* zeros, int64_t qdtype, int64_t group,
                                          int64_t columns, int64_t first, int64_t rows);
  // Whether the shapes of keys and values fit the query's.
  absl::Status CheckCaches(const Operands& inputs, int64_t kv_heads) const;
  absl::Status LowerAttention(const Operands& inputs, const Operand& out, const Params& params);
  absl::Status LowerCombine(const Operands& inputs, const Operand& out, const Params& params);
  absl::Status LowerRope(const Operands& inputs, const Operand& out, const Params& params);
  absl::Status LowerKvAppend(const Operands& inputs, const Operand& out, const Params& params);
  absl::Status LowerSoftmax(const Operands& inputs, const Operand& out, const Params& params);
  absl::Status LowerArgmax(const Operands& inputs, const Operand& out);
  absl::Status LowerFused(const Operands& inputs, const Operand& out, const Params& params);

  AmkGraph result_;
  std::unordered_set<std::string> names_;
  std::vector<Operand> buffers_;
  std::vector<Task> tasks_;
  size_t counters_ = 0;
  bool assigned_ = false;
  // The task that is being converted, and what was made for it.
  uint32_t task_ = 0;
  uint32_t temporaries_ = 0;
  std::vector<v1::GraphNode> nodes_;
};

}  // namespace resident::cli::amk

#endif  // RESIDENT_CLIENT_IMPORTERS_AMK_IMPORTER_H_
