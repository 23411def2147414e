// RegistryCatalog: the operators that serve, for checks of graphs. It reads the registry's listing,
// so that a check does not count as a request of a version on trial.
//
// Thread safety: that of the registry.
#ifndef RESIDENT_SERVER_CORE_REGISTRY_CATALOG_H_
#define RESIDENT_SERVER_CORE_REGISTRY_CATALOG_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/graph/operator_catalog.h"
#include "runtime/operators/registry/registry.h"

namespace resident {

class RegistryCatalog final : public graph::OperatorCatalog {
 public:
  explicit RegistryCatalog(const Registry& registry) : registry_(registry) {}

  absl::StatusOr<graph::OperatorInfo> Find(const std::string& name,
                                           uint32_t version) const override;

 private:
  const Registry& registry_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_REGISTRY_CATALOG_H_
