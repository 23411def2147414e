// ops: what the daemon can run.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/exit_codes.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/cli/table.h"
#include "client/commands/command.h"

namespace resident::cli {
namespace {

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

// "(x, y, out)"; of more than `most` parameters the first.
std::string Signature(const v1::Operator& op, int most) {
  std::vector<std::string> names;
  for (const v1::Parameter& parameter : op.parameters()) {
    if (static_cast<int>(names.size()) == most) {
      names.push_back(absl::StrCat("... ", op.parameters_size() - most, " more"));
      break;
    }
    names.push_back(parameter.name());
  }
  return absl::StrCat("(", absl::StrJoin(names, ", "), ")");
}

std::string ListText(const std::vector<v1::Operator>& operators) {
  Table table({"OPERATOR", "PARAMETERS", "ACTIVE", "SPLIT", "SUMMARY"},
              {Table::kLeft, Table::kLeft, Table::kRight});
  for (const v1::Operator& op : operators) {
    table.Add({op.name(), Signature(op, /*most=*/5), absl::StrCat(op.active_version()),
               op.wide() ? "wide" : "block", op.summary()});
  }
  return table.ToString();
}

std::string DescribeText(const v1::Operator& op) {
  std::string text = absl::StrCat(
      op.name(), Signature(op, op.parameters_size()), ": ", op.summary(), "\n",
      op.wide() ? "a large task is split over many blocks\n" : "a task runs on one block\n", "\n");
  Table parameters({"PARAMETER", "KIND", "ELEMENTS", "DIMENSIONS"});
  for (const v1::Parameter& parameter : op.parameters()) {
    parameters.Add(
        {parameter.name(), EnumName(parameter.kind()), DTypes(parameter), Ranks(parameter)});
  }
  absl::StrAppend(&text, parameters.ToString(), "\n");
  Table versions({"VERSION", "STATE", "SLOT", "ORIGIN", "REGISTERS", "STACK", "SHARED", "CODE"},
                 {Table::kRight, Table::kLeft, Table::kRight, Table::kLeft, Table::kRight,
                  Table::kRight, Table::kRight, Table::kRight});
  for (const v1::OperatorVersion& version : op.versions()) {
    std::vector<std::string> row = {absl::StrCat(version.version()), version.state(),
                                    absl::StrCat(version.slot()),
                                    version.builtin() ? "built in" : "installed"};
    if (version.has_resources()) {
      const v1::ResourceUse& use = version.resources();
      row.insert(row.end(),
                 {absl::StrCat(use.registers()), absl::StrCat(use.stack_bytes(), " B"),
                  absl::StrCat(use.shared_bytes(), " B"), absl::StrCat(use.code_bytes(), " B")});
    } else {
      row.insert(row.end(), {"-", "-", "-", "-"});
    }
    versions.Add(std::move(row));
  }
  absl::StrAppend(&text, versions.ToString());
  return text;
}

}  // namespace

int RunOps(const std::vector<std::string>& words) {
  if (words.size() > 1) return UsageError("ops takes one name", "residentctl ops [NAME]");
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  const bool json = absl::GetFlag(FLAGS_json);
  if (words.empty()) {
    absl::StatusOr<std::vector<v1::Operator>> operators = (*client)->ListOperators();
    if (!operators.ok()) return CallError(operators.status());
    if (json) {
      Json list = Json::array();
      for (const v1::Operator& op : *operators) list.push_back(ToJson(op));
      PrintJson({{"operators", list}});
    } else {
      Print(ListText(*operators));
    }
    return kExitOk;
  }
  absl::StatusOr<v1::Operator> op = (*client)->DescribeOperator(words[0]);
  if (!op.ok()) return CallError(op.status());
  if (json) {
    PrintJson(ToJson(*op));
  } else {
    Print(DescribeText(*op));
  }
  return kExitOk;
}

}  // namespace resident::cli
