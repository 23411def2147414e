#!/usr/bin/env bash
# Installs what programs need besides libresident_ops.so and libresidentd_lane.so: the headers, the files for
# pkg-config, the examples, and the Python binding of the first.
#
#   library/install_headers.sh PREFIX
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
prefix=$1

install -d "$prefix/include" "$prefix/lib/pkgconfig" "$prefix/python/resident_ops" "$prefix/docs/examples"
install -m 644 "$here/resident_ops.h" "$prefix/include/"
install -m 644 "$here/resident_ops.pc" "$prefix/lib/pkgconfig/"
install -m 644 "$here"/python/resident_ops/*.py "$prefix/python/resident_ops/"
install -m 644 "$here/../docs/examples/resident_ops.c" "$prefix/docs/examples/resident_ops.c"
install -m 644 "$here/../client/lane/residentd_lane.h" "$prefix/include/"
install -m 644 "$here/../client/lane/residentd_lane.pc" "$prefix/lib/pkgconfig/"
install -m 644 "$here/../docs/examples/lane_add.c" "$prefix/docs/examples/"
