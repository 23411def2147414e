#include "server/graphs/graph_store.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/fuse.h"
#include "runtime/graph/limits.h"
#include "server/core/registry_catalog.h"
#include "server/graphs/errors.h"
#include "server/graphs/graph_messages.h"

namespace resident {
namespace {

std::string FirstError(const graph::Findings& findings) {
  for (const graph::Finding& finding : findings.list()) {
    if (finding.warning) continue;
    std::string place = graph::CodeName(finding.code);
    if (!finding.node.empty()) place += ", node " + finding.node;
    if (!finding.tensor.empty()) place += ", tensor " + finding.tensor;
    return place + ": " + finding.message;
  }
  return "";
}

// Whether what a check reads of the operators is as it was.
bool SameOperators(const graph::CheckedGraph& checked, const graph::OperatorCatalog& catalog) {
  const std::vector<graph::OperatorInfo>& operators = checked.written_operators();
  return std::all_of(operators.begin(), operators.end(), [&](const graph::OperatorInfo& old) {
    const auto now = catalog.Find(old.name, old.wanted_version);
    return now.ok() && now->builtin == old.builtin && now->signature.SameAs(old.signature);
  });
}

// A node that executes several, about: a norm and two products, which are then the same node.
constexpr uint64_t kFusedBytes = sizeof(graph::Fusion::Fused) + 4 * sizeof(graph::Fusion::Written);

uint64_t MeasureMemory(const graph::CheckedGraph& checked) {
  const graph::Graph& graph = checked.graph;
  return checked.order.size() * sizeof(graph::Dependency) +
         graph.nodes.size() * (sizeof(graph::Node) + sizeof(uint64_t)) +
         graph.tensors.size() * (sizeof(graph::Tensor) + sizeof(int64_t)) +
         graph.arguments.size() * sizeof(graph::Argument) +
         graph.axes.size() * sizeof(graph::Axis) +
         graph.expressions.size() * sizeof(graph::ScalarExpression) +
         (graph.operators.size() + checked.fusion.operators.size()) * sizeof(graph::OperatorInfo) +
         checked.fusion.written.size() * sizeof(uint32_t) +
         checked.fusion.fused.size() * kFusedBytes;
}

}  // namespace

std::string SerializeGraph(const v1::Graph& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream to(&bytes);
  google::protobuf::io::CodedOutputStream coded(&to);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

absl::Status GraphRefusal(const graph::Findings& findings) {
  return errors::GraphRefused(FirstError(findings), findings.errors() - 1);
}

// --- LoadedGraph -----------------------------------------------------------------

LoadedGraph::Revisions LoadedGraph::ReadRevisions(const v1::Graph& graph,
                                                  const Registry& registry) {
  std::set<std::string> names;
  for (const v1::GraphNode& node : graph.nodes()) names.insert(node.operator_());
  // Nodes are fused, or not, depending on all of these operators.
  const auto fusion = graph::FusionOperators();
  const bool may_fuse = (!graph.has_fuse() || graph.fuse()) &&
                        std::any_of(fusion.begin(), fusion.end(), [&](std::string_view name) {
                          return names.contains(std::string(name));
                        });
  if (may_fuse) names.insert(fusion.begin(), fusion.end());
  Revisions revisions;
  for (const std::string& name : names) revisions.emplace_back(name, registry.Revision(name));
  return revisions;
}

absl::StatusOr<LoadedGraph::Checked> LoadedGraph::SetChecked(graph::CheckedGraph checked,
                                                             Revisions revisions) {
  {
    absl::MutexLock lock(&mu_);
    if (checked_ != nullptr && !fuse_again_ && revisions_ == revisions) return checked_;
  }
  const uint64_t bytes = MeasureMemory(checked);
  std::optional<Budget::Charge> charge = memory_.Acquire(account_, bytes);
  if (!charge.has_value()) return errors::GraphMemoryFull(bytes, memory_.used(), memory_.limit());
  struct Charged {
    graph::CheckedGraph checked;
    Budget::Charge charge;
  };
  const auto charged =
      std::make_shared<const Charged>(Charged{std::move(checked), *std::move(charge)});
  Checked now(charged, &charged->checked);
  Checked before;  // Destroyed without the lock.
  absl::MutexLock lock(&mu_);
  before = std::exchange(checked_, now);
  refused_ = absl::OkStatus();
  fuse_again_ = false;
  revisions_ = std::move(revisions);
  was_checked_ = true;
  return now;
}

void LoadedGraph::Keep(Budget::Charge charge) {
  absl::MutexLock lock(&mu_);
  content_charge_ = std::move(charge);
}

bool LoadedGraph::UpdateRevisions(const Registry& registry) {
  bool changed = false;
  for (auto& [name, revision] : revisions_) {
    const uint64_t now = registry.Revision(name);
    changed |= now != revision;
    revision = now;
  }
  return changed;
}

absl::StatusOr<LoadedGraph::Checked> LoadedGraph::FindChecked(const Registry& registry) {
  absl::MutexLock lock(&mu_);
  if (UpdateRevisions(registry)) {
    // Whatever has changed, the next check decides about a graph that was refused.
    refused_ = absl::OkStatus();
    const RegistryCatalog catalog(registry);
    if (checked_ != nullptr && !SameOperators(*checked_, catalog)) checked_ = nullptr;
    fuse_again_ = checked_ != nullptr && !graph::StaysFused(checked_->fusion, catalog);
  }
  if (!refused_.ok()) return refused_;
  return fuse_again_ ? nullptr : checked_;
}

absl::StatusOr<LoadedGraph::Checked> LoadedGraph::Check(const Registry& registry,
                                                        graph::CheckBudget& budget) {
  v1::Graph message;
  message.ParseFromString(content_);
  // A change during the check is found by the next run.
  Revisions revisions = ReadRevisions(message, registry);
  graph::Findings findings;
  graph::Graph graph = ReadGraph(message, RegistryCatalog(registry), &findings, &budget);
  graph::GraphCheck check = graph::CheckGraph(graph, &findings, {}, &budget);
  if (check.accepted) {
    graph::CheckedGraph checked = {std::move(graph), *std::move(check.order)};
    graph::Fuse(RegistryCatalog(registry), &checked, &budget);
    return SetChecked(std::move(checked), std::move(revisions));
  }
  if (findings.errors() == 0) return errors::Cancelled();
  absl::MutexLock lock(&mu_);
  checked_ = nullptr;
  refused_ = errors::StaleGraph(id_, FirstError(findings));
  revisions_ = std::move(revisions);
  was_checked_ = true;
  return refused_;
}

v1::LoadedGraph::State LoadedGraph::FindState(const Registry& registry) {
  const absl::StatusOr<Checked> checked = FindChecked(registry);
  if (checked.ok() && *checked != nullptr) return v1::LoadedGraph::STATE_READY;
  absl::MutexLock lock(&mu_);
  if (fuse_again_) return v1::LoadedGraph::STATE_READY;
  return was_checked_ ? v1::LoadedGraph::STATE_STALE : v1::LoadedGraph::STATE_UNCHECKED;
}

uint64_t LoadedGraph::memory_bytes() const {
  absl::MutexLock lock(&mu_);
  return content_.size() + (checked_ == nullptr ? 0 : MeasureMemory(*checked_));
}

// --- GraphStore ------------------------------------------------------------------

GraphStore::GraphStore()
    : slots_({.what = "loaded graphs"}, graph::kMaxLoadedGraphs),
      memory_({.limit = graph::kMaxLoadedBytes}) {}

std::vector<std::string> GraphStore::Restore(StateStore* state) {
  std::vector<std::string> warnings;
  absl::MutexLock save(&save_mu_);
  state_ = state;
  for (const StoredGraph& stored : state->graphs()) {
    absl::StatusOr<std::string> content = state->GetBlob(stored.id);
    v1::Graph message;
    if (!content.ok() || !message.ParseFromString(*content)) {
      warnings.push_back(absl::StrCat(
          "loaded graph ", stored.id,
          " is not restored: ", content.ok() ? "it cannot be parsed" : content.status().message()));
      continue;
    }
    Entry entry;
    auto account = stored.holders.empty() ? std::make_shared<Budget::Account>()
                                          : FindAccount(stored.holders[0].name);
    entry.graph = std::make_shared<LoadedGraph>(stored.id, *std::move(content), message, memory_,
                                                std::move(account));
    for (const StoredGraph::Holder& holder : stored.holders) {
      // A daemon with other limits may have stored more than this one allows; it is kept.
      auto hold = TakeHold({holder.name, absl::StrCat("identity ", errors::Quote(holder.name))},
                           entry.graph->content().size());
      Holder& kept = entry.holders[holder.name];
      if (hold.ok()) kept = *std::move(hold);
      kept.loaded_ms = holder.loaded_ms;
    }
    absl::MutexLock lock(&mu_);
    graphs_[stored.id] = std::move(entry);
  }
  return warnings;
}

std::shared_ptr<Budget::Account> GraphStore::FindAccount(const std::string& name) {
  absl::MutexLock lock(&mu_);
  std::shared_ptr<Budget::Account>& known = accounts_[name];
  if (known == nullptr) known = std::make_shared<Budget::Account>();
  return known;
}

absl::StatusOr<GraphStore::Holder> GraphStore::TakeHold(const Caller& caller, uint64_t bytes) {
  Holder holder;
  ASSIGN_OR_RETURN(holder.slot, slots_.Take(caller.slots));
  std::optional<Budget::Charge> charge = memory_.Acquire(FindAccount(caller.name), bytes);
  if (!charge.has_value()) return errors::GraphMemoryFull(bytes, memory_.used(), memory_.limit());
  holder.content = *std::move(charge);
  holder.loaded_ms = absl::ToUnixMillis(absl::Now());
  return holder;
}

StoredGraph GraphStore::Describe(const std::string& id, const Entry& entry) {
  StoredGraph stored;
  stored.id = id;
  for (const auto& [name, holder] : entry.holders) {
    stored.holders.push_back({name, holder.loaded_ms});
  }
  return stored;
}

absl::StatusOr<GraphStore::Added> GraphStore::Load(const Caller& caller, const v1::Graph& message,
                                                   graph::CheckedGraph checked,
                                                   LoadedGraph::Revisions revisions) {
  std::string content = SerializeGraph(message);
  const std::string id = Sha256Hex(content);
  absl::MutexLock save(&save_mu_);
  StoredGraph stored;
  std::shared_ptr<LoadedGraph> graph;
  bool already_loaded = false;
  {
    absl::MutexLock lock(&mu_);
    const auto found = graphs_.find(id);
    if (found != graphs_.end()) {
      graph = found->second.graph;
      stored = Describe(id, found->second);
      already_loaded = found->second.holders.contains(caller.name);
    }
  }
  if (already_loaded) {
    RETURN_IF_ERROR(graph->SetChecked(std::move(checked), std::move(revisions)).status());
    return Added{graph, true};
  }
  if (graph == nullptr) {
    graph = std::make_shared<LoadedGraph>(id, std::move(content), message, memory_,
                                          FindAccount(caller.name));
  }
  ASSIGN_OR_RETURN(Holder holder, TakeHold(caller, graph->content().size()));
  RETURN_IF_ERROR(graph->SetChecked(std::move(checked), std::move(revisions)).status());
  stored.id = id;
  stored.holders.push_back({caller.name, holder.loaded_ms});
  if (state_ != nullptr) RETURN_IF_ERROR(state_->PutGraph(stored, graph->content()));
  absl::MutexLock lock(&mu_);
  Entry& entry = graphs_[id];
  entry.graph = graph;
  entry.holders[caller.name] = std::move(holder);
  return Added{graph, false};
}

absl::StatusOr<bool> GraphStore::Unload(const std::string& id, const std::string& caller,
                                        bool for_all) {
  absl::MutexLock save(&save_mu_);
  StoredGraph stored;
  std::string content;
  {
    absl::MutexLock lock(&mu_);
    const auto found = graphs_.find(id);
    if (found == graphs_.end()) return errors::UnknownGraph(id);
    if (!for_all && !found->second.holders.contains(caller)) {
      return errors::GraphOfOthers(id, caller);
    }
    stored = Describe(id, found->second);
    content = found->second.graph->content();
  }
  std::erase_if(stored.holders, [&](const StoredGraph::Holder& holder) {
    return for_all || holder.name == caller;
  });
  const bool removed = stored.holders.empty();
  if (state_ != nullptr) {
    RETURN_IF_ERROR(removed ? state_->DropGraph(id) : state_->PutGraph(stored, content));
  }
  absl::MutexLock lock(&mu_);
  if (removed) {
    Entry& entry = graphs_[id];
    entry.graph->Keep(std::move(entry.holders.begin()->second.content));
    graphs_.erase(id);
  } else {
    graphs_[id].holders.erase(caller);
  }
  // A graph that is stale, and so has no charge at present, keeps its account for the next one.
  absl::erase_if(accounts_, [](const auto& each) {
    return each.second.use_count() == 1 && each.second->acquired() == 0;
  });
  return removed;
}

absl::StatusOr<std::shared_ptr<LoadedGraph>> GraphStore::Find(const std::string& id) const {
  absl::MutexLock lock(&mu_);
  const auto found = graphs_.find(id);
  if (found == graphs_.end()) return errors::UnknownGraph(id);
  return found->second.graph;
}

std::vector<std::shared_ptr<LoadedGraph>> GraphStore::List() const {
  std::vector<std::shared_ptr<LoadedGraph>> list;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, entry] : graphs_) list.push_back(entry.graph);
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
    return std::pair(a->name(), a->id()) < std::pair(b->name(), b->id());
  });
  return list;
}

std::map<std::string, int64_t> GraphStore::Holders(const std::string& id) const {
  std::map<std::string, int64_t> holders;
  absl::MutexLock lock(&mu_);
  const auto found = graphs_.find(id);
  if (found == graphs_.end()) return holders;
  for (const auto& [name, holder] : found->second.holders) holders[name] = holder.loaded_ms;
  return holders;
}

uint64_t GraphStore::count() const {
  absl::MutexLock lock(&mu_);
  return graphs_.size();
}

}  // namespace resident
