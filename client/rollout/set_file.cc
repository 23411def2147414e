#include "client/rollout/set_file.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/output.h"
#include "runtime/base/status_macros.h"
#include "runtime/operator_set/set_messages.h"

namespace resident::rollout {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<client::Installation> MakeInstallation(const SetOperator& op,
                                                      const OperatorSet& set) {
  ASSIGN_OR_RETURN(SetInstall install, MakeInstall(op, set));
  client::Installation installation = client::Installation::Source(op.name, op.body, op.files);
  installation.header() = std::move(install.header);
  for (v1::InstallExample& message : install.examples) {
    client::Example example;
    example.message() = std::move(message);
    installation.Add(std::move(example));
  }
  return installation;
}

}  // namespace

absl::StatusOr<SetFile> ReadSetFileAt(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  SetFile file;
  file.name = fs::path(path).filename();
  std::string& text = file.contents[file.name];
  RETURN_IF_ERROR(cli::ReadFile(path, &text));
  const ReadSetFile read = [&](const std::string& name) -> absl::StatusOr<std::string> {
    std::string& contents = file.contents[name];
    RETURN_IF_ERROR(cli::ReadFile(folder / name, &contents));
    return contents;
  };
  ASSIGN_OR_RETURN(file.set, ReadOperatorSet(text, path, read));
  file.plan = file.set.Plan();
  for (const SetOperator& op : file.set.operators) {
    ASSIGN_OR_RETURN(client::Installation installation, MakeInstallation(op, file.set));
    file.installations.push_back(std::move(installation));
  }
  return file;
}

absl::Status Publish(const SetFile& file, const std::string& folder) {
  const auto write = [&](const std::string& name) -> absl::Status {
    const fs::path path = fs::path(folder) / name;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    if (error) {
      return absl::UnavailableError(absl::StrCat("cannot make the folder ",
                                                 path.parent_path().string(), ": ", error.message(),
                                                 ". Fix: give a folder that you may write to"));
    }
    return cli::WriteFile(path, file.contents.at(name));
  };
  for (const auto& [name, text] : file.contents) {
    if (name != file.name) RETURN_IF_ERROR(write(name));
  }
  return write(file.name);
}

}  // namespace resident::rollout
