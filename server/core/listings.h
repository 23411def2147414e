// What Admin.Status, Operators.List, Describe, Watch and Graphs.List show, and what of it only some
// viewers see. The services and the console fill their messages here.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_CORE_LISTINGS_H_
#define RESIDENT_SERVER_CORE_LISTINGS_H_

#include <optional>
#include <string>
#include <vector>

#include "resident/v1/admin.pb.h"
#include "resident/v1/graphs.pb.h"
#include "resident/v1/operators.pb.h"
#include "runtime/device/device.h"
#include "runtime/model/operator_event.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/queue/batch.h"
#include "server/auth/identity.h"
#include "server/core/core.h"
#include "server/graphs/graph_store.h"

namespace resident {

// Whether the caller may see information about others: who installed a version, the hash of its
// content, why it is quarantined (the reason may contain the arguments of another client's task),
// and other identities' clients. Requires the role admin, which every caller has without a policy.
bool MaySeeOthers(const Identity& caller);

// Who reads a listing.
struct Viewer {
  bool sees_others = false;
  // Its clients and its holds of graphs are its own; nullopt: it has no identity and owns nothing.
  std::optional<std::string> name = {};

  static Viewer Of(const Identity& caller);
  bool Sees(const std::string& owner) const { return sees_others || name == owner; }
};

// Facts about the daemon that the core does not have.
struct DaemonFacts {
  Clock::time_point started;
  std::string metrics_address = {};  // Empty: there is no metrics page.
  std::string gpu_unavailable_reason = {};
};

void FillStatus(const Core& core, const DaemonFacts& facts, const Viewer& viewer,
                v1::StatusResponse* out);

// The resources of each slot, from the first engine that reports them.
std::vector<OperatorResources> CollectResources(const Core& core);
void FillOperator(const OperatorView& op, const Core& core,
                  const std::vector<OperatorResources>& resources, const Viewer& viewer,
                  v1::Operator* out);

// Removes what the viewer may not see of an event.
void HideFrom(const Viewer& viewer, OperatorEvent* event);

void FillLoadedGraph(const Core& core, LoadedGraph& graph, const Viewer& viewer,
                     v1::LoadedGraph* out);

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_LISTINGS_H_
