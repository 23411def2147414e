// Replaces g++ in a test: writes files into its folder, and then waits.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

namespace {

constexpr int kFiles = 40;
constexpr size_t kFileBytes = 8u << 20;

}  // namespace

int main(int argc, char** argv) {
  const std::string_view asked = argc > 1 ? argv[1] : "";
  if (asked == "--version") return std::puts("greedy 1.0") < 0;
  if (asked == "-print-search-dirs") return std::puts("install: /usr") < 0;
  const std::string bytes(kFileBytes, 'x');
  for (int i = 0; i < kFiles; ++i) std::ofstream("file" + std::to_string(i)) << bytes;
  while (true) pause();
}
