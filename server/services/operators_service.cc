#include "server/services/operators_service.h"

#include <vector>

#include "server/status.h"

namespace resident {
namespace {

// What the first GPU engine reports of each slot; the CPU engine has nothing to report.
std::vector<OperatorResources> ResourcesOf(const Core& core) {
  for (const Device* device : core.devices) {
    const EngineInfo info = device->snapshot().info;
    if (info.kind == "cuda" && !info.operators.empty()) return info.operators;
  }
  return {};
}

void Describe(const Operator& op, const std::vector<OperatorResources>& resources,
              v1::Operator* out) {
  out->set_name(op.name());
  out->set_summary(op.summary());
  out->set_active_version(op.active().version);
  out->set_wide(op.split().parameter >= 0);
  for (const Parameter& parameter : op.signature().parameters()) {
    v1::Parameter* p = out->add_parameters();
    p->set_name(parameter.name);
    p->set_kind(static_cast<v1::Parameter::Kind>(parameter.kind));
    for (const DType dtype : parameter.dtypes) p->add_dtypes(static_cast<v1::DType>(dtype));
    p->set_min_rank(parameter.min_rank);
    p->set_max_rank(parameter.max_rank);
  }
  for (const auto& version : op.versions()) {
    v1::OperatorVersion* v = out->add_versions();
    v->set_version(version->version);
    v->set_state(version.get() == &op.active() ? "active" : "standby");
    v->set_slot(version->slot);
    v->set_builtin(version->builtin);
    for (const OperatorResources& use : resources) {
      if (use.operator_slot != version->slot) continue;
      v->mutable_resources()->set_registers(use.registers);
      v->mutable_resources()->set_stack_bytes(use.stack_bytes);
      v->mutable_resources()->set_shared_bytes(use.shared_bytes);
      v->mutable_resources()->set_code_bytes(use.code_bytes);
    }
  }
}

}  // namespace

grpc::ServerUnaryReactor* OperatorsService::List(grpc::CallbackServerContext* context,
                                                 const v1::ListOperatorsRequest*,
                                                 v1::ListOperatorsResponse* response) {
  const std::vector<OperatorResources> resources = ResourcesOf(core_);
  for (const Operator* op : core_.registry->List()) {
    resident::Describe(*op, resources, response->add_operators());
  }
  auto* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* OperatorsService::Describe(grpc::CallbackServerContext* context,
                                                     const v1::DescribeOperatorRequest* request,
                                                     v1::DescribeOperatorResponse* response) {
  const auto op = core_.registry->Resolve(request->name(), 0);
  if (op.ok()) resident::Describe(*op->op, ResourcesOf(core_), response->mutable_operator_());
  auto* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(op.status()));
  return reactor;
}

}  // namespace resident
