"""A header that is compiled once and read by many sources.

precompiled_header(name, src, deps, copts) compiles the header `src` with the options of a source that
has the given `copts`. A target whose deps contain NAME, and whose copts are these and `-include NAME.h`, reads
the result in place of parsing the header (bazel/resident.bzl adds both). The compiler uses it only for a
source with the same options; otherwise it warns (-Winvalid-pch), which is an error in CI.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")

def _gch_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features + ["module_maps"],
    )
    deps = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    context = deps.compilation_context
    header = ctx.outputs.header
    ctx.actions.symlink(output = header, target_file = ctx.file.src)
    output = ctx.actions.declare_file(ctx.outputs.header.basename + ".gch")
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = output.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
        include_directories = context.includes,
        quote_include_directories = depset(["."], transitive = [context.quote_includes]),
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
        use_pic = True,
    )
    options = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = variables,
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
        ),
        arguments = ["-x", "c++-header"] + options,
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        inputs = depset([header, ctx.file.src] + ctx.files.hdrs, transitive = [context.headers, toolchain.all_files]),
        outputs = [output],
        mnemonic = "PrecompileHeader",
        progress_message = "Precompiling %s" % ctx.file.src.short_path,
    )
    return [DefaultInfo(files = depset([header, output]))]

_gch = rule(
    implementation = _gch_impl,
    attrs = {
        "src": attr.label(allow_single_file = [".h"]),
        "hdrs": attr.label_list(allow_files = [".h"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "header": attr.output(),
        "copts": attr.string_list(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def precompiled_header(name, src, copts, deps, hdrs = []):
    """See above.

    Args:
      name: the cc_library for the deps of the targets that use the header; they include NAME.h.
      src: the header.
      copts: those of the targets, without -include.
      deps: of the header.
      hdrs: headers of this package that src includes.
    """
    _gch(
        name = name + "_gch",
        header = name + ".h",
        src = src,
        hdrs = hdrs,
        copts = copts,
        deps = deps,
    )
    native.cc_library(
        name = name,
        textual_hdrs = [":" + name + "_gch"],
    )
