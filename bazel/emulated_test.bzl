"""Tests of operators in emulated blocks of several warps (kernels/sdk/emulated_block.h)."""

load(":resident.bzl", "TEST_OPTIONS", "resident_test")

# A block of three warps, and one with as many threads as a block of a GPU usually has.
_THREADS = [96, 256]

def emulated_operators(name, **kwargs):
    """The libraries x_96 and x_256 contain the operators `srcs`, for the tests with so many threads."""
    for threads in _THREADS:
        native.cc_library(
            name = "{}_{}".format(name, threads),
            testonly = True,
            copts = TEST_OPTIONS,
            defines = ["RESIDENT_EMULATED_THREADS={}".format(threads)],
            linkstatic = True,
            **kwargs
        )

def emulated_test(name, srcs = None, deps = [], **kwargs):
    """The test x is the targets x_96 and x_256, which differ in the threads of a block."""
    for threads in _THREADS:
        resident_test(
            name = "{}_{}".format(name, threads),
            srcs = [name + ".cc"] if srcs == None else srcs,
            linkstatic = True,
            deps = deps + [":emulated_operators_{}".format(threads), "//tests/support:float64"],
            **kwargs
        )
