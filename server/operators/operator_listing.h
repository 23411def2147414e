// What Operators.List, Describe and Watch and the console show of operators.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_OPERATORS_OPERATOR_LISTING_H_
#define RESIDENT_SERVER_OPERATORS_OPERATOR_LISTING_H_

#include <vector>

#include "resident/v1/operators.pb.h"
#include "runtime/device/device.h"
#include "runtime/model/operator_event.h"
#include "runtime/operators/registry/registry.h"
#include "server/core/core.h"
#include "server/core/viewer.h"

namespace resident {

// The resources of each slot, from the first engine that reports them.
std::vector<OperatorResources> CollectResources(const Core& core);
void FillOperator(const OperatorView& op, const Core& core,
                  const std::vector<OperatorResources>& resources, const Viewer& viewer,
                  v1::Operator* out);

// Removes what the viewer may not see of an event.
void HideFrom(const Viewer& viewer, OperatorEvent* event);

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATORS_OPERATOR_LISTING_H_
