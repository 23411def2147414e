// A script of changes of a state store, and a description of a store's contents: for tests that
// kill a process during the script and then check what a restart finds.
#ifndef RESIDENT_RUNTIME_STATE_SCRIPT_FOR_TEST_H_
#define RESIDENT_RUNTIME_STATE_SCRIPT_FOR_TEST_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/state/state_store.h"

namespace resident {

// So small that the store copies its log into the database several times during the script.
inline constexpr uint64_t kScriptCheckpointBytes = 60'000;

inline RegistryChange InstallChange(const std::string& name, uint32_t version, uint32_t active,
                                    const VersionSpec* spec) {
  RegistryChange change;
  change.kind = EventKind::kInstalled;
  change.name = name;
  change.version = change.standby_version = version;
  change.active_version = change.previous_version = active;
  change.spec = spec;
  change.slot = 100 + version;
  return change;
}

inline RegistryChange SwitchChange(EventKind kind, const std::string& name, uint32_t to,
                                   uint32_t from) {
  RegistryChange change;
  change.kind = kind;
  change.name = name;
  change.version = change.active_version = to;
  change.previous_version = change.standby_version = from;
  return change;
}

// Makes a change like a daemon: appends it and syncs it.
inline absl::StatusOr<uint64_t> AppendAndSync(StateStore& store, const RegistryChange& change,
                                              const StateStore::Origin& origin) {
  absl::StatusOr<uint64_t> revision = store.Append(change, origin);
  if (!revision.ok()) return revision;
  const absl::Status synced = store.Sync();
  if (!synced.ok()) return synced;
  return revision;
}

using ScriptStep = std::function<absl::Status(StateStore& store)>;

inline std::vector<ScriptStep> MakeScript() {
  const auto append = [](RegistryChange change) {
    return [change](StateStore& store) {
      return AppendAndSync(store, change, {.actor = "alice"}).status();
    };
  };
  const auto install = [](uint32_t version, uint32_t active, std::vector<uint32_t> retired) {
    return [=](StateStore& store) -> absl::Status {
      const auto blob = store.PutBlob(absl::StrCat("source of version ", version));
      if (!blob.ok()) return blob.status();
      VersionSpec spec;
      spec.signature = "x: in f32[*S], out: out f32[*S]";
      spec.content_hash = absl::StrCat("hash", version);
      spec.task_time_limit = std::chrono::milliseconds(250);
      spec.isolation = version == 1 ? Isolation::kStoppable : Isolation::kTrusted;
      spec.isolation_reason = absl::StrCat("reason ", version);
      RegistryChange change = InstallChange("swish", version, active, &spec);
      change.retired = retired;
      change.label = "newest";
      return AppendAndSync(store, change,
                           {.actor = "alice",
                            .content = {.body = "swish.cc", .blobs = {{"file/swish.cc", *blob}}}})
          .status();
    };
  };
  const auto buffer = [](uint64_t id, char fill, size_t bytes) {
    return [=](StateStore& store) {
      const std::vector<uint8_t> contents(bytes, static_cast<uint8_t>(fill));
      return store.PutBuffer({.id = id,
                              .name = "weights",
                              .dtype = 7,
                              .shape = {static_cast<int64_t>(bytes)},
                              .size_bytes = bytes},
                             contents);
    };
  };
  RegistryChange quarantine = SwitchChange(EventKind::kQuarantined, "swish", 2, 3);
  quarantine.version = 3;
  quarantine.reason = "stored to null";
  RegistryChange trial = SwitchChange(EventKind::kPromoted, "swish", 2, 2);
  trial.version = trial.standby_version = 3;
  trial.traffic_percent = 10;
  RegistryChange removal;
  removal.kind = EventKind::kRemoved;
  removal.name = "swish";
  removal.version = removal.previous_version = 2;
  removal.retired = {2, 3};
  return {
      install(1, 0, {}),
      append(SwitchChange(EventKind::kActivated, "swish", 1, 0)),
      buffer(7, 'a', 1000),
      install(2, 1, {}),
      append(SwitchChange(EventKind::kActivated, "swish", 2, 1)),
      append(SwitchChange(EventKind::kRolledBack, "swish", 1, 2)),
      append(SwitchChange(EventKind::kActivated, "swish", 2, 1)),
      buffer(7, 'b', 1000),
      install(3, 2, {1}),
      append(trial),
      append(SwitchChange(EventKind::kActivated, "swish", 3, 2)),
      [](StateStore& store) {
        return store.AppendEvent({.kind = EventKind::kGeneration, .generation = 4}).status();
      },
      append(quarantine),
      buffer(8, 'c', 10),
      [](StateStore& store) { return store.DropBuffer(7); },
      append(removal),
      install(4, 0, {}),
  };
}

// Describes everything that a restart must restore.
inline std::string Describe(const StateStore& store) {
  std::string text =
      absl::StrCat("revision ", store.revision(), " generation ", store.generation(), "\n");
  for (const StoredOperator& op : store.operators()) {
    absl::StrAppend(&text, op.name, " revision ", op.revision, " last ", op.last_version, " trial ",
                    op.trial_version, " ", op.traffic_percent, "\n");
    for (const StoredVersion& version : op.versions) {
      absl::StrAppend(&text, "  ", version.version, " ", VersionStateName(version.state),
                      version.in_slot ? " in slot " : " ", version.slot, " ",
                      version.spec.content_hash, " ", version.spec.task_time_limit.count(), " ",
                      IsolationName(version.spec.isolation), " ", version.spec.isolation_reason,
                      " ", version.quarantine_reason, " label '", version.label, "'");
      for (const auto& [name, sha256] : version.content.blobs) {
        const auto blob = store.GetBlob(sha256);
        absl::StrAppend(&text, " ", name, "=", blob.ok() ? *blob : blob.status().ToString());
      }
      absl::StrAppend(&text, "\n");
    }
  }
  for (const StoredRemoval& removal : store.removed()) {
    absl::StrAppend(&text, "removed ", removal.name, " ", removal.last_version, "\n");
  }
  for (const StoredBuffer& buffer : store.buffers()) {
    const auto contents = store.ReadBuffer(buffer.id);
    absl::StrAppend(&text, "buffer ", buffer.id, " ", buffer.name, " ", buffer.shape[0], " ",
                    contents.ok() ? *contents : contents.status().ToString(), "\n");
  }
  const auto events = store.EventsBefore(0, "", 1000);
  for (const OperatorEvent& event : events) {
    absl::StrAppend(&text, "event ", event.revision, " ", static_cast<int>(event.kind), " ",
                    event.operator_name, " ", event.version, " ", event.actor, " ",
                    event.content_hash, "\n");
  }
  return text;
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_SCRIPT_FOR_TEST_H_
