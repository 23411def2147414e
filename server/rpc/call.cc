#include "server/rpc/call.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/errors/reason.h"
#include "runtime/base/status_macros.h"
#include "server/auth/errors.h"
#include "server/auth/method_roles.h"
#include "server/auth/presented.h"

namespace resident {

std::string ReadSessionId(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("resident-session");
  if (found == metadata.end()) return "";
  return std::string(found->second.data(), found->second.size());
}

absl::StatusOr<std::shared_ptr<Identity>> IdentifyCaller(const grpc::CallbackServerContext& context,
                                                         const Core& core) {
  if (!core.credentials) return core.access.anonymous();
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  return core.access.Identify(PresentedBy(context.client_metadata(), *auth));
}

LiveStreams::Recheck MakeRecheck(const grpc::CallbackServerContext& context, const Core& core,
                                 RoleSet any_of, const std::string& method) {
  if (!core.credentials) return nullptr;
  const auto identity = IdentifyCaller(context, core);
  if (!identity.ok()) return [status = identity.status()] { return status; };
  return [identity = *identity, any_of, method] { return identity->Has(any_of, method); };
}

absl::StatusOr<std::shared_ptr<Client>> FindClient(const grpc::CallbackServerContext& context,
                                                   Core& core) {
  ASSIGN_OR_RETURN(const auto identity, IdentifyCaller(context, core));
  const std::string session = ReadSessionId(context);
  absl::StatusOr<std::shared_ptr<Client>> client =
      core.clients.ForCall(session, session.empty() ? context.peer() : "", identity->account());
  if (!client.ok() && core.gate.draining()) {
    // The drain has ended the session; a client that learns of it can go to another daemon.
    const auto reason = errors::FindReason(client.status());
    if (reason.has_value() && reason->name == "UNKNOWN_SESSION") return errors::Draining();
  }
  return client;
}

absl::StatusOr<std::shared_ptr<Client>> FindSessionClient(
    const grpc::CallbackServerContext& context, Core& core) {
  if (ReadSessionId(context).empty()) return errors::NoSession();
  return FindClient(context, core);
}

absl::StatusOr<std::string> AuthorizeChange(const grpc::CallbackServerContext& context,
                                            const Core& core, const std::string& operator_name,
                                            RoleSet any_of, ChangeContext* change) {
  ASSIGN_OR_RETURN(const auto identity, IdentifyCaller(context, core));
  RETURN_IF_ERROR(identity->account()->MayInstall(operator_name, any_of));
  RETURN_IF_ERROR(CheckOwnOperator(*identity->account(), core, operator_name));
  if (change != nullptr) change->authorize = CheckOwnOperatorAgain(identity, core, operator_name);
  return identity->name();
}

absl::Status CheckOwnOperator(const Account& account, const Core& core,
                              const std::string& operator_name) {
  if (!account.only_confined()) return absl::OkStatus();
  const absl::StatusOr<OperatorView> found = core.registry.Describe(operator_name);
  if (!found.ok()) return absl::OkStatus();  // There is none yet, or the change reports it.
  for (const VersionView& version : found->versions) {
    const std::string name = absl::StrCat("version ", version.version);
    if (!IsGenerated(version.spec.kind)) {
      return errors::NotOwnOperator(account.name(), operator_name,
                                    absl::StrCat(name, " is neither an expression nor bytecode"));
    }
    if (version.spec.installed_by != account.name()) {
      return errors::NotOwnOperator(account.name(), operator_name,
                                    absl::StrCat(name, " was installed by another identity"));
    }
  }
  return absl::OkStatus();
}

std::function<absl::Status()> CheckOwnOperatorAgain(std::shared_ptr<Identity> identity,
                                                    const Core& core,
                                                    const std::string& operator_name) {
  return [identity = std::move(identity), &core, operator_name] {
    return CheckOwnOperator(*identity->account(), core, operator_name);
  };
}

MessageLimits FindMessageLimits(const Core& core, std::string_view method) {
  const Budget& host = core.admission.host();
  return {.objects = FindMethodRule(method).max_objects,
          .bytes = std::min(host.client_limit(), host.limit())};
}

Clock::time_point ReadDeadline(const grpc::CallbackServerContext& context, Clock::time_point now) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return Clock::time_point::max();
  const auto left = deadline - std::chrono::system_clock::now();
  // A deadline over a century away counts as none, so that the addition cannot overflow.
  if (left > std::chrono::hours(24 * 365 * 100)) return Clock::time_point::max();
  return now + std::chrono::duration_cast<Clock::duration>(left);
}

}  // namespace resident
