// Graphs and reports about them as text.
#ifndef RESIDENT_CLIENT_COMMANDS_GRAPH_TEXT_H_
#define RESIDENT_CLIENT_COMMANDS_GRAPH_TEXT_H_

#include <string>

#include "resident/v1/graphs.pb.h"

namespace resident::cli {

// Every finding on a line, then a line that says whether the graph is accepted.
std::string ReportText(const v1::Graph& graph, const v1::GraphReport& report);

// The tensors and the nodes in their order, with the nodes for which each waits, and which of them
// are executed together. REQUIRES: the report is that of the graph, with its dependencies.
std::string GraphText(const v1::Graph& graph, const v1::GraphReport& report);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_GRAPH_TEXT_H_
