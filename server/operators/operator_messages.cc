#include "server/operators/operator_messages.h"

#include <chrono>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"
#include "runtime/operators/errors.h"
#include "server/operators/errors.h"
#include "server/workload/errors.h"

namespace resident {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr uint64_t kMaxBakeMs = 30ull * 24 * 3600 * 1000;

bool IsPlan(std::string_view plan) { return plan.size() == kMaxHashDigits && IsContentHash(plan); }

uint64_t Microseconds(std::chrono::nanoseconds time) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

// The number of bytes of the UTF-8 character at the start of `text`; 0: none.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and values beyond Unicode.
  if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) > 0x9F) ||
      (first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) > 0x8F)) {
    return 0;
  }
  return size;
}

std::string Shortened(const std::string& log) {
  if (log.size() <= kMaxInstallLogBytes) return ToUtf8(log);
  return absl::StrCat(ToUtf8(std::string_view(log).substr(0, kMaxInstallLogBytes)), "\n... ",
                      log.size() - kMaxInstallLogBytes, " bytes more\n");
}

}  // namespace

absl::StatusOr<BakeOptions> ParseBake(const v1::BakeOptions& message) {
  if (!v1::BakeOptions::Action_IsValid(message.action())) {
    return errors::UnknownEnum("BakeOptions.action", message.action(),
                               "ACTION_OFF, ACTION_WARN, ACTION_ROLL_BACK");
  }
  if (message.time_ms() > kMaxBakeMs) return errors::BakeTime(message.time_ms(), kMaxBakeMs);
  const auto share = [](double value) { return value >= 0 && value <= 1; };
  if (!share(message.max_error_rate())) {
    return errors::BakeThreshold("max_error_rate", message.max_error_rate(), "a share from 0 to 1");
  }
  if (!share(message.max_mismatch_rate())) {
    return errors::BakeThreshold("max_mismatch_rate", message.max_mismatch_rate(),
                                 "a share from 0 to 1");
  }
  if (!std::isfinite(message.max_latency_ratio()) || message.max_latency_ratio() < 0) {
    return errors::BakeThreshold("max_latency_ratio", message.max_latency_ratio(),
                                 "a ratio such as 1.5");
  }
  BakeOptions bake;
  bake.action = static_cast<BakeAction>(message.action());
  bake.time = std::chrono::milliseconds(message.time_ms());
  bake.max_error_rate = message.max_error_rate();
  bake.max_latency_ratio = message.max_latency_ratio();
  bake.max_mismatch_rate = message.max_mismatch_rate();
  bake.min_tasks = message.min_tasks();
  return bake;
}

void DescribeParameter(const Parameter& parameter, const Signature& signature, v1::Parameter* out) {
  out->set_name(parameter.name);
  out->set_kind(static_cast<v1::Parameter::Kind>(parameter.kind));
  for (const DType dtype : parameter.dtypes) out->add_dtypes(static_cast<v1::DType>(dtype));
  out->set_min_rank(parameter.min_rank);
  out->set_max_rank(parameter.max_rank);
  for (const DimPattern& dim : parameter.dims) {
    v1::Dim* const d = out->add_shape();
    const bool fixed = dim.kind == DimPattern::Kind::kFixed;
    const std::string variable = fixed ? "" : signature.variables()[dim.variable];
    switch (dim.kind) {
      case DimPattern::Kind::kFixed:
        d->set_size(static_cast<uint64_t>(dim.size));
        break;
      case DimPattern::Kind::kNamed:
        d->set_name(variable);
        break;
      case DimPattern::Kind::kSpread:
        d->set_spread(variable.substr(1));  // Without "*".
        break;
      case DimPattern::Kind::kBroadcast:
        d->set_broadcast(variable.substr(1));
        break;
    }
  }
  out->set_strided(parameter.strided);
  if (!parameter.default_bits.has_value()) return;
  const Element value = ReadElement(parameter.dtypes[0], &*parameter.default_bits);
  if (value.floating) {
    out->set_default_f64(value.real);
  } else {
    out->set_default_i64(value.integer);
  }
}

std::string ToUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t size = CharacterBytes(text);
    out.append(size == 0 ? kReplacement : text.substr(0, size));
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return out;
}

void FillProgress(const InstallProgress& progress, v1::InstallResponse* out) {
  out->set_state(static_cast<v1::VersionState>(progress.state));
  out->set_version(progress.version);
  out->set_revision(progress.revision);
  out->set_duration_us(Microseconds(progress.duration));
  for (const auto& [name, duration] : progress.steps) {
    v1::StepDuration* step = out->add_steps();
    step->set_step(ToUtf8(name));
    step->set_duration_us(Microseconds(duration));
  }
  out->set_cached(progress.cached);
  out->set_log(Shortened(progress.log));
  for (const auto& [architecture, use] : progress.resources) {
    v1::ResourceUse& resources = (*out->mutable_resources())[architecture];
    resources.set_registers(use.registers);
    resources.set_stack_bytes(use.stack_bytes);
    resources.set_shared_bytes(use.shared_bytes);
    resources.set_code_bytes(use.code_bytes);
  }
  out->set_message(ToUtf8(progress.message));
}

