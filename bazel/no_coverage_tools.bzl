"""A replacement of @remote_coverage_tools, which Bazel would otherwise fetch for every test.

`bazel coverage` fails with an error message; all other commands need only the label.
"""

def _no_coverage_tools_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"remote_coverage_tools\")\n")
    ctx.file(
        "no_coverage.sh",
        "#!/bin/sh\necho 'bazel coverage: not available offline' >&2\nexit 1\n",
        executable = True,
    )
    ctx.file("BUILD.bazel", """package(default_visibility = ["//visibility:public"])
sh_binary(name = "coverage_report_generator", srcs = ["no_coverage.sh"])
sh_binary(name = "lcov_merger", srcs = ["no_coverage.sh"])
""")

no_coverage_tools = repository_rule(implementation = _no_coverage_tools_impl)
