"""fuzz_target: a libFuzzer target that is also a test.

In an ordinary build it runs with //bazel/fuzz:driver, which calls it with random inputs
for a few seconds. With --config=fuzz (make fuzz) it is a libFuzzer program under clang's
AddressSanitizer and UBSan, guided by coverage.
"""

def fuzz_target(name, srcs, deps = []):
    """Defines a test of a file that defines LLVMFuzzerTestOneInput.

    Args:
      name: the test's name.
      srcs: sources; one of them defines LLVMFuzzerTestOneInput.
      deps: their dependencies.
    """
    native.cc_test(
        name = name,
        size = "small",
        srcs = srcs,
        linkopts = select({
            "//bazel/fuzz:libfuzzer": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        linkstatic = True,
        tags = ["fuzz"],
        deps = deps + select({
            "//bazel/fuzz:libfuzzer": [],
            "//conditions:default": ["//bazel/fuzz:driver"],
        }),
    )
