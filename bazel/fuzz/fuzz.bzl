"""fuzz_target: a libFuzzer target that is a test as well.

In an ordinary build it runs with //bazel/fuzz:driver, which throws random inputs at it
for a few seconds. With --config=fuzz (make fuzz) it is a libFuzzer program under clang's
AddressSanitizer and UBSan, guided by coverage.
"""

def fuzz_target(name, srcs, deps = []):
    """Makes a test of a file that defines LLVMFuzzerTestOneInput.

    Args:
      name: the test's name.
      srcs: sources, one of them with LLVMFuzzerTestOneInput.
      deps: what they use.
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
