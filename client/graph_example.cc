// A task graph in C++: sums of a series, one record for each step of a loop.
#include <cstdio>
#include <cstring>

#include "client/graph_builder.h"

int main(int argc, char** argv) {
  using namespace resident;
  auto client = client::Client::Connect(argc > 1 ? argv[1] : "127.0.0.1:50051");
  if (!client.ok()) return std::fprintf(stderr, "%s\n", client.status().ToString().c_str()), 1;

  client::GraphBuilder b("series", **client);
  auto x = b.Input("x", v1::DTYPE_F32, {2, 4});
  auto total = b.State("total", v1::DTYPE_F32, {4});  // Zeros at first, kept from step to step.
  auto k = b.Real("k", 0, 100);
  auto row = b.Call("add", {x.Index(0, 0), x.Index(0, 1)}, {{"alpha", 2 * k + 1}});
  auto sum = b.Named("sum").Call("add", {total, row});  // Shape and dtype are inferred.
  b.Call("copy", {sum}, {{"out", total}});
  b.Stream("sum", sum);
  b.Loop(/*max_steps=*/3);
  b.EachStep(k, k + 1);
  auto graph = b.Build();
  if (!graph.ok()) return std::fprintf(stderr, "%s\n", graph.status().ToString().c_str()), 1;

  v1::RunGraphRequest request;
  *request.mutable_graph() = *std::move(graph);
  (*request.mutable_scalars())["k"] = 0;
  const float values[8] = {1, 2, 3, 4, 10, 20, 30, 40};
  request.add_bindings()->set_tensor("x");
  request.mutable_bindings(0)->set_data(values, sizeof values);
  auto result = (*client)->RunGraph(request, [](const v1::GraphStep& step) {
    float sums[4];
    std::memcpy(sums, step.records(0).data().data(), sizeof sums);
    std::printf("%g %g %g %g\n", sums[0], sums[1], sums[2], sums[3]);  // 11 22 33 44, ...
  });
  if (!result.ok()) return std::fprintf(stderr, "%s\n", result.status().ToString().c_str()), 1;
}