void FillEvent(const OperatorEvent& event, v1::OperatorEvent* out) {
  out->set_revision(event.revision);
  out->set_time_ms(event.time_ms);
  out->set_kind(static_cast<v1::OperatorEvent::Kind>(event.kind));
  out->set_operator_(ToUtf8(event.operator_name));
  out->set_version(event.version);
  out->set_actor(ToUtf8(event.actor));
  out->set_content_hash(ToUtf8(event.content_hash));
  out->set_message(ToUtf8(event.message));
  out->set_generation(event.generation);
  out->set_plan(event.plan);
  out->set_set(event.set);
}

absl::StatusOr<SwitchRequest> ParseSwitch(const v1::ActivateRequest& message) {
  ASSIGN_OR_RETURN(const auto bake, ParseBake(message.bake()));
  SwitchRequest request;
  request.name = message.name();
  request.version = message.version();
  if (message.has_expected_revision()) request.expected_revision = message.expected_revision();
  request.force = message.force();
  request.bake = bake;
  ASSIGN_OR_RETURN(request.context, ParseContext(message.context()));
  return request;
}

absl::StatusOr<SwitchRequest> ParseSwitch(const v1::RollbackRequest& message) {
  SwitchRequest request;
  ASSIGN_OR_RETURN(request.context, ParseContext(message.context()));
  request.name = message.name();
  if (message.has_expected_revision()) request.expected_revision = message.expected_revision();
  return request;
}

absl::StatusOr<PromoteRequest> ParsePromote(const v1::PromoteRequest& message) {
  const auto percentage = [](double value) { return value >= 0 && value <= 100; };
  if (!percentage(message.shadow_percent())) {
    return errors::PromoteShare("shadow_percent", message.shadow_percent());
  }
  if (!percentage(message.traffic_percent())) {
    return errors::PromoteShare("traffic_percent", message.traffic_percent());
  }
  ASSIGN_OR_RETURN(const auto bake, ParseBake(message.bake()));
  PromoteRequest request;
  request.name = message.name();
  request.version = message.version();
  if (message.has_expected_revision()) request.expected_revision = message.expected_revision();
  request.shadow_percent = message.shadow_percent();
  request.traffic_percent = message.traffic_percent();
  request.bake = bake;
  ASSIGN_OR_RETURN(request.context, ParseContext(message.context()));
  return request;
}

absl::StatusOr<ChangeContext> ParseContext(const v1::ChangeContext& message) {
  if (!message.plan().empty() && !IsPlan(message.plan())) return errors::BadPlan(message.plan());
  if (!message.set().empty() && !IsSetName(message.set())) return errors::BadSet(message.set());
  if (message.lease() != 0 && message.plan().empty()) return errors::BadPlan("");
  return ChangeContext{message.plan(), message.set(), message.lease(), message.drift()};
}

absl::StatusOr<std::optional<PlanState>> ParsePlanState(v1::PlanState::State state,
                                                        const char* field) {
  if (!v1::PlanState::State_IsValid(state)) {
    return errors::UnknownEnum(field, state, "STATE_RUNNING, STATE_FAILED, STATE_DONE");
  }
  if (state == v1::PlanState::STATE_UNSPECIFIED) return std::nullopt;
  return static_cast<PlanState>(state);
}

absl::StatusOr<PlanClaim> ParseClaim(const v1::ClaimRequest& message) {
  if (!IsPlan(message.plan())) return errors::BadPlan(message.plan());
  if (!IsSetName(message.set())) return errors::BadSet(message.set());
  if (message.holder().size() > kMaxHolderBytes) {
    return errors::HolderTooLong(message.holder().size(), kMaxHolderBytes);
  }
  const uint32_t ttl_ms = message.ttl_ms() == 0 ? kDefaultClaimTtlMs : message.ttl_ms();
  if (ttl_ms < kMinClaimTtlMs || ttl_ms > kMaxClaimTtlMs) {
    return errors::ClaimTtl(ttl_ms, kMinClaimTtlMs, kMaxClaimTtlMs);
  }
  if (message.names_size() > static_cast<int>(kMaxClaimedNames)) {
    return errors::TooManyClaimedNames(message.names_size(), kMaxClaimedNames);
  }
  PlanClaim claim;
  ASSIGN_OR_RETURN(claim.state, ParsePlanState(message.state(), "ClaimRequest.state"));
  std::set<std::string_view> seen;
  for (const std::string& name : message.names()) {
    if (name.empty() || name.size() > kMaxOperatorNameBytes || !seen.insert(name).second) {
      return errors::BadClaimedName(name);
    }
  }
  claim.plan = message.plan();
  claim.set = message.set();
  claim.holder = message.holder();
  claim.ttl = std::chrono::milliseconds(ttl_ms);
  claim.names = {message.names().begin(), message.names().end()};
  claim.lease = message.lease();
  claim.steal = message.steal();
  return claim;
}

void FillClaim(const ClaimedPlan& claimed, v1::ClaimResponse* out) {
  out->set_lease(claimed.lease);
  out->set_state(static_cast<v1::PlanState::State>(claimed.record.state));
  out->set_resumed(claimed.resumed);
  for (const auto& [name, content_hash] : claimed.record.before) {
    v1::ClaimResponse::Before* const before = out->add_before();
    before->set_name(ToUtf8(name));
    before->set_content_hash(content_hash);
  }
}

}  // namespace resident
