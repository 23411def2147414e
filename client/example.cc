// A whole program: y = 2x + 1 on the device, then a FLUX program over four inputs.
#include <cstdio>

#include "client/residentd_client.h"

int main(int argc, char** argv) {
  using namespace resident::client;
  auto client = Client::Connect(argc > 1 ? argv[1] : "127.0.0.1:50051");
  if (!client.ok()) return std::fprintf(stderr, "%s\n", client.status().ToString().c_str()), 1;

  auto x = (*client)->Upload(std::vector<float>{1, 2, 3});  // Freed with the variable.
  if (!x.ok()) return std::fprintf(stderr, "%s\n", x.status().ToString().c_str()), 1;
  TaskBatch add("add");  // out = x + alpha * y
  add.Input(std::vector<float>{1, 1, 1}).Use(*x).Return<float>({3}).Scalar(2.0);
  auto sums = (*client)->Run(add);
  if (!sums.ok()) return std::fprintf(stderr, "%s\n", sums.status().ToString().c_str()), 1;
  for (float value : sums->Output<float>()) std::printf("%g ", value);  // 3 5 7

  FluxBatch square;  // MUL R0, R0, R0; HALT
  square.Program({0x22, 0, 0, 0, 0x00}).Inputs(std::vector<int32_t>{1, 2, 3, 4}, /*width=*/1);
  auto squares = (*client)->Run(square);
  if (!squares.ok()) return std::fprintf(stderr, "%s\n", squares.status().ToString().c_str()), 1;
  for (int32_t value : squares->registers()) std::printf("%d ", value);  // 1 4 9 16
  std::printf("\n");
}
