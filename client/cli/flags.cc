#include "client/cli/flags.h"

#include <algorithm>
#include <cstdlib>

#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/nearest.h"

ABSL_FLAG(std::string, server, "",
          "host:port of the daemon; without it $RESIDENTD_SERVER, else 127.0.0.1:50051");
ABSL_FLAG(bool, tls, false, "encrypt, and check the daemon's certificate; implied by --tls_ca");
ABSL_FLAG(std::string, tls_ca, "",
          "PEM file with the authorities of the daemon's certificate; without it "
          "$RESIDENTD_TLS_CA, else the system's");
ABSL_FLAG(std::string, tls_cert, "",
          "PEM file with the client's certificate; without it $RESIDENTD_TLS_CERT");
ABSL_FLAG(std::string, tls_key, "", "PEM file with its key; without it $RESIDENTD_TLS_KEY");
ABSL_FLAG(std::string, tls_server_name, "",
          "name in the daemon's certificate, where it is not the host in --server; without it "
          "$RESIDENTD_TLS_SERVER_NAME");
ABSL_FLAG(std::string, token_file, "",
          "file with the token that says who calls; without it $RESIDENTD_TOKEN_FILE");
ABSL_FLAG(bool, json, false, "print JSON, also for errors");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(60), "longest wait for each call, e.g. 5s or 2m");

namespace resident::cli {
namespace {

absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }

bool IsNegativeNumber(std::string_view word) {
  return word.size() > 1 && word[0] == '-' &&
         (std::isdigit(static_cast<unsigned char>(word[1])) != 0 || word[1] == '.');
}

// Our own flags, not those of the libraries (Abseil's --flagfile and the like).
absl::CommandLineFlag* FindFlag(std::string_view name) {
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(View(name));
  if (flag == nullptr || flag->Filename().find("client/") == std::string::npos) return nullptr;
  return flag;
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(std::span<const std::string> arguments) {
  CommandLine line;
  bool flags_ended = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (flags_ended || argument.empty() || argument[0] != '-' || argument == "-" ||
        IsNegativeNumber(argument)) {
      line.words.emplace_back(argument);
      continue;
    }
    if (argument == "--") {
      flags_ended = true;
      continue;
    }
    if (argument == "-h" || argument == "--help") {
      line.help = true;
      continue;
    }
    if (argument == "--version") {
      line.words.insert(line.words.begin(), "version");
      continue;
    }
    if (argument.substr(0, 2) != "--") {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag ", View(argument), ". Fix: flags start with two dashes"));
    }
    std::string_view name = argument.substr(2);
    std::string value;
    const size_t equals = name.find('=');
    bool has_value = equals != std::string_view::npos;
    if (has_value) {
      value = std::string(name.substr(equals + 1));
      name = name.substr(0, equals);
    }
    absl::CommandLineFlag* flag = FindFlag(name);
    if (flag == nullptr && !has_value && name.substr(0, 2) == "no") {
      absl::CommandLineFlag* positive = FindFlag(name.substr(2));
      if (positive != nullptr && positive->IsOfType<bool>()) {
        flag = positive;
        value = "false";
        has_value = true;
      }
    }
    if (flag == nullptr) {
      std::vector<std::string_view> names;
      for (const auto& [known, entry] : absl::GetAllFlags()) {
        if (FindFlag({known.data(), known.size()}) != nullptr) {
          names.emplace_back(known.data(), known.size());
        }
      }
      std::ranges::sort(names);  // Of two as near, always the same one.
      const std::string nearest = Nearest(name, names);
      return absl::InvalidArgumentError(absl::StrCat(
          "unknown flag --", View(name), ". Fix: ",
          nearest.empty() ? std::string("residentctl help COMMAND lists the flags of a command")
                          : absl::StrCat("did you mean --", nearest, "?")));
    }
    if (!has_value) {
      if (flag->IsOfType<bool>()) {
        value = "true";
      } else if (i + 1 < arguments.size()) {
        value = arguments[++i];
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat("flag --", View(name), " has no value. Fix: --", View(name), "=VALUE"));
      }
    }
    std::string error;
    if (!flag->ParseFrom(value, &error)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "flag --", View(name), " cannot be '", value, "'", error.empty() ? "" : ": ", error,
          ". Fix: it is: ", flag->Help(), " (default ", flag->DefaultValue(), ")"));
    }
    line.flags.emplace(flag->Name());
  }
  return line;
}

absl::Status CheckFlags(const CommandLine& line, std::span<const std::string_view> allowed,
                        std::string_view command) {
  for (const std::string& flag : line.flags) {
    const auto is_flag = [&](std::string_view name) { return name == flag; };
    if (std::ranges::any_of(CommonFlags(), is_flag) || std::ranges::any_of(allowed, is_flag)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("residentctl ", View(command), " has no flag --",
                                                   flag, ". Fix: residentctl help ", View(command),
                                                   " lists its flags"));
  }
  return absl::OkStatus();
}

std::string FlagOrEnvironment(const std::string& flag, const char* variable) {
  if (!flag.empty()) return flag;
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

std::string ServerAddress() {
  const std::string address = FlagOrEnvironment(absl::GetFlag(FLAGS_server), "RESIDENTD_SERVER");
  return address.empty() ? "127.0.0.1:50051" : address;
}

std::span<const std::string_view> CommonFlags() {
  static constexpr std::string_view kCommon[] = {"server",     "tls",     "tls_ca",
                                                 "tls_cert",   "tls_key", "tls_server_name",
                                                 "token_file", "json",    "timeout"};
  return kCommon;
}

}  // namespace resident::cli
