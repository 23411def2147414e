#include <algorithm>
#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/sha256.h"
#include "server/operators/operator_messages.h"

namespace resident {
namespace {

uint64_t Milliseconds(std::chrono::nanoseconds time) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
}

void FillIsolation(const VersionSpec& spec, v1::OperatorVersion* out) {
  out->set_isolation(static_cast<v1::Isolation>(spec.isolation));
  out->set_isolation_reason(ToUtf8(spec.isolation_reason));
  if (spec.isolation != Isolation::kStoppable) return;
  v1::Rewrites* const rewrites = out->mutable_rewrites();
  rewrites->set_loops(spec.rewritten.loops);
  rewrites->set_counted_loops(spec.rewritten.counted_loops);
  rewrites->set_short_loops(spec.rewritten.short_loops);
  rewrites->set_endless_loops(spec.rewritten.endless_loops);
  rewrites->set_looks(spec.rewritten.looks);
  rewrites->set_barriers(spec.rewritten.barriers);
  rewrites->set_warp_operations(spec.rewritten.warp_operations);
}

}  // namespace

std::vector<OperatorResources> CollectResources(const Core& core) {
  for (const Device* device : core.devices) {
    const EngineInfo info = device->snapshot().info;
    if (!info.operators.empty()) return info.operators;
  }
  return {};
}

void FillOperator(const OperatorView& op, const Core& core,
                  const std::vector<OperatorResources>& resources, const Viewer& viewer,
                  v1::Operator* out) {
  out->set_name(op.op->name());
  out->set_summary(op.summary);
  out->set_active_version(op.active_version);
  out->set_wide(op.wide);
  out->set_revision(op.revision);
  out->set_signature(op.op->signature_text());
  out->set_family(op.family);
  out->set_notes(op.notes);
  out->set_example(op.example);
  out->set_cost(op.cost);
  for (const Parameter& parameter : op.op->signature().parameters()) {
    DescribeParameter(parameter, op.op->signature(), out->add_parameters());
  }
  for (const VersionView& version : op.versions) {
    v1::OperatorVersion* v = out->add_versions();
    v->set_version(version.version);
    v->set_state(VersionStateName(version.state));
    v->set_state_code(static_cast<v1::VersionState>(version.state));
    v->set_slot(version.slot == kNoSlot ? 0 : version.slot);
    v->set_builtin(version.builtin);
    if (viewer.sees_others) {
      v->set_content_hash(version.spec.content_hash);
      v->set_installed_by(version.spec.installed_by);
      v->set_quarantine_reason(version.quarantine_reason);
    }
    v->set_label(version.label);
    v->set_set(version.spec.set);
    v->set_active_for_ms(Milliseconds(version.active_for));
    v->set_installed_ms(version.spec.installed_ms);
    v->set_tasks(version.tasks());
    v->set_failed_tasks(version.failed_tasks());
    v->set_kind(OperatorKindName(version.spec.kind));
    FillIsolation(version.spec, v);
    if (version.native.has_value()) {
      v->mutable_native()->set_state(static_cast<v1::NativeForm::State>(version.native->state));
      v->mutable_native()->set_reason(ToUtf8(version.native->reason));
    }
    for (const OperatorResources& use : resources) {
      if (version.slot == kNoSlot || use.operator_slot != version.slot) continue;
      v->mutable_resources()->set_registers(use.registers);
      v->mutable_resources()->set_stack_bytes(use.stack_bytes);
      v->mutable_resources()->set_shared_bytes(use.shared_bytes);
      v->mutable_resources()->set_code_bytes(use.code_bytes);
    }
  }
  if (op.trial.version != 0) {
    v1::Trial* trial = out->mutable_trial();
    trial->set_version(op.trial.version);
    trial->set_shadow_percent(op.trial.shadow_percent);
    trial->set_traffic_percent(op.trial.traffic_percent);
    const OperatorManager::TrialCounters found = core.operators.trial_counters(op.op->name());
    trial->set_shadow_tasks(found.shadow_tasks);
    trial->set_shadow_mismatches(found.shadow_mismatches);
    trial->set_latency_ratio(found.latency_ratio);
  }
}

namespace {

void FillPlans(const PlanTable& plans, v1::SummaryResponse* out) {
  for (const PlanRecord& plan : plans.plans) {
    v1::PlanState* const added = out->add_plans();
    added->set_plan(plan.plan);
    added->set_set(plan.set);
    added->set_state(static_cast<v1::PlanState::State>(plan.state));
    added->set_claimed(plans.lease != 0 && plans.claimed == plan.plan);
    added->set_holder(ToUtf8(plan.holder));
    added->set_age_ms(static_cast<uint64_t>(
        std::max<int64_t>(0, absl::ToUnixMillis(absl::Now()) - plan.claimed_ms)));
  }
}

uint64_t CountEngineFailures(const Core& core) {
  uint64_t failures = 0;
  for (const Device* device : core.devices) {
    for (const auto& [reason, count] : device->snapshot().restarts_by_reason) {
      if (reason == EngineEndReason::kFault || reason == EngineEndReason::kHang) failures += count;
    }
  }
  return failures;
}

}  // namespace

void FillSummary(const Core& core, v1::SummaryResponse* out) {
  out->set_node_id(core.node.id);
  out->set_node_name(core.node.name);
  out->set_engine_failures(CountEngineFailures(core));
  out->set_serving(core.ready());
  FillPlans(core.operators.plans(), out);
  Sha256 digest;
  for (const OperatorView& op : core.registry.List()) {
    if (op.revision == 0) continue;  // Built in.
    v1::SummaryResponse::Operator* const summary = out->add_operators();
    summary->set_name(op.op->name());
    summary->set_revision(op.revision);
    for (const uint32_t number : {op.active_version, op.standby_version}) {
      const VersionView* const version = number == 0 ? nullptr : op.Find(number);
      if (version == nullptr) continue;
      v1::SummaryResponse::Version* const added = summary->add_versions();
      added->set_content_hash(version->spec.content_hash);
      // A version takes its new state shortly after it has begun to serve.
      added->set_state(number == op.active_version ? v1::VERSION_STATE_ACTIVE
                                                   : static_cast<v1::VersionState>(version->state));
      added->set_label(version->label);
      added->set_version(number);
      added->set_set(version->spec.set);
      added->set_active_for_ms(Milliseconds(version->active_for));
      added->set_tasks(version->tasks());
      if (number == op.trial.version) added->set_trial_percent(op.trial.traffic_percent);
      if (number != op.active_version) continue;
      digest.Field(op.op->name()).Field(version->spec.content_hash).Field(version->label);
    }
  }
  out->set_digest(digest.Hex());
}

void HideFrom(const Viewer& viewer, OperatorEvent* event) {
  if (viewer.sees_others) return;
  event->actor.clear();
  event->content_hash.clear();
  event->message.clear();
  event->plan.clear();
  event->set.clear();
}

}  // namespace resident
