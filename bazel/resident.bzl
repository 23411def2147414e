"""The project's C++ targets: headers and sources are derived from the name.

resident_library(name = "x") contains x.h and x.cc, if they exist; resident_test(name = "x_test")
contains x_test.cc with GoogleTest's main. All may use Abseil and the status macros. The other
attributes are those of cc_library and cc_test.
"""

_MACROS = "//runtime/base:status_macros"

def resident_library(name, srcs = None, hdrs = None, deps = [], **kwargs):
    native.cc_library(
        name = name,
        srcs = native.glob([name + ".cc"]) if srcs == None else srcs,
        hdrs = native.glob([name + ".h"]) if hdrs == None else hdrs,
        deps = deps + ["@system//:absl"] + ([] if name == "status_macros" else [_MACROS]),
        **kwargs
    )

def resident_test(name, srcs = None, deps = [], **kwargs):
    native.cc_test(
        name = name,
        srcs = [name + ".cc"] if srcs == None else srcs,
        deps = deps + ["@system//:absl", "@system//:gtest_main", _MACROS],
        **kwargs
    )
