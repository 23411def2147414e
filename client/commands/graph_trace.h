// graph trace: runs a graph once and shows where its time goes.
#ifndef RESIDENT_CLIENT_COMMANDS_GRAPH_TRACE_H_
#define RESIDENT_CLIENT_COMMANDS_GRAPH_TRACE_H_

#include "client/commands/command.h"

namespace resident::cli {

void AddGraphTrace(Command& graph);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_GRAPH_TRACE_H_
