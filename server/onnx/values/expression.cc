#include "server/onnx/values/expression.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>

namespace resident::onnx {

namespace {

using pointwise::Op;

bool IsWide(ElementType type) {
  return type == ElementType::kInt64 || type == ElementType::kUint32;
}

int64_t Float32Bits(double value) { return std::bit_cast<uint32_t>(static_cast<float>(value)); }

}  // namespace

bool Expression::Takes(ElementType type) {
  return DTypeOf(type) != DType::kInvalid && type != ElementType::kDouble;
}

int Expression::Append(const Item& item) {
  const auto same = std::find(items_.begin(), items_.end(), item);
  if (same != items_.end()) return static_cast<int>(same - items_.begin());
  items_.push_back(item);
  return static_cast<int>(items_.size()) - 1;
}

Term Expression::Input(ElementType type) {
  assert(Takes(type));
  wide_ |= IsWide(type);
  inputs_.push_back(type);
  return {Append(Item{kInput, {-1, -1, -1}, static_cast<int64_t>(inputs_.size()) - 1}), type};
}

Term Expression::Number(double value, ElementType type) {
  if (!IsFloatType(type)) return Whole(static_cast<int64_t>(value), type);
  return {Append(Item{kNumber, {-1, -1, -1}, Float32Bits(value)}), type};
}

Term Expression::Whole(int64_t value, ElementType type) {
  wide_ |= IsWide(type);
  return {Append(Item{kNumber, {-1, -1, -1}, value}), type};
}

Term Expression::Wrap(Term x) {
  switch (x.type) {
    case ElementType::kInt8:
      return {Append(Op::kToI8, {x.id, -1, -1}), x.type};
    case ElementType::kUint8:
    case ElementType::kBool:
      return {Append(Op::kToU8, {x.id, -1, -1}), x.type};
    case ElementType::kInt32:
      return {Append(Op::kToI32, {x.id, -1, -1}), x.type};
    case ElementType::kUint32:
      return {Append(Op::kToU32, {x.id, -1, -1}), x.type};
    default:
      return x;
  }
}

Term Expression::Arithmetic(Op real, Op integer, Term x, Term y) {
  assert(x.type == y.type);
  if (IsFloatType(x.type)) return {Append(real, {x.id, y.id, -1}), x.type};
  const Term result = {Append(integer, {x.id, y.id, -1}), x.type};
  const bool stays = integer == Op::kMax || integer == Op::kMin || integer == Op::kAnd ||
                     integer == Op::kOr || integer == Op::kXor || integer == Op::kShiftRight ||
                     integer == Op::kRemainder || integer == Op::kModulo;
  return stays ? result : Wrap(result);
}

Term Expression::Compare(Op real, Op integer, Term x, Term y) {
  return {Append(IsFloatType(x.type) ? real : integer, {x.id, y.id, -1}), ElementType::kBool};
}

Term Expression::Neg(Term x) {
  if (IsFloatType(x.type)) return Function(Op::kFloatNeg, x);
  return Sub(Number(0, x.type), x);
}

Term Expression::Abs(Term x) {
  if (IsFloatType(x.type)) return Function(Op::kFloatAbs, x);
  // The lowest integer stays as it is.
  return Select(Less(x, Number(0, x.type)), Neg(x), x);
}

Term Expression::Select(Term condition, Term x, Term y) {
  return {Append(Op::kSelect, {condition.id, x.id, y.id}), x.type};
}

Term Expression::Cast(Term x, ElementType type) {
  wide_ |= IsWide(type);
  if (x.type == type) return x;
  if (type == ElementType::kBool) return Not(Not(x));
  if (IsFloatType(x.type) && IsFloatType(type)) return {x.id, type};
  if (IsFloatType(type)) return {Append(Op::kToFloat, {x.id, -1, -1}), type};
  if (!IsFloatType(x.type)) return Wrap({x.id, type});
  // Out of range it is the nearest limit.
  Term value = {Append(Op::kToInt, {x.id, -1, -1}), type};
  double low, high;
  switch (type) {
    case ElementType::kInt8:
      low = -128, high = 127;
      break;
    case ElementType::kUint8:
      low = 0, high = 255;
      break;
    case ElementType::kInt32:
      low = std::numeric_limits<int32_t>::min(), high = std::numeric_limits<int32_t>::max();
      break;
    case ElementType::kUint32:
      low = 0, high = std::numeric_limits<uint32_t>::max();
      break;
    default:
      return value;
  }
  return Min(Max(value, Number(low, type)), Number(high, type));
}

Term Expression::Insert(const Expression& other, const std::vector<int>& inputs) {
  std::vector<int> ids;
  for (const Item& item : other.items_) {
    if (item.op == kInput) {
      ids.push_back(inputs[static_cast<size_t>(item.bits)]);
      continue;
    }
    Item copy = item;
    for (int& operand : copy.operands) {
      if (operand >= 0) operand = ids[static_cast<size_t>(operand)];
    }
    ids.push_back(Append(copy));
  }
  wide_ |= other.wide_;
  return {ids[static_cast<size_t>(other.result_.id)], other.result_.type};
}

Expression Expression::Substitute(size_t at, const Expression& other) const {
  Expression whole;
  std::vector<int> own, theirs;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    own.push_back(i == at ? -1 : whole.Input(inputs_[i]).id);
  }
  for (const ElementType type : other.inputs_) theirs.push_back(whole.Input(type).id);
  own[at] = whole.Insert(other, theirs).id;
  whole.SetResult(whole.Insert(*this, own));
  return whole;
}

