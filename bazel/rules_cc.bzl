"""A rules_cc that re-exports Bazel's own C++ rules.

The distribution's rules_cc needs a newer Bazel than the distribution's; the native rules are part
of Bazel itself.
"""

_RULES = [
    "cc_binary",
    "cc_import",
    "cc_library",
    "cc_proto_library",
    "cc_test",
    "cc_toolchain",
    "cc_toolchain_suite",
    "fdo_prefetch_hints",
    "fdo_profile",
    "objc_import",
    "objc_library",
]

def _native_rules_cc_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"rules_cc\")\n")
    ctx.file("BUILD.bazel", "")
    ctx.file("cc/BUILD.bazel", "")
    ctx.file(
        "cc/defs.bzl",
        "".join(["{0} = native.{0}\n".format(rule) for rule in _RULES]),
    )

native_rules_cc = repository_rule(implementation = _native_rules_cc_impl)
