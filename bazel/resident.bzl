"""The project's C++ targets: headers and sources are derived from the name.

resident_folder contains all sources of its folder, which is the rule; resident_library(name = "x") contains
x.h and x.cc, if they exist; resident_test(name = "x_test") contains x_test.cc with GoogleTest's main. All may use Abseil and the status macros. The other
attributes are those of cc_library and cc_test.

The headers that most sources include are compiled once (//bazel/headers). A target with `copts` of its own, or
with `precompiled = False`, parses them itself.
"""

_MACROS = "//runtime/base:status_macros"

# So many sources of a library are compiled together, as one: more than half of the time of a small source
# is parsing and the instantiation of templates of its headers, which all sources of a folder have in common.
_TOGETHER = 4

# GCC warns about members of a type in an anonymous namespace if they are in an included file.
_SOURCES_ARE_NO_HEADERS = """#ifndef __clang__
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif
"""

def _together_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".cc")
    ctx.actions.write(out, _SOURCES_ARE_NO_HEADERS + "".join([
        '#include "{}"\n'.format(source.short_path)
        for source in ctx.files.srcs
    ]))
    return [DefaultInfo(files = depset([out]))]

_together = rule(
    implementation = _together_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".cc"])},
)

def sources_together(name, sources):
    """Returns (srcs, textual_hdrs) of a library with these sources, of which several are compiled together."""
    units = [source for source in sources if source.endswith(".cc")]
    count = (len(units) + _TOGETHER - 1) // _TOGETHER
    if count == len(units):
        return sources, []
    together = []
    for i in range(count):
        together.append("{}_sources_{}".format(name, i + 1))
        _together(
            name = together[-1],
            srcs = units[i * len(units) // count:(i + 1) * len(units) // count],
            visibility = ["//visibility:private"],
        )
    return together + [source for source in sources if not source.endswith(".cc")], units

# A test's own code need not be fast, and an assertion names its line without debug information.
TEST_OPTIONS = ["-O1", "-g0"]

def _headers(name, options, kwargs):
    """Adds the precompiled header //bazel/headers:NAME to the attributes of a target; returns its deps.

    With a sanitizer or libFuzzer (--config=sanitizer and those that derive from it) sources are compiled as they stand.
    """
    if not kwargs.pop("precompiled", True) or "copts" in kwargs:
        return []
    kwargs["copts"] = select({
        "//bazel:instrumented": [],
        "//conditions:default": options + [
            "-Winvalid-pch",
            "-include",
            "$(BINDIR)/bazel/headers/{}.h".format(name),
        ],
    })
    return select({
        "//bazel:instrumented": [],
        "//conditions:default": ["//bazel/headers:" + name],
    })

def resident_library(name, srcs = None, hdrs = None, deps = [], **kwargs):
    sources = native.glob([name + ".cc"]) if srcs == None else srcs
    headers = _headers("library", [], kwargs) if sources else []
    sources, textual = sources_together(name, sources)
    native.cc_library(
        name = name,
        srcs = sources,
        textual_hdrs = textual + kwargs.pop("textual_hdrs", []),
        hdrs = native.glob([name + ".h"]) if hdrs == None else hdrs,
        deps = deps + ["@system//:absl"] + ([] if name == "status_macros" else [_MACROS]) + headers,
        **kwargs
    )

# Sources that only tests build; tools/structure has the same rule.
_FOR_TESTS = ["*_test", "*_for_test", "*_harness", "*_benchmark", "fake_*", "scripted_*", "manual_*", "bench_*"]

def resident_folder(name, without = [], deps = [], **kwargs):
    """The library of a folder: all its sources and headers, without those that only tests build.

    Args:
      name: the folder's name.
      without: names of other libraries' sources in this folder, without suffix.
      deps: as usual.
      **kwargs: as usual.
    """
    exclude = _FOR_TESTS + without
    resident_library(
        name = name,
        srcs = native.glob(["*.cc"], exclude = [pattern + ".cc" for pattern in exclude]),
        hdrs = native.glob(["*.h"], exclude = [pattern + ".h" for pattern in exclude]),
        deps = deps,
        **kwargs
    )

def resident_test_cases(name, srcs, deps = [], **kwargs):
    """Test cases for several programs, which link them whole. Attributes: as resident_test."""
    headers = _headers("test", TEST_OPTIONS, kwargs)
    native.cc_library(
        name = name,
        testonly = True,
        srcs = srcs,
        alwayslink = True,
        visibility = ["//tests:__subpackages__"],
        deps = deps + ["@system//:absl", "@system//:gtest", _MACROS] + headers,
        **kwargs
    )

def resident_test(name, srcs = None, deps = [], shared = False, precompiled = True, **kwargs):
    """A test.

    Args:
      name: the test's name.
      srcs: as usual.
      deps: as usual.
      shared: whether other programs (//tests/gpu) contain the same cases: those depend on NAME_cases, so
        that the sources are compiled once.
      precompiled: see above.
      **kwargs: as usual.
    """
    srcs = [name + ".cc"] if srcs == None else srcs
    if shared:
        resident_test_cases(name + "_cases", srcs, deps, precompiled = precompiled)
        srcs = []
        deps = [":" + name + "_cases"]
    headers = _headers("test", TEST_OPTIONS, kwargs) if srcs and precompiled else []
    native.cc_test(
        name = name,
        srcs = srcs,
        deps = deps + ["@system//:absl", "@system//:gtest_main", _MACROS] + headers,
        **kwargs
    )