Expression Expression::MergeInputs(size_t first, size_t second) const {
  Expression merged;
  std::vector<int> ids;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    ids.push_back(i == second ? ids[first] : merged.Input(inputs_[i]).id);
  }
  merged.SetResult(merged.Insert(*this, ids));
  return merged;
}

std::vector<Expression::Step> Expression::ListSteps(int* result) const {
  std::vector<Item> items = items_;
  const auto at = [&](int id) -> Item& { return items[static_cast<size_t>(id)]; };
  const auto follow = [&](int id) {
    // In 32 bits an i32 is wrapped already.
    while (!wide_ && at(id).op == static_cast<int>(Op::kToI32)) id = at(id).operands[0];
    return id;
  };
  std::vector<bool> needed(items.size());
  *result = follow(result_.id);
  needed[static_cast<size_t>(*result)] = true;
  for (size_t i = items.size(); i-- > 0;) {
    for (int& operand : items[i].operands) {
      if (operand < 0) continue;
      operand = follow(operand);
      if (needed[i]) needed[static_cast<size_t>(operand)] = true;
    }
  }
  std::vector<Step> steps;
  std::vector<int> loaded;  // Numbers that are in a register.
  const auto copy = [&](int from) { return Item{static_cast<int>(Op::kCopy), {from, -1, -1}, 0}; };
  for (size_t i = 0; i < items.size(); ++i) {
    if (!needed[i] || items[i].op < 0) continue;
    Step step = {static_cast<int>(i), items[i], 0};
    int immediate = -1;
    for (const int operand : items[i].operands) {
      if (operand < 0 || at(operand).op != kNumber) continue;
      if (std::find(loaded.begin(), loaded.end(), operand) != loaded.end()) continue;
      if (immediate < 0 || immediate == operand) {
        immediate = operand;
        step.immediate = at(operand).bits;
        continue;
      }
      // An instruction has one immediate.
      steps.push_back({operand, copy(operand), at(operand).bits});
      loaded.push_back(operand);
    }
    steps.push_back(step);
  }
  if (at(*result).op < 0) {
    // A program has at least one instruction.
    const int64_t bits = at(*result).op == kNumber ? at(*result).bits : 0;
    steps.push_back({static_cast<int>(items.size()), copy(*result), bits});
    *result = static_cast<int>(items.size());
  }
  return steps;
}

std::optional<std::string> Expression::AssignRegisters(const std::vector<Step>& steps,
                                                       int result) const {
  // A value keeps its register until its last use.
  std::vector<size_t> last_use(items_.size() + 1, 0);
  std::vector<int> register_of(items_.size() + 1, -1);
  for (size_t s = 0; s < steps.size(); ++s) {
    for (const int operand : steps[s].item.operands) {
      if (operand >= 0) last_use[static_cast<size_t>(operand)] = s + 1;
    }
  }
  last_use[static_cast<size_t>(result)] = steps.size() + 1;
  std::array<int, pointwise::kRegisters> owner;
  owner.fill(-1);
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].op != kInput || last_use[i] == 0) continue;
    register_of[i] = static_cast<int>(items_[i].bits);
    owner[static_cast<size_t>(items_[i].bits)] = static_cast<int>(i);
  }
  std::string bytes;
  const auto append = [&](int64_t word) {
    bytes.append(reinterpret_cast<const char*>(&word), sizeof(word));
  };
  for (size_t s = 0; s < steps.size(); ++s) {
    uint32_t operands[3] = {0, 0, 0};
    for (size_t k = 0; k < 3; ++k) {
      const int operand = steps[s].item.operands[k];
      if (operand < 0) continue;
      const int from = register_of[static_cast<size_t>(operand)];
      operands[k] = from < 0 ? pointwise::kImmediate : static_cast<uint32_t>(from);
    }
    for (int& id : owner) {
      if (id >= 0 && last_use[static_cast<size_t>(id)] <= s + 1) id = -1;
    }
    const auto free = std::find(owner.begin(), owner.end(), -1);
    if (free == owner.end()) return std::nullopt;
    *free = steps[s].id;
    const auto to = static_cast<uint32_t>(free - owner.begin());
    register_of[static_cast<size_t>(steps[s].id)] = static_cast<int>(to);
    append(pointwise::InstructionWord(static_cast<Op>(steps[s].item.op), to, operands[0],
                                      operands[1], operands[2]));
    append(steps[s].immediate);
  }
  const int64_t header[2] = {
      pointwise::HeaderWord(wide_ ? 64 : 32,
                            static_cast<uint32_t>(register_of[static_cast<size_t>(result)])),
      0};
  bytes.insert(0, reinterpret_cast<const char*>(header), sizeof(header));
  return bytes;
}

std::optional<std::string> Expression::Assemble() const {
  if (inputs_.size() > pointwise::kInputs) return std::nullopt;
  int result;
  const std::vector<Step> steps = ListSteps(&result);
  if (steps.size() > pointwise::kMaxInstructions) return std::nullopt;
  return AssignRegisters(steps, result);
}

}  // namespace resident::onnx
