// Role: the rights of a caller, as four roles.
//
//   submit            run operators, have buffers and sessions
//   install           change operators: install, activate, roll back, promote, remove
//   install_confined  the same for operators whose code the daemon generates itself, from
//                     expressions and bytecode, and only for those that the caller installed
//   admin             read the audit log; park, resume, drain, reflection, channelz
//
// No role includes another one. See method_roles.h for the roles that calls need.
//
// Thread safety: values.
#ifndef RESIDENT_SERVER_AUTH_ROLE_H_
#define RESIDENT_SERVER_AUTH_ROLE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace resident {

enum class Role : uint8_t { kSubmit = 1, kInstall = 2, kAdmin = 4, kInstallConfined = 8 };

class RoleSet {
 public:
  constexpr RoleSet() = default;
  constexpr RoleSet(Role role) : bits_(static_cast<uint8_t>(role)) {}  // NOLINT: implicit.
  static constexpr RoleSet All() {
    return RoleSet(Role::kSubmit) | Role::kInstall | Role::kAdmin | Role::kInstallConfined;
  }

  constexpr RoleSet operator|(RoleSet other) const {
    RoleSet both;
    both.bits_ = static_cast<uint8_t>(bits_ | other.bits_);
    return both;
  }
  constexpr bool Intersects(RoleSet other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const RoleSet&) const = default;

 private:
  uint8_t bits_ = 0;
};

// The roles that may change some operators.
inline constexpr RoleSet kInstallRoles = RoleSet(Role::kInstall) | Role::kInstallConfined;

// Parses "submit" etc.; nullopt for another word.
inline std::optional<Role> ParseRole(std::string_view word) {
  if (word == "submit") return Role::kSubmit;
  if (word == "install") return Role::kInstall;
  if (word == "install_confined") return Role::kInstallConfined;
  if (word == "admin") return Role::kAdmin;
  return std::nullopt;
}

// "'submit' or 'admin'".
inline std::string RoleNames(RoleSet roles) {
  std::string names;
  for (const auto& [role, name] : {std::pair<Role, const char*>{Role::kSubmit, "'submit'"},
                                   {Role::kInstall, "'install'"},
                                   {Role::kInstallConfined, "'install_confined'"},
                                   {Role::kAdmin, "'admin'"}}) {
    if (!roles.Intersects(role)) continue;
    if (!names.empty()) names += " or ";
    names += name;
  }
  return names;
}

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_ROLE_H_
