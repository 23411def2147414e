#include "server/core/registry_catalog.h"

#include "runtime/base/status_macros.h"
#include "runtime/operators/errors.h"
#include "server/core/errors.h"

namespace resident {

absl::StatusOr<graph::OperatorInfo> RegistryCatalog::Find(const std::string& name,
                                                          uint32_t version) const {
  ASSIGN_OR_RETURN(const OperatorView view, registry_.Describe(name));
  if (name == kCompareOperator || name == kFluxRunOperator) {
    return errors::OperatorNotForGraphs(name, "only the daemon itself calls it");
  }
  if (view.op->bytecode()) {
    return errors::OperatorNotForGraphs(name, "it is a FLUX program");
  }
  const uint32_t wanted = version == 0 ? view.active_version : version;
  const VersionView* const found = view.Find(wanted);
  if (version == 0 && found == nullptr) {
    return errors::NoActiveVersion(name, view.standby_version, "");
  }
  if (found == nullptr) return errors::UnknownVersion(name, version, view.active_version);
  if (found->state == VersionState::kQuarantined) {
    return errors::VersionQuarantined(name, wanted, PublicReason(found->quarantine_reason));
  }
  if (found->slot == kNoSlot) {
    return errors::OperatorNotForGraphs(name, "this version is not in the kernel any more");
  }
  graph::OperatorInfo info;
  info.name = name;
  info.version = wanted;
  info.signature = view.op->signature();
  info.split = found->split;
  ASSIGN_OR_RETURN(info.cost, ParseCost(view.cost, info.signature));
  info.builtin = found->builtin;
  info.early_reads = found->early_reads;
  info.family = view.family;
  return info;
}

}  // namespace resident
