// graph load, list, describe, unload: graphs that the daemon keeps.
#ifndef RESIDENT_CLIENT_COMMANDS_GRAPH_LOADED_H_
#define RESIDENT_CLIENT_COMMANDS_GRAPH_LOADED_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/commands/command.h"

namespace resident::cli {

void AddGraphLoaded(Command& graph);

// The loaded graph that `word` names: its id, the first 4 or more digits of its id, or its name.
// NOT_FOUND: there is none. FAILED_PRECONDITION: there are several.
absl::StatusOr<v1::LoadedGraph> FindLoadedGraph(client::Client& client, const std::string& word);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_GRAPH_LOADED_H_
