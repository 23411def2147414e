// `residentctl graph llama`: converts the folder of a Llama model into a graph that decodes.
#ifndef RESIDENT_CLIENT_COMMANDS_GRAPH_LLAMA_H_
#define RESIDENT_CLIENT_COMMANDS_GRAPH_LLAMA_H_

#include "client/commands/command.h"

namespace resident::cli {

void AddGraphLlama(Command& graph);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_GRAPH_LLAMA_H_
