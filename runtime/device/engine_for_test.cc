// A program with the engine role only, which tests pass as DeviceOptions.engine_program.
#include <cstdio>
#include <cstring>

#include "runtime/engine/control/engine_main.h"

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "engine") == 0) return resident::EngineMain(argc, argv);
  std::fprintf(stderr, "engine_for_test: run by tests as `engine_for_test engine ...`\n");
  return 2;
}
