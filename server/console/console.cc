
#include "server/console/console.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "runtime/graph/drawing.h"
#include "server/console/page_files.h"
#include "server/operators/operator_messages.h"

namespace resident {
namespace {

constexpr char kHtml[] = "text/html; charset=utf-8";
constexpr char kCss[] = "text/css; charset=utf-8";
constexpr char kScript[] = "text/javascript; charset=utf-8";
constexpr char kSvg[] = "image/svg+xml";
constexpr char kJson[] = "application/json";

// Nothing is fetched from elsewhere, no script but the page's own runs, no other page embeds it.
constexpr char kPageHeaders[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n";
// For answers that are data. A drawing has a style sheet of its own.
constexpr char kDataHeaders[] =
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; sandbox\r\n"
    "Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n";

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  // It fails only for a message with text that is not UTF-8, and messages with such text cannot be
  // sent to clients either.
  if (!google::protobuf::util::MessageToJsonString(message, &json, options).ok()) return "{}";
  return json;
}

History::Totals ReadTotals(const Core& core) {
  History::Totals totals{.received_bytes = core.counters.received_bytes(),
                         .sent_bytes = core.counters.sent_bytes()};
  for (const Device* device : core.devices) {
    const DeviceQueue::Counters queue = device->snapshot().queue;
    totals.tasks += queue.completed_tasks;
    totals.busy.push_back(queue.busy);
  }
  return totals;
}

HttpPath File(const std::string& path, const char* type, const char* text) {
  return {path, [path, type, text](const HttpPage::Request& request) {
            // The handler of "/" gets the paths that have no other one.
            if (request.path != path) {
              return HttpPage::Answer{.status = "404 Not Found",
                                      .text =
                                          "There is no such page. Fix: see /, /metrics, /livez "
                                          "and /readyz\n"};
            }
            return HttpPage::Answer{.type = type, .text = text, .headers = kPageHeaders};
          }};
}

}  // namespace

Console::Console(resident::Graphs& graphs, DaemonFacts facts)
    : core_(graphs.core),
      graphs_(graphs),
      facts_(std::move(facts)),
      viewer_{.sees_others = !core_.credentials},
      history_([this] { return ReadTotals(core_); }) {}

Console::~Console() = default;

std::vector<HttpPath> Console::paths() {
  std::vector<HttpPath> paths = {File("/", kHtml, kPageHtml), File("/console.css", kCss, kPageCss),
                                 File("/console.js", kScript, kPageScript),
                                 File("/icon.svg", kSvg, kPageIcon)};
  paths.push_back(KeptJson("/api/status", [this] { return Status(); }));
  paths.push_back(KeptJson("/api/history", [this] { return history_.Json(); }));
  paths.push_back(KeptJson("/api/operators", [this] { return Operators(); }));
  paths.push_back(KeptJson("/api/events", [this] { return Events(); }));
  paths.push_back(KeptJson("/api/graphs", [this] { return Graphs(); }));
  paths.push_back(KeptJson("/api/traces", [this] { return Traces(); }));
  paths.push_back(
      {"/api/drawing", [this](const HttpPage::Request& request) { return Draw(request); }});
  return paths;
}

HttpPath Console::KeptJson(const std::string& path, std::function<std::string()> make) {
  return {path, [kept = std::make_shared<SharedBody>(std::move(make), kMaxAge)](
                    const HttpPage::Request&) {
            return HttpPage::Answer{.type = kJson, .headers = kDataHeaders, .body = kept->Get()};
          }};
}

std::string Console::Status() const {
  v1::StatusResponse status;
  FillStatus(core_, facts_, viewer_, &status);
  return ToJson(status);
}

std::string Console::Operators() const {
  v1::ListOperatorsResponse list;
  const std::vector<OperatorResources> resources = CollectResources(core_);
  for (const OperatorView& op : core_.registry.List()) {
    if (list.operators_size() == kMaxOperators) break;
    v1::Operator& out = *list.add_operators();
    FillOperator(op, core_, resources, viewer_, &out);
    // The page does not show these, and they are most of the bytes.
    out.clear_parameters();
    out.clear_notes();
    out.clear_example();
    out.clear_cost();
  }
  return ToJson(list);
}

std::string Console::Events() const {
  v1::AuditResponse events;
  for (OperatorEvent& event : core_.operators.EventsBefore(0, "", kMaxEvents)) {
    HideFrom(viewer_, &event);
    FillEvent(event, events.add_events());
  }
  return ToJson(events);
}

std::string Console::Graphs() const {
  v1::ListGraphsResponse list;
  for (const auto& graph : graphs_.store.List()) {
    graphs_.Describe(*graph, viewer_, list.add_graphs());
  }
  return ToJson(list);
}

std::string Console::Traces() const {
  nlohmann::json list = nlohmann::json::array();
  // None where callers have identities: the core keeps none there.
  for (const RecentTraces::Trace& trace : graphs_.traces.List()) {
    nlohmann::json nodes = nlohmann::json::object();
    for (const auto& [index, node] : trace.nodes) {
      nodes[absl::StrCat(index)] = {node.name, node.operator_name};
    }
    uint64_t begin = UINT64_MAX;
    for (const GraphTraceEvent& event : trace.events)
      begin = std::min<uint64_t>(begin, event.begin_ns);
    nlohmann::json events = nlohmann::json::array();
    for (const GraphTraceEvent& event : trace.events) {
      events.push_back({event.node, event.worker, event.begin_ns - begin, event.end_ns - begin});
    }
    list.push_back({{"number", trace.number},
                    {"time_ms", trace.time_ms},
                    {"graph", trace.graph},
                    {"nodes", std::move(nodes)},
                    {"events", std::move(events)},
                    {"dropped", trace.dropped}});
  }
  return nlohmann::json{{"traces", std::move(list)}}.dump(-1, ' ', false,
                                                          nlohmann::json::error_handler_t::replace);
}

HttpPage::Answer Console::Draw(const HttpPage::Request& request) {
  const auto refuse = [](const char* status, std::string why) {
    return HttpPage::Answer{.status = status, .text = std::move(why), .headers = kDataHeaders};
  };
  if (core_.credentials) {
    return refuse(
        "403 Forbidden",
        "The page shows no drawings where callers have identities. Fix: residentctl graph "
        "render\n");
  }
  absl::string_view id = request.query;
  if (!absl::ConsumePrefix(&id, "id=")) {
    return refuse("400 Bad Request", "The query has no graph. Fix: /api/drawing?id=GRAPH_ID\n");
  }
  const auto graph = graphs_.store.Find(std::string(id.data(), id.size()));
  if (!graph.ok()) return refuse("404 Not Found", absl::StrCat(graph.status().message(), "\n"));
  const auto drawn = [](std::shared_ptr<const HttpBody> drawing) {
    return HttpPage::Answer{.type = kSvg, .headers = kDataHeaders, .body = std::move(drawing)};
  };
  if (auto kept = FindDrawing((*graph)->id()); kept != nullptr) return drawn(std::move(kept));
  if (!drawing_places_.Enter()) {
    return refuse("503 Service Unavailable",
                  "Other graphs are being drawn. Fix: send the request again\n");
  }
  const absl::Cleanup leave = [this] { drawing_places_.Leave(); };
  absl::MutexLock lock(&drawing_mu_);
  // It may have been drawn meanwhile.
  if (auto kept = FindDrawing((*graph)->id()); kept != nullptr) return drawn(std::move(kept));
  const absl::Status drawable = graph::CheckDrawable((*graph)->nodes(), graph::DrawingFormat::kSvg);
  if (!drawable.ok()) return refuse("409 Conflict", absl::StrCat(drawable.message(), "\n"));
  const auto checked = (*graph)->FindChecked(core_.registry);
  if (!checked.ok()) return refuse("409 Conflict", absl::StrCat(checked.status().message(), "\n"));
  if (*checked == nullptr) {
    return refuse(
        "409 Conflict",
        "The graph was not checked since the daemon started, or since one of its operators "
        "changed. Fix: run it once\n");
  }
  auto picture = graph::DrawGraph((*checked)->graph, (*checked)->order, graph::DrawingFormat::kSvg);
  if (!picture.ok()) return refuse("409 Conflict", absl::StrCat(picture.status().message(), "\n"));
  auto drawing = std::make_shared<const HttpBody>(*std::move(picture));
  absl::MutexLock keep(&drawings_mu_);
  if (drawings_.size() >= kMaxDrawings) drawings_.erase(drawings_.begin());
  drawings_[(*graph)->id()] = drawing;
  return drawn(std::move(drawing));
}

std::shared_ptr<const HttpBody> Console::FindDrawing(const std::string& id) const {
  absl::MutexLock lock(&drawings_mu_);
  const auto found = drawings_.find(id);
  return found == drawings_.end() ? nullptr : found->second;
}

}  // namespace resident
