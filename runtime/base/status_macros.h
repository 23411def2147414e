// RETURN_IF_ERROR and ASSIGN_OR_RETURN: return an error to the caller.
//
// For functions that return absl::Status or absl::StatusOr<T>.
//
//   absl::Status Load(const std::string& path, Table* table) {
//     ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
//     RETURN_IF_ERROR(table->Parse(contents));
//     return absl::OkStatus();
//   }
//
// A type with a comma does not fit ASSIGN_OR_RETURN's first argument: write `const auto x`.
#ifndef RESIDENT_RUNTIME_BASE_STATUS_MACROS_H_
#define RESIDENT_RUNTIME_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the expression's status from the calling function, unless it is OK.
#define RETURN_IF_ERROR(...)                                                 \
  do {                                                                       \
    if (absl::Status status_ = (__VA_ARGS__); !status_.ok()) return status_; \
  } while (false)

// Declares or assigns `lhs` with the value of the expression, an absl::StatusOr. If it has no
// value, returns its status from the calling function.
#define ASSIGN_OR_RETURN(lhs, ...) \
  RESIDENT_ASSIGN_OR_RETURN_(RESIDENT_CONCAT_(status_or_, __LINE__), lhs, __VA_ARGS__)

#define RESIDENT_ASSIGN_OR_RETURN_(variable, lhs, ...)     \
  auto variable = (__VA_ARGS__);                           \
  if (!variable.ok()) return std::move(variable).status(); \
  lhs = *std::move(variable)
#define RESIDENT_CONCAT_(a, b) RESIDENT_CONCAT_INNER_(a, b)
#define RESIDENT_CONCAT_INNER_(a, b) a##b

#endif  // RESIDENT_RUNTIME_BASE_STATUS_MACROS_H_
