"""Device code, compiled ahead of time.

cuda_image(name, srcs, hdrs) compiles each source to relocatable device code for
every architecture of ARCHITECTURES (bazel/cuda_toolkit.bzl) and links each architecture's objects into one
image. The cc_library NAME contains these symbols:

  _binary_NAME_smXX_cubin_{start,end}  the linked image for architecture XX
  _binary_NAME_ptx_{start,end}         relocatable PTX of each source, each terminated by a
                                       zero byte: for other architectures, linked at
                                       run time with nvJitLink

With `compress` the files are compressed with zstd to a tenth of their size, and `_zst` is inserted
before {start,end} (runtime/image/embedded.h decompresses them).

NAME also defines RESIDENT_CUDA_ARCHITECTURES(X) as X(80)X(90)..., the architectures. NAME_files are
the embedded files.
"""

load("@cuda//:defs.bzl", "ARCHITECTURES", "CUDA_HOME", "NVCC")

PTX_ARCHITECTURE = "80"

# Must equal kMaxRegisters in kernels/resident/kernel_parameters.h.
MAX_REGISTERS = 96

_FLAGS = "-rdc=true -O3 -maxrregcount={}".format(MAX_REGISTERS)
_SOURCE_FLAGS = "-x cu -std=c++20 {} -I.".format(_FLAGS)

def cuda_image(name, srcs, hdrs, compress = False, hdrs_of = {}, visibility = None):
    """See above.

    Args:
      name: name of the cc_library and stem of the files.
      srcs: device sources (.cu or .cc, compiled as CUDA).
      hdrs: headers that they include.
      compress: whether to compress the embedded files with zstd.
      hdrs_of: further headers of single sources: a change of one compiles only these sources again.
      visibility: as usual.
    """
    ptx = []
    for i, src in enumerate(srcs):
        out = "{}_{}.ptx".format(name, i)
        ptx.append(out)
        native.genrule(
            name = out.replace(".", "_"),
            srcs = [src] + hdrs + hdrs_of.get(src, []),
            outs = [out],
            cmd = "{} {} -arch=compute_{} -ptx -o $@ $(location {})".format(
                NVCC,
                _SOURCE_FLAGS,
                PTX_ARCHITECTURE,
                src,
            ),
            message = "Compiling device code",
        )
    cubins = []
    for arch in ARCHITECTURES:
        objects = []
        for i, src in enumerate(srcs):
            out = "{}_{}_sm{}.cubin".format(name, i, arch)
            objects.append(out)

            # The PTX of this architecture exists already; the result is the same as from the source.
            from_ptx = arch == PTX_ARCHITECTURE
            native.genrule(
                name = out.replace(".", "_"),
                srcs = [ptx[i]] if from_ptx else [src] + hdrs + hdrs_of.get(src, []),
                outs = [out],
                cmd = "{} {} -arch=sm_{} -cubin -o $@ $(location {})".format(
                    NVCC,
                    _FLAGS if from_ptx else _SOURCE_FLAGS,
                    arch,
                    ptx[i] if from_ptx else src,
                ),
                message = "Compiling device code",
            )
        linked = "{}_sm{}.cubin".format(name, arch)
        cubins.append(linked)
        native.genrule(
            name = linked.replace(".", "_"),
            srcs = objects,
            outs = [linked],
            cmd = "{}/bin/nvlink -arch=sm_{} -o $@ $(SRCS)".format(CUDA_HOME, arch),
            message = "Linking device code",
        )

    # Zero-terminated texts, one after the other, without comments, indentation and empty lines.
    native.genrule(
        name = name + "_ptx",
        srcs = ptx,
        outs = [name + ".ptx"],
        cmd = ("for f in $(SRCS); do sed -e 's/^[[:space:]]*//' -e '/^\\/\\//d' -e '/^$$/d' $$f; " +
               "printf '\\000'; done > $@"),
    )
    files = []
    objects = []
    for file in cubins + [name + ".ptx"]:
        packed = file
        if compress:
            packed = file + ".zst"
            native.genrule(
                name = packed.replace(".", "_"),
                srcs = [file],
                outs = [packed],
                cmd = "zstd -19 -q $< -o $@",
            )

        files.append(packed)

        # ld derives the names of the symbols from the path of the file.
        objects.append(packed + ".o")
        native.genrule(
            name = packed.replace(".", "_") + "_object",
            srcs = [packed],
            outs = [packed + ".o"],
            cmd = "out=$$PWD/$@; cd $$(dirname $<) && ld -r -b binary -z noexecstack -o $$out " + packed,
        )
    native.filegroup(
        name = name + "_files",
        srcs = files,
        visibility = visibility,
    )
    defines = ["RESIDENT_CUDA_ARCHITECTURES(X)=" + "".join(["X({})".format(arch) for arch in ARCHITECTURES])]
    native.cc_library(
        name = name,
        srcs = objects,
        alwayslink = True,
        defines = defines,
        linkstatic = True,
        visibility = visibility,
    )
