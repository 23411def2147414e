// Restores the daemon's operators after a restart.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/unit.h"
#include "runtime/operators/install/live_operator_manager.h"
#include "runtime/operators/install/version_builder.h"

namespace resident {

absl::Status LiveOperatorManager::Restore(std::vector<std::string>* warnings) {
  for (const StoredRemoval& removal : sources_.state->removed()) {
    sources_.registry->RestoreRemoved(removal.name, removal.last_version);
  }
  bool any = false;
  for (const StoredOperator& stored : sources_.state->operators()) {
    Registry::RestoredOperator op;
    op.name = stored.name;
    op.revision = stored.revision;
    op.last_version = stored.last_version;
    for (const StoredVersion& version : stored.versions) {
      std::string why;
      auto restored = RestoreVersion(stored.name, version, &why);
      if (!restored) {
        warnings->push_back(absl::StrCat("version ", version.version, " of ", stored.name,
                                         " was not restored: ", why));
        continue;
      }
      if (restored->version == stored.trial_version) {
        op.trial = {stored.trial_version, stored.traffic_percent, stored.shadow_percent};
      }
      any |= restored->in_slot;
      op.versions.push_back(*std::move(restored));
    }
    const absl::Status status = sources_.registry->Restore(op);
    if (!status.ok()) {
      warnings->push_back(absl::StrCat(stored.name, " was not restored: ", status.message()));
    }
    if (!status.ok() || op.versions.empty()) {
      // Its version numbers stay used: results and the audit log contain them.
      sources_.registry->RestoreRemoved(stored.name, stored.last_version);
    }
  }
  if (any) {
    RETURN_IF_ERROR(loader_.Reload());
  }
  for (const OperatorView& op : sources_.registry->List()) {
    if (op.op->bytecode() && op.active_version != 0) {
      RequestNativeForm(op.op->name(), op.active_version);
    }
  }
  return absl::OkStatus();
}

std::optional<Registry::RestoredVersion> LiveOperatorManager::RestoreVersion(
    const std::string& name, const StoredVersion& stored, std::string* why) {
  Registry::RestoredVersion version;
  version.version = stored.version;
  version.state = stored.state;
  version.slot = stored.slot;
  version.spec = stored.spec;
  version.in_slot = stored.in_slot;
  version.quarantine_reason = stored.quarantine_reason;
  version.label = stored.label;
  if (!stored.in_slot) return version;  // Only for listings.

  BuildRequest build{.operator_name = name,
                     .content_hash = stored.spec.content_hash,
                     .kind = stored.spec.kind == OperatorKind::kObject ? OperatorKind::kObject
                                                                       : OperatorKind::kSource,
                     .main_file = stored.content.body,
                     .files = {},
                     .allow_spills = stored.spec.allow_spills,
                     // If it does not pass any more, it is left out.
                     .isolation = stored.spec.isolation,
                     .default_isolation = Isolation::kTrusted,
                     .scratch_bytes = stored.spec.scratch_bytes};
  for (const auto& [file, hash] : stored.content.blobs) {
    auto blob = sources_.state->GetBlob(hash);
    if (!blob.ok()) {
      *why = std::string(blob.status().message());
      return std::nullopt;
    }
    build.files[file] = *std::move(blob);
  }
  if (stored.spec.kind == OperatorKind::kBytecode) {
    if (build.files.empty()) {
      *why = "its program is not in the state folder";
      return std::nullopt;
    }
    version.spec.bytecode =
        std::make_shared<const std::string>(std::move(build.files.begin()->second));
    return version;
  }
  absl::Status usable = CheckMainFile(build.files, build.main_file);
  BuiltVersion built;
  if (usable.ok()) {
    std::string log;
    auto compiled = builder_.Build(build, &log);
    usable = compiled.status();
    if (compiled.ok()) built = *std::move(compiled);
  }
  if (usable.ok()) usable = built.inspected;
  if (!usable.ok()) {
    *why = std::string(usable.message());
    return std::nullopt;
  }
  version.spec.isolation = built.isolation;
  version.spec.rewritten = built.rewritten;
  version.payload = std::move(built.payload);
  return version;
}

}  // namespace resident
