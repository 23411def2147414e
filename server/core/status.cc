#include "server/core/status.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "runtime/base/errors/reason.h"

namespace resident {
namespace {

constexpr char kDomain[] = "residentd";

// A serialized google.rpc.Status; empty: there are no details, or they do not fit.
std::string Details(const absl::Status& status) {
  const std::optional<errors::ErrorReason> reason = errors::FindReason(status);
  if (!reason.has_value()) return "";
  google::rpc::ErrorInfo info;
  info.set_reason(reason->name);
  info.set_domain(kDomain);
  for (const auto& [key, value] : reason->details) (*info.mutable_metadata())[key] = value;
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(std::string(status.message()));
  details.add_details()->PackFrom(info);
  if (details.ByteSizeLong() > kMaxStatusDetailBytes) details.clear_message();
  return details.ByteSizeLong() > kMaxStatusDetailBytes ? "" : details.SerializeAsString();
}

}  // namespace

std::string ShortenMessage(absl::string_view message) {
  if (message.size() <= kMaxStatusMessageBytes) return std::string(message);
  constexpr size_t kEnd = kMaxStatusMessageBytes / 4;
  return absl::StrCat(message.substr(0, kMaxStatusMessageBytes - kEnd), " [...] ",
                      message.substr(message.size() - kEnd));
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      ShortenMessage(status.message()), Details(status));
}

}  // namespace resident
