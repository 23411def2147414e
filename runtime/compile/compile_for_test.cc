// The compile role alone, for tests that have no daemon.
#include "runtime/compile/compile_main.h"

int main(int argc, char** argv) { return resident::CompileMain(argc, argv); }
