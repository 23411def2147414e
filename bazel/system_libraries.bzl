"""System libraries as Bazel targets, with flags from pkg-config.

Each entry of _LIBRARIES becomes @system//:NAME. @system//:python.bzl has PYTHON_COPTS, the options for sources that
include Python.h.
"""

# name -> (pkg-config modules, extra link flags)
_LIBRARIES = {
    "absl": ([
        "absl_base",
        "absl_cleanup",
        "absl_flags",
        "absl_flags_parse",
        "absl_flags_usage",
        "absl_flat_hash_map",
        "absl_flat_hash_set",
        "absl_hash",
        "absl_inlined_vector",
        "absl_random_random",
        "absl_span",
        "absl_status",
        "absl_statusor",
        "absl_str_format",
        "absl_strings",
        "absl_synchronization",
        "absl_time",
    ], []),
    "benchmark": (["benchmark"], []),
    "cli11": (["CLI11"], []),
    "gmock": (["gmock"], []),
    "grpc": (["grpc++", "protobuf"], []),
    "gtest": (["gtest"], []),
    "gtest_main": (["gtest_main"], []),
    "json": (["nlohmann_json"], []),
    "openssl": (["libssl", "libcrypto"], []),
    "prometheus": (["prometheus-cpp-core"], ["-lcivetweb-cpp", "-lcivetweb"]),
    "protobuf": (["protobuf"], []),
    "seccomp": (["libseccomp"], []),
    "sqlite": (["sqlite3"], []),
    "yaml": (["yaml-cpp"], []),
    "zlib": (["zlib"], []),
    "zstd": (["libzstd"], []),
}

# name -> deps of the target, as a Starlark expression
_DEPS = {
    "absl": """select({
    "@//bazel/tsan": ["@//bazel/tsan:absl_mutex"],
    "//conditions:default": [],
})""",
}

def _pkg_config(ctx, args):
    result = ctx.execute(["pkg-config"] + args)
    if result.return_code != 0:
        fail("pkg-config {}: {}Fix: run deploy/setup-debian.sh".format(
            " ".join(args),
            result.stderr,
        ))
    return [flag for flag in result.stdout.strip().split(" ") if flag]

def _last_of_each(flags):
    """Keeps only the last of equal link flags: pkg-config repeats a library hundreds of times."""
    kept = []
    for flag in reversed(flags):
        if flag.startswith("-l") and flag in kept:
            continue
        kept.append(flag)
    return reversed(kept)

def _system_libraries_impl(ctx):
    build = ["package(default_visibility = [\"//visibility:public\"])"]
    for name, (modules, extra) in _LIBRARIES.items():
        copts = [
            flag
            for flag in _pkg_config(ctx, ["--cflags"] + modules)
            if flag.startswith("-D") or flag.startswith("-I") and not flag.startswith("-I/usr/include")
        ]
        links = extra + _last_of_each(_pkg_config(ctx, ["--libs"] + modules))
        build.append("cc_library(name = {}, defines = {}, linkopts = {}, deps = {})".format(
            repr(name),
            repr([flag[2:] for flag in copts if flag.startswith("-D")]),
            repr(links),
            _DEPS.get(name, "[]"),
        ))
    ctx.file("python.bzl", "PYTHON_COPTS = {}\n".format(repr(_pkg_config(ctx, ["--cflags", "python3"]))))
    ctx.file("WORKSPACE", "workspace(name = \"system\")\n")
    ctx.file("BUILD.bazel", "\n".join(build) + "\n")

system_libraries = repository_rule(
    implementation = _system_libraries_impl,
    configure = True,
    local = True,
)
