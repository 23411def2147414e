
#include "runtime/state/state_check.h"

#include <unistd.h>

#include <chrono>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/version_state.h"
#include "runtime/state/errors.h"
#include "runtime/state/files.h"
#include "runtime/state/state_database.h"
#include "runtime/state/state_model.h"

namespace resident {
namespace {

std::string Plural(uint64_t count, const std::string& what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

// The folder that is inspected, with the results so far.
struct Inspection {
  std::string folder;
  StateModel model;
  bool rewrite = false;  // Repair must rewrite the database.
  StateReport report;
};

// Reads all undamaged parts of the database into the model.
absl::Status InspectDatabase(Inspection& state) {
  std::vector<std::string>& problems = state.report.problems;
  const auto database = StateDatabase::Open(state.folder, {.read_only = true});
  absl::Status status = database.status();
  if (status.ok()) status = (*database)->Read(&state.model, &problems);
  if (absl::IsDataLoss(status)) {
    problems.push_back(errors::WithoutFix(status));
  } else if (!status.ok()) {
    return status;
  }
  state.rewrite = !problems.empty();
  state.report.starts = problems.empty();
  if (database.ok() && (*database)->torn_bytes() > 0 && problems.empty()) {
    problems.push_back(absl::StrCat(
        state.folder, "/state.db-wal: its last ", (*database)->torn_bytes(),
        " bytes are an incomplete transaction: a daemon was killed while it wrote them. A start "
        "drops them"));
  }
  const StateModel& model = state.model;
  state.report.contents.push_back(absl::StrCat(
      "database: ", Plural(model.operators.size(), "operator"), ", ",
      Plural(model.events.size(), "event"), ", ", Plural(model.buffers.size(), "durable buffer"),
      model.graphs.empty() ? "" : absl::StrCat(", ", Plural(model.graphs.size(), "loaded graph")),
      model.models.empty() ? "" : absl::StrCat(", ", Plural(model.models.size(), "model")),
      ", revision ", model.revision, ", generation ", model.generation));
  for (const auto& [name, op] : model.operators) {
    std::vector<std::string> versions;
    for (const StoredVersion& version : op.versions) {
      versions.push_back(absl::StrCat(version.version, " ", VersionStateName(version.state)));
    }
    state.report.contents.push_back(absl::StrCat("operator ", name, ": revision ", op.revision,
                                                 ", ", absl::StrJoin(versions, ", ")));
  }
  return absl::OkStatus();
}

// Returns the files whose contents do not match their names.
absl::StatusOr<std::set<std::string>> FindDamagedFiles(Inspection& state,
                                                       const std::string& folder) {
  std::set<std::string> damaged;
  const absl::StatusOr<std::vector<std::string>> names = ListFiles(folder);
  if (!names.ok() && access(folder.c_str(), F_OK) != 0) return damaged;  // There are no files yet.
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    const std::string path = absl::StrCat(folder, "/", name);
    const absl::StatusOr<std::string> bytes = ReadWholeFile(path);
    if (bytes.ok() && Sha256Hex(*bytes) == name) continue;
    damaged.insert(path);
    state.report.problems.push_back(
        absl::StrCat(path, absl::EndsWith(name, kTemporarySuffix)
                               ? " is incomplete, because a daemon was killed while it wrote it; a "
                                 "start removes it"
                               : " has contents that do not match its name"));
  }
  state.report.contents.push_back(
      absl::StrCat(folder, ": ", Plural(names->size() - damaged.size(), "good file")));
  return damaged;
}

void CheckOperators(Inspection& state, const std::set<std::string>& damaged) {
  for (const auto& [operator_name, op] : state.model.operators) {
    for (const StoredVersion& version : op.versions) {
      for (const auto& [name, sha256] : version.content.blobs) {
        const std::string path = absl::StrCat(state.folder, "/blobs/", sha256);
        if (!damaged.contains(path) && access(path.c_str(), R_OK) == 0) continue;
        state.report.problems.push_back(absl::StrCat(
            "operator ", operator_name, " version ", version.version, ": its ", name, " (", path,
            ") cannot be read; the version still runs if the compile cache has its compiled code"));
      }
    }
  }
}

// Returns the durable buffers whose contents are damaged.
std::set<uint64_t> CheckBuffers(Inspection& state, const std::set<std::string>& damaged) {
  std::set<uint64_t> lost;
  for (const auto& [id, buffer] : state.model.buffers) {
    const std::string name = absl::StrCat(
        "durable buffer ", id, buffer.name.empty() ? "" : absl::StrCat(" '", buffer.name, "'"));
    const std::string path = absl::StrCat(state.folder, "/buffers/", buffer.sha256);
    if (buffer.sha256.empty()) {
      state.report.contents.push_back(
          absl::StrCat(name, ": ", buffer.size_bytes, " bytes, all zeros"));
    } else if (!damaged.contains(path) && access(path.c_str(), R_OK) == 0) {
      state.report.contents.push_back(absl::StrCat(name, ": ", buffer.size_bytes, " bytes"));
    } else {
      lost.insert(id);
      state.report.problems.push_back(absl::StrCat(name, ": ", path, " cannot be read"));
    }
  }
  return lost;
}

// Returns the loaded graphs whose contents are damaged.
std::set<std::string> CheckGraphs(Inspection& state, const std::set<std::string>& damaged) {
  std::set<std::string> lost;
  for (const auto& [id, graph] : state.model.graphs) {
    const std::string path = absl::StrCat(state.folder, "/blobs/", id);
    if (!damaged.contains(path) && access(path.c_str(), R_OK) == 0) continue;
    lost.insert(id);
    state.report.problems.push_back(absl::StrCat("loaded graph: ", path, " cannot be read"));
  }
  return lost;
}

// Returns the models of which a version has damaged contents.
std::set<std::string> CheckModels(Inspection& state, const std::set<std::string>& damaged) {
  std::set<std::string> lost;
  for (const auto& [name, model] : state.model.models) {
    std::set<std::string> blobs;
    for (const StoredModel::Version& version : model.versions) blobs.merge(version.Blobs());
    for (const std::string& blob : blobs) {
      const std::string path = absl::StrCat(state.folder, "/blobs/", blob);
      if (!damaged.contains(path) && access(path.c_str(), R_OK) == 0) continue;
      lost.insert(name);
      state.report.problems.push_back(absl::StrCat("model ", name, ": ", path, " cannot be read"));
    }
  }
  return lost;
}

// Copies the database and its log to names that are not used yet.
absl::Status KeepCopies(Inspection& state) {
  const int64_t now = std::chrono::duration_cast<std::chrono::seconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  for (const char* file : {"state.db", "state.db-wal"}) {
    const absl::StatusOr<std::string> bytes = ReadWholeFile(absl::StrCat(state.folder, "/", file));
    if (absl::IsNotFound(bytes.status()) || (bytes.ok() && bytes->empty())) continue;
    if (!bytes.ok()) return bytes.status();
    std::string copy = absl::StrCat(state.folder, "/", file, ".damaged-", now);
    for (int n = 1; access(copy.c_str(), F_OK) == 0; ++n) {
      copy = absl::StrCat(state.folder, "/", file, ".damaged-", now, "-", n);
    }
    RETURN_IF_ERROR(WriteWholeFile(copy, {*bytes}));
    state.report.repairs.push_back(absl::StrCat("kept the damaged file as ", copy));
  }
  return absl::OkStatus();
}

absl::Status Repair(Inspection& state, const std::set<std::string>& files,
                    const std::set<uint64_t>& buffers, const std::set<std::string>& graphs,
                    const std::set<std::string>& models) {
  absl::Status status;
  if (state.rewrite) {
    status = KeepCopies(state);
    state.report.repairs.push_back(
        "rewrote the database with all records that could be read; the problems list the others");
  }
  for (const uint64_t id : buffers) {
    state.model.buffers.erase(id);
    state.report.repairs.push_back(
        absl::StrCat("dropped durable buffer ", id, ", whose contents are lost"));
  }
  for (const std::string& id : graphs) {
    state.model.graphs.erase(id);
    state.report.repairs.push_back(
        absl::StrCat("dropped loaded graph ", id, ", whose content is lost"));
  }
  for (const std::string& name : models) {
    state.model.models.erase(name);
    state.report.repairs.push_back(
        absl::StrCat("dropped model ", name, ", of which contents are lost"));
  }
  const bool dropped = !buffers.empty() || !graphs.empty() || !models.empty();
  if (status.ok() && (state.rewrite || dropped)) {
    status = StateDatabase::Create(state.folder, state.model);
  }
  for (const std::string& path : files) {
    if (!status.ok()) break;
    status = RemoveFile(path);
    state.report.repairs.push_back(absl::StrCat("removed ", path));
  }
  state.report.starts = status.ok();
  return status;
}

absl::StatusOr<StateReport> Inspect(const std::string& folder, bool repair) {
  ASSIGN_OR_RETURN(const bool exists, StateDatabase::Exists(folder));
  if (!exists) return errors::NoStateFolder(folder);
  ASSIGN_OR_RETURN(const std::unique_ptr<StateLock> lock, StateLock::Take(folder));
  Inspection state;
  state.folder = folder;
  absl::Status status = InspectDatabase(state);
  if (!status.ok()) return status;
  ASSIGN_OR_RETURN(std::set<std::string> files, FindDamagedFiles(state, folder + "/blobs"));
  CheckOperators(state, files);
  const std::set<std::string> graphs = CheckGraphs(state, files);
  const std::set<std::string> models = CheckModels(state, files);
  ASSIGN_OR_RETURN(const std::set<std::string> contents,
                   FindDamagedFiles(state, folder + "/buffers"));
  const std::set<uint64_t> buffers = CheckBuffers(state, contents);
  if (repair) {
    files.insert(contents.begin(), contents.end());
    status = Repair(state, files, buffers, graphs, models);
  }
  if (!status.ok()) return status;
  return std::move(state.report);
}

}  // namespace

absl::StatusOr<StateReport> CheckState(const std::string& folder) {
  return Inspect(folder, /*repair=*/false);
}

absl::StatusOr<StateReport> RepairState(const std::string& folder) {
  return Inspect(folder, /*repair=*/true);
}

}  // namespace resident
