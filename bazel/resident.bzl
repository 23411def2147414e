"""The project's C++ targets: headers and sources are derived from the name.

resident_library(name = "x") contains x.h and x.cc, if they exist; resident_test(name = "x_test")
contains x_test.cc with GoogleTest's main. All may use Abseil and the status macros. The other
attributes are those of cc_library and cc_test.

The headers that most sources include are compiled once (//bazel/headers). A target with `copts` of its own, or
with `precompiled = False`, parses them itself.
"""

_MACROS = "//runtime/base:status_macros"

# A test's own code need not be fast, and an assertion names its line without debug information.
TEST_OPTIONS = ["-O1", "-g0"]

def _headers(name, options, kwargs):
    """Adds the precompiled header //bazel/headers:NAME to the attributes of a target; returns its deps.

    With a sanitizer or another compiler (--config=sanitizer) sources are compiled as they stand.
    """
    if not kwargs.pop("precompiled", True):
        kwargs["copts"] = kwargs.get("copts", []) + options
        return []
    if "copts" in kwargs:
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
    native.cc_library(
        name = name,
        srcs = sources,
        hdrs = native.glob([name + ".h"]) if hdrs == None else hdrs,
        deps = deps + ["@system//:absl"] + ([] if name == "status_macros" else [_MACROS]) + headers,
        **kwargs
    )

def resident_test(name, srcs = None, deps = [], **kwargs):
    headers = _headers("test", TEST_OPTIONS, kwargs)
    native.cc_test(
        name = name,
        srcs = [name + ".cc"] if srcs == None else srcs,
        deps = deps + ["@system//:absl", "@system//:gtest_main", _MACROS] + headers,
        **kwargs
    )
