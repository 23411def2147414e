"""The CUDA toolkit, if it is installed.

@cuda//:headers   cuda.h, nvrtc.h, nvJitLink.h; defines RESIDENT_HAVE_CUDA=1. An
                  empty target without a toolkit: the same sources then build a
                  daemon that has only the CPU engine.
@cuda//:defs.bzl  HAVE_CUDA (bool) and NVCC (path of the compiler).

The rule searches for the toolkit in $CUDA_HOME, or by default in /usr/local/cuda. CUDA_HOME=none
builds without it.
"""

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
    ctx.file("defs.bzl", "HAVE_CUDA = {}\nCUDA_HOME = {}\nNVCC = {}\n".format(
        found,
        repr(home),
        repr(home + "/bin/nvcc"),
    ))

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    configure = True,
    environ = ["CUDA_HOME"],
    local = True,
)
