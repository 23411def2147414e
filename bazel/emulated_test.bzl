"""Tests of operators in emulated blocks of several warps (kernels/sdk/emulated_block.h)."""

load(":resident.bzl", "TEST_OPTIONS")

# A block of three warps, and one with as many threads as a block of a GPU usually has.
_THREADS = [96, 256]

def emulated_test(name, srcs, deps = [], **kwargs):
    """The test x is the targets x_96 and x_256, which differ in the threads of a block.

    `srcs` contains the sources of the operators: they are compiled for each number of threads.
    """
    for threads in _THREADS:
        native.cc_test(
            name = "{}_{}".format(name, threads),
            srcs = srcs,
            copts = TEST_OPTIONS,
            local_defines = ["RESIDENT_EMULATED_THREADS={}".format(threads)],
            deps = deps + ["//kernels/sdk", "@system//:gtest_main"],
            **kwargs
        )
