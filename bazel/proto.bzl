"""resident_proto_library: C++ messages and gRPC stubs of one .proto file.

Uses the system's protoc and grpc_cpp_plugin, so that generated code matches
the system's libraries.
"""

load(":resident.bzl", "sources_together")

def resident_proto_library(name, src, deps = [], grpc = False, import_root = "proto", visibility = None):
    """Generates and compiles one .proto.

    Args:
      name: the cc_library's name.
      src: the .proto file, in this package.
      deps: other resident_proto_library targets that src imports.
      grpc: whether to also generate service stubs.
      import_root: the folder from which imports and includes of it begin; "": the repository's.
      visibility: as usual.
    """
    stem = src[:-len(".proto")]
    package = native.package_name()
    outs = [stem + ".pb.h", stem + ".pb.cc"]
    # Imports and includes of the API are relative to proto/: "resident/v1/types.proto".
    root = "$(GENDIR)/" + import_root
    command = "protoc -I{} --cpp_out={}".format(import_root or ".", root)
    if grpc:
        outs += [stem + ".grpc.pb.h", stem + ".grpc.pb.cc"]
        command += " --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=" + root
    native.filegroup(
        name = name + "_src",
        srcs = [src] + [dep + "_src" for dep in deps],
        visibility = ["//visibility:public"],
    )
    native.genrule(
        name = name + "_gen",
        srcs = [":" + name + "_src"],
        outs = outs,
        cmd = command + " {}/{}".format(package, src),
        message = "Generating",
    )
    sources, textual = sources_together(name, [out for out in outs if out.endswith(".cc")])
    native.cc_library(
        name = name,
        srcs = sources,
        textual_hdrs = textual,
        hdrs = [out for out in outs if out.endswith(".h")],
        copts = ["-w"],
        includes = ["."] if import_root else [],
        visibility = visibility,
        deps = deps + (["@system//:grpc"] if grpc else ["@system//:protobuf"]),
    )
