
#include "client/commands/ops_text.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/cli/format.h"
#include "client/cli/proto_json.h"

namespace resident::cli {
namespace {

constexpr size_t kShownHashChars = 12;
constexpr size_t kTextWidth = 80;

std::string Ranks(const v1::Parameter& parameter) {
  if (parameter.kind() == v1::Parameter::KIND_SCALAR) return "";
  if (parameter.min_rank() == parameter.max_rank()) return absl::StrCat(parameter.min_rank(), "-d");
  return absl::StrCat(parameter.min_rank(), " to ", parameter.max_rank(), "-d");
}

std::string DTypes(const v1::Parameter& parameter) {
  return absl::StrJoin(parameter.dtypes(), " ", [](std::string* out, int dtype) {
    out->append(EnumName(static_cast<v1::DType>(dtype)));
  });
}

// Formats "(x, y, out)", with at most `max_names` parameters.
std::string Parameters(const v1::Operator& op, int max_names) {
  std::vector<std::string> names;
  for (const v1::Parameter& parameter : op.parameters()) {
    if (static_cast<int>(names.size()) == max_names) {
      names.push_back(absl::StrCat("... ", op.parameters_size() - max_names, " more"));
      break;
    }
    names.push_back(parameter.name());
  }
  return absl::StrCat("(", absl::StrJoin(names, ", "), ")");
}

bool Builtin(const v1::Operator& op) { return op.versions_size() > 0 && op.versions(0).builtin(); }

bool Bytecode(const v1::Operator& op) {
  return op.versions_size() > 0 && op.versions(0).kind() == "bytecode";
}

// The version that a Rollback or an Activate would select, e.g. "2 loaded"; "-" if there is none.
std::string Standby(const v1::Operator& op) {
  std::string standby;
  for (const v1::OperatorVersion& version : op.versions()) {
    const bool waits = version.state_code() == v1::VERSION_STATE_LOADED ||
                       version.state_code() == v1::VERSION_STATE_PREVIOUS ||
                       version.state_code() == v1::VERSION_STATE_QUARANTINED;
    if (waits) standby = absl::StrCat(version.version(), " ", version.state());
  }
  return standby.empty() ? "-" : standby;
}

std::string Split(const v1::Operator& op) {
  if (Bytecode(op)) return "program";
  return op.wide() ? "wide" : "block";
}

// Formats a UTC time with seconds.
std::string When(int64_t milliseconds) {
  if (milliseconds == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(milliseconds),
                          absl::UTCTimeZone());
}

std::string Duration(uint64_t microseconds) {
  return HumanDuration(absl::Microseconds(static_cast<int64_t>(microseconds)));
}

std::string ResourcesText(const v1::ResourceUse& use) {
  // A CPU unit has neither registers nor shared memory.
  const std::string gpu = use.registers() == 0 ? ""
                                               : absl::StrCat(use.registers(), " registers, ",
                                                              use.shared_bytes(), " B shared, ");
  return absl::StrCat(gpu, use.stack_bytes(), " B of stack, ", FormatExact(use.code_bytes()),
                      " B of code");
}

std::string VersionsText(const v1::Operator& op) {
  std::vector<std::string> header = {"VERSION", "STATE",      "KIND",  "TASKS",
                                     "FAILED",  "REGISTERS",  "STACK", "CODE",
                                     "BY",      "WHEN (UTC)", "HASH",  "LABEL"};
  Table table(header, {Table::kRight, Table::kLeft, Table::kLeft, Table::kRight, Table::kRight,
                       Table::kRight, Table::kRight, Table::kRight});
  for (const v1::OperatorVersion& version : op.versions()) {
    std::vector<std::string> row = {absl::StrCat(version.version()), version.state(),
                                    version.builtin() ? "built in" : version.kind(),
                                    FormatExact(version.tasks()),
                                    FormatExact(version.failed_tasks())};
    if (version.has_resources()) {
      const v1::ResourceUse& use = version.resources();
      row.insert(row.end(), {absl::StrCat(use.registers()), absl::StrCat(use.stack_bytes(), " B"),
                             absl::StrCat(use.code_bytes(), " B")});
    } else {
      row.insert(row.end(), {"-", "-", "-"});
    }
    if (!version.builtin()) {
      row.insert(row.end(), {version.installed_by(), When(version.installed_ms()),
                             version.content_hash().substr(0, kShownHashChars), version.label()});
    }
    table.Add(std::move(row));
  }
  return table.ToString();
}

std::string TrialText(const v1::Trial& trial) {
  std::string text =
      absl::StrCat("\non trial: version ", trial.version(), " serves ", trial.traffic_percent(),
                   " % of the batches and shadows ", trial.shadow_percent(), " %\n");
  if (trial.shadow_tasks() > 0) {
    absl::StrAppend(&text, "  ", FormatExact(trial.shadow_tasks()), " shadowed tasks, ",
                    FormatExact(trial.shadow_mismatches()), " with different outputs\n");
  }
  if (trial.latency_ratio() > 0) {
    absl::StrAppend(&text, "  device time ", absl::StrFormat("%.2f", trial.latency_ratio()),
                    " of the active version's\n");
  }
  return text;
}

}  // namespace

std::string OperatorsText(const std::vector<v1::Operator>& operators) {
  Table table({"OPERATOR", "PARAMETERS", "ACTIVE", "STANDBY", "SPLIT", "SUMMARY"},
              {Table::kLeft, Table::kLeft, Table::kRight});
  std::map<std::string, std::vector<const v1::Operator*>> families;
  for (const v1::Operator& op : operators) families[op.family()].push_back(&op);
  const auto add_family = [&](const std::string& title,
                              const std::vector<const v1::Operator*>& members) {
    if (!table.empty()) table.Add({});
    table.Add({absl::StrCat(title, ":")});
    for (const v1::Operator* const member : members) {
      const v1::Operator& op = *member;
      table.Add({op.name(), Parameters(op, /*max_names=*/5),
                 op.active_version() == 0 ? "-" : absl::StrCat(op.active_version()), Standby(op),
                 Split(op), op.summary()});
    }
  };
  for (const auto& [family, members] : families) {
    if (!family.empty()) add_family(family, members);
  }
  if (const auto installed = families.find(""); installed != families.end()) {
    add_family("installed", installed->second);
  }
  return table.ToString();
}

std::string OperatorText(const v1::Operator& op) {
  std::string text = absl::StrCat(op.name(), Parameters(op, op.parameters_size()),
                                  op.summary().empty() ? "" : ": ", op.summary(), "\n");
  if (!op.notes().empty()) {
    absl::StrAppend(&text, "\n", WrapText(op.notes(), kTextWidth), "\n");
  }
  if (!op.example().empty()) {
    absl::StrAppend(&text, "\nexample:\n  residentctl run ", op.name(), " ", op.example(), "\n\n");
  }
  if (!op.family().empty()) absl::StrAppend(&text, "family: ", op.family(), "\n");
  if (Bytecode(op)) {
    absl::StrAppend(&text, "a FLUX program: residentctl flux run --operator ", op.name(), "\n");
  } else {
    absl::StrAppend(&text, op.wide() ? "a large task is split over many blocks\n"
                                     : "a task runs on one block\n");
  }
  if (!op.cost().empty()) {
    absl::StrAppend(&text, "about ", op.cost(), " arithmetic operations\n");
  }
  if (!Builtin(op)) absl::StrAppend(&text, "revision ", op.revision(), "\n");
  if (!op.signature().empty()) absl::StrAppend(&text, "signature: ", op.signature(), "\n");
  if (op.parameters_size() > 0) {
    Table parameters({"PARAMETER", "KIND", "ELEMENTS", "DIMENSIONS"});
    for (const v1::Parameter& parameter : op.parameters()) {
      parameters.Add(
          {parameter.name(), EnumName(parameter.kind()), DTypes(parameter), Ranks(parameter)});
    }
    absl::StrAppend(&text, "\n", parameters.ToString());
  }
  absl::StrAppend(&text, "\n", VersionsText(op));
  if (op.has_trial() && op.trial().version() != 0) absl::StrAppend(&text, TrialText(op.trial()));
  for (const v1::OperatorVersion& version : op.versions()) {
    if (!version.has_native()) continue;
    const v1::NativeForm& native = version.native();
    absl::StrAppend(&text, "\nversion ", version.version(), " native: ", EnumName(native.state()),
                    native.reason().empty() ? "" : absl::StrCat(" (", native.reason(), ")"), "\n");
  }
  for (const v1::OperatorVersion& version : op.versions()) {
    if (version.isolation_reason().empty()) continue;
    absl::StrAppend(&text, "\nversion ", version.version(),
                    " is not stoppable: ", version.isolation_reason(), "\n");
  }
  for (const v1::OperatorVersion& version : op.versions()) {
    if (version.quarantine_reason().empty()) continue;
    absl::StrAppend(&text, "\nversion ", version.version(),
                    " is quarantined: ", version.quarantine_reason(), "\n");
  }
  return text;
}

std::string SummaryText(const v1::SummaryResponse& summary) {
  Table table({"OPERATOR", "HASH", "STATE", "LABEL", "SET"});
  for (const v1::SummaryResponse::Operator& op : summary.operators()) {
    for (const v1::SummaryResponse::Version& version : op.versions()) {
      table.Add({op.name(), version.content_hash().substr(0, kShownHashChars),
                 EnumName(version.state()), version.label(), version.set()});
    }
  }
  std::string text = absl::StrCat(table.ToString(), "digest ", summary.digest(), "\n");
  if (summary.plans().empty()) return text;
  Table plans({"PLAN", "SET", "STATE", "CLAIMED BY", "AGE"});
  for (const v1::PlanState& plan : summary.plans()) {
    plans.Add({plan.plan().substr(0, kShownHashChars), plan.set(), EnumName(plan.state()),
               plan.claimed() ? plan.holder() : "-",
               HumanDuration(absl::Milliseconds(static_cast<int64_t>(plan.age_ms())))});
  }
  return absl::StrCat(text, "\n", plans.ToString());
}

std::string IsolationText(const v1::Operator& op) {
  std::string text;
  for (const v1::OperatorVersion& version : op.versions()) {
    const bool known = version.isolation() != v1::ISOLATION_UNSPECIFIED;
    absl::StrAppend(&text, op.name(), " version ", version.version(), " (", version.state(), "): ",
                    known               ? EnumName(version.isolation())
                    : version.builtin() ? "built in"
                                        : "a program, which its interpreter stops",
                    "\n");
    if (!version.isolation_reason().empty()) {
      absl::StrAppend(&text, "  not stoppable: ", version.isolation_reason(), "\n");
    }
    if (version.has_rewrites()) {
      const v1::Rewrites& rewrites = version.rewrites();
      absl::StrAppend(&text, "  loops: ", rewrites.loops(), " that count statements, ",
                      rewrites.counted_loops(), " with a counter, ", rewrites.short_loops(),
                      " short ones, ", rewrites.endless_loops(), " without an end\n  ",
                      rewrites.looks(), " looks in long code, ", rewrites.barriers(), " barriers, ",
                      rewrites.warp_operations(), " tests of warps\n");
    }
    if (version.has_resources()) {
      absl::StrAppend(&text, "  ", ResourcesText(version.resources()), "\n");
    }
  }
  return text;
}

std::string ProgressText(const v1::InstallResponse& progress) {
  std::vector<std::string> notes;
  if (progress.cached()) notes.push_back("from the cache");
  for (const v1::StepDuration& step : progress.steps()) {
    notes.push_back(absl::StrCat(step.step(), " ", Duration(step.duration_us())));
  }
  for (const auto& [architecture, use] : progress.resources()) {
    notes.push_back(absl::StrCat(architecture, ": ", ResourcesText(use)));
  }
  if (!progress.message().empty() && progress.state() != v1::VERSION_STATE_REJECTED) {
    notes.push_back(progress.message());
  }
  std::string line =
      absl::StrFormat("%-10s %9s", EnumName(progress.state()), Duration(progress.duration_us()));
  if (!notes.empty()) absl::StrAppend(&line, "  ", absl::StrJoin(notes, "; "));
  return line + "\n";
}

std::string EventsText(const std::vector<v1::OperatorEvent>& events, bool header) {
  std::string text;
  if (header) {
    text = absl::StrFormat("%8s  %-19s  %-11s  %-24s  %s\n", "REVISION", "TIME (UTC)", "EVENT",
                           "OPERATOR", "BY");
  }
  for (const v1::OperatorEvent& event : events) {
    std::string what = event.operator_();
    if (event.version() != 0) absl::StrAppend(&what, " version ", event.version());
    if (event.kind() == v1::OperatorEvent::KIND_GENERATION) {
      what = absl::StrCat("generation ", event.generation());
    }
    std::string by = event.actor();
    if (!event.plan().empty()) {
      absl::StrAppend(&by, " (plan ", event.plan().substr(0, kShownHashChars), " of set ",
                      event.set(), ")");
    }
    absl::StrAppendFormat(&text, "%8d  %-19s  %-11s  %-24s  %s%s%s\n", event.revision(),
                          When(event.time_ms()), EnumName(event.kind()), what, by,
                          event.message().empty() ? "" : ": ", event.message());
  }
  return text;
}

}  // namespace resident::cli
