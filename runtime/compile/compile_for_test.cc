// A program with the compile role only, for tests that have no daemon.
#include "runtime/compile/compile_main.h"

int main(int argc, char** argv) { return resident::CompileMain(argc, argv); }
