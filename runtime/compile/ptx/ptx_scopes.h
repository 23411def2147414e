// The names that the scopes of a function declare, and what they are called when its scopes are
// one: names of inner scopes get a number, and registers a percent sign.
//
// Thread safety: one thread.
//
//   scopes.Declare("x", PtxScopes::Kind::kRegister, 0, false);  // "%x", or "%s2_x".
//   const PtxScopes::Name* name = scopes.Find("x", &renamed);
#ifndef RESIDENT_RUNTIME_COMPILE_PTX_PTX_SCOPES_H_
#define RESIDENT_RUNTIME_COMPILE_PTX_PTX_SCOPES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace resident {

class PtxScopes {
 public:
  enum class Kind : uint8_t { kRegister, kParameter, kLocal };
  struct Name {
    Kind kind;
    std::string renamed;
    uint32_t count = 0;  // Not 0: of a range of registers.
    bool of_call = false;
  };

  // A function begins, with its own scope, whose number is 0.
  void Reset();
  // An inner scope begins; false: there are too many.
  bool Begin();
  // The inner scope ends; false: there is none.
  bool End();
  uint32_t current() const { return current_; }
  // How many ranges of registers the current scope has.
  size_t ranges() const { return scopes_[current_].ranges.size(); }

  // Adds a name to the current scope, and returns what it is called in the flat function.
  // `count`: of a range of registers; 0: it is none.
  std::string Declare(const std::string& name, Kind kind, uint32_t count, bool of_call);
  // Adds a name to the function's own scope, which keeps it.
  void DeclareOuter(const std::string& name, Kind kind) { scopes_[0].names[name] = {kind, name}; }
  // Null: there is no such name. `renamed`: what it is called.
  const Name* Find(absl::string_view name, std::string* renamed) const;

  // Adds a label to the current scope, and returns what it is called; empty: it exists.
  std::string DeclareLabel(const std::string& label);
  // The label that a branch in a scope means; null: there is none.
  const std::string* FindLabel(uint32_t scope, const std::string& label) const;

 private:
  struct Scope {
    uint32_t parent = 0;
    absl::flat_hash_map<std::string, Name> names;
    // A function has few ranges, and most registers are of one.
    std::vector<std::pair<std::string, Name>> ranges;
    std::unordered_map<std::string, std::string> labels;
  };

  std::vector<Scope> scopes_ = std::vector<Scope>(1);
  uint32_t current_ = 0;
  uint32_t depth_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_PTX_PTX_SCOPES_H_
