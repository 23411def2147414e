"""The CUDA toolkit, if it is installed.

@cuda//:headers   cuda.h, nvrtc.h, nvJitLink.h; defines RESIDENT_HAVE_CUDA=1. An
                  empty target without a toolkit: the same sources then build a
                  daemon that has only the CPU engine.
@cuda//:defs.bzl  HAVE_CUDA (bool), NVCC (path of the compiler) and ARCHITECTURES, for which device code
                  is compiled ahead of time.

The rule searches for the toolkit in $CUDA_HOME, or by default in /usr/local/cuda. CUDA_HOME=none
builds without it. RESIDENT_CUDA_ARCHITECTURES, for example 80,90, chooses the architectures (default: all
of ALL_ARCHITECTURES; none: only the PTX, which an engine links for its GPU when it starts).
"""

# Ampere and Ada, Hopper, Blackwell (B200; RTX 50). Code for an architecture also runs on later ones
# with the same major number (CUDA C++ Programming Guide, binary compatibility).
ALL_ARCHITECTURES = ["80", "90", "100", "120"]

def _architectures(ctx):
    names = ctx.os.environ.get("RESIDENT_CUDA_ARCHITECTURES", "")
    if names == "none":
        return []
    chosen = names.split(",") if names else ALL_ARCHITECTURES
    for name in chosen:
        if name not in ALL_ARCHITECTURES:
            fail("RESIDENT_CUDA_ARCHITECTURES={}: unknown architecture '{}'. Fix: use some of {}, or none".format(
                names,
                name,
                ",".join(ALL_ARCHITECTURES),
            ))
    return chosen

def _cuda_toolkit_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = home != "none" and ctx.path(home + "/include/cuda.h").exists and ctx.path(home + "/bin/nvcc").exists
    build = "package(default_visibility = [\"//visibility:public\"])\n"
    if found:
        ctx.symlink(home + "/include", "include")
        build += """cc_library(
    name = "headers",
    hdrs = ["include/cuda.h", "include/nvrtc.h", "include/nvJitLink.h"],
    includes = ["include"],
    defines = ["RESIDENT_HAVE_CUDA=1"],
)
"""
    else:
        build += "cc_library(name = \"headers\")\n"
    ctx.file("WORKSPACE", "workspace(name = \"cuda\")\n")
    ctx.file("BUILD.bazel", build)
    ctx.file("defs.bzl", "HAVE_CUDA = {}\nARCHITECTURES = {}\nCUDA_HOME = {}\nNVCC = {}\n".format(
        found,
        repr(_architectures(ctx)),
        repr(home),
        repr(home + "/bin/nvcc"),
    ))

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    configure = True,
    environ = [
        "CUDA_HOME",
        "RESIDENT_CUDA_ARCHITECTURES",
    ],
    local = True,
)
