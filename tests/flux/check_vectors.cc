// Runs a file of FLUX test vectors through the reference interpreter and the operator, and
// prints "N passed, N failed". Exit status 1 if any failed.
#include <cstdio>
#include <string>

#include "runtime/flux/host_operator.h"
#include "runtime/flux/vectors.h"
#include "tests/flux/reference.h"

int main(int argc, char** argv) {
  using namespace resident::flux;
  if (argc != 2) {
    std::fprintf(stderr, "usage: check_vectors FILE\n");
    return 2;
  }
  const auto vectors = ReadVectors(argv[1]);
  if (!vectors.ok()) {
    std::fprintf(stderr, "%s\n", std::string(vectors.status().message()).c_str());
    return 2;
  }
  int failed = 0;
  for (const Vector& vector : *vectors) {
    const std::string reference = Difference(vector, RunReference(vector.bytecode, vector.options));
    const std::string engine = Difference(vector, RunOnHost(vector.bytecode, vector.options));
    if (reference.empty() && engine.empty()) continue;
    ++failed;
    std::printf("line %zu, %s:\n  reference: %s\n  operator: %s\n", vector.line,
                vector.name.c_str(), reference.c_str(), engine.c_str());
  }
  std::printf("%zu passed, %d failed\n", vectors->size() - failed, failed);
  return failed == 0 ? 0 : 1;
}
