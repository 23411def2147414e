#include "runtime/compile/ptx/ptx_scopes.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/compile/ptx/ptx_text.h"

namespace resident {

void PtxScopes::Reset() {
  scopes_.assign(1, Scope());
  current_ = depth_ = 0;
}

bool PtxScopes::Begin() {
  if (++depth_ > kMaxPtxScopeDepth || scopes_.size() >= kMaxPtxScopes) return false;
  scopes_.emplace_back().parent = current_;
  current_ = static_cast<uint32_t>(scopes_.size()) - 1;
  return true;
}

bool PtxScopes::End() {
  if (current_ == 0) return false;
  --depth_;
  current_ = scopes_[current_].parent;
  return true;
}

std::string PtxScopes::Declare(const std::string& name, Kind kind, uint32_t count, bool of_call) {
  std::string renamed = name;
  const bool percent = name[0] == '%';
  if (kind == Kind::kRegister && !percent) renamed = "%" + name;
  if (current_ != 0 && kind == Kind::kRegister) {
    renamed = absl::StrCat("%s", current_, "_", name.substr(percent ? 1 : 0));
  } else if (current_ != 0) {
    renamed = absl::StrCat("$S", current_, "_", name);
  }
  Scope& scope = scopes_[current_];
  if (count != 0) {
    scope.ranges.push_back({name, {kind, renamed, count, of_call}});
  } else {
    scope.names[name] = {kind, renamed, 0, of_call};
  }
  return renamed;
}

const PtxScopes::Name* PtxScopes::Find(absl::string_view name, std::string* renamed) const {
  size_t digits = name.size();
  while (digits > 1 && absl::ascii_isdigit(static_cast<unsigned char>(name[digits - 1]))) --digits;
  const absl::string_view prefix = name.substr(0, digits);
  const absl::string_view number = name.substr(digits);
  uint32_t index = 0;
  const bool numbered =
      !number.empty() && (number == "0" || number[0] != '0') && absl::SimpleAtoi(number, &index);
  for (uint32_t at = current_;; at = scopes_[at].parent) {
    const Scope& scope = scopes_[at];
    if (!scope.names.empty()) {
      const auto found = scope.names.find(name);
      if (found != scope.names.end()) {
        *renamed = found->second.renamed;
        return &found->second;
      }
    }
    for (const auto& [range, of] : scope.ranges) {
      if (!numbered || range != prefix || index >= of.count) continue;
      *renamed = absl::StrCat(of.renamed, number);
      return &of;
    }
    if (at == 0) return nullptr;
  }
}

std::string PtxScopes::DeclareLabel(const std::string& label) {
  std::string renamed = current_ == 0 ? label : absl::StrCat("$S", current_, "_", label);
  return scopes_[current_].labels.emplace(label, renamed).second ? renamed : "";
}

const std::string* PtxScopes::FindLabel(uint32_t scope, const std::string& label) const {
  for (;; scope = scopes_[scope].parent) {
    const auto found = scopes_[scope].labels.find(label);
    if (found != scopes_[scope].labels.end()) return &found->second;
    if (scope == 0) return nullptr;
  }
}

}  // namespace resident
