// graph run: runs a graph once, with values from the command line.
#ifndef RESIDENT_CLIENT_COMMANDS_GRAPH_RUN_H_
#define RESIDENT_CLIENT_COMMANDS_GRAPH_RUN_H_

#include "client/commands/command.h"

namespace resident::cli {

void AddGraphRun(Command& graph);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_GRAPH_RUN_H_
