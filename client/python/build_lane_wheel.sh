#!/usr/bin/env bash
# Builds the wheel residentd-lane, whose tags are in its name. The same files give the same bytes.
#
#   client/python/build_lane_wheel.sh OUTPUT FILE...
#
# FILEs are what the package contains.
set -euo pipefail
output=$1
shift
IFS=- read -r package version tag < <(basename "$output" .whl)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
info=$work/wheel/$package-$version.dist-info
mkdir -p "$work/wheel/$package" "$info"
install -m 644 "$@" "$work/wheel/$package/"
strip --strip-unneeded "$work/wheel/$package"/*.so
cat >"$info/METADATA" <<END
Metadata-Version: 2.1
Name: residentd-lane
Version: $version
Summary: The library of residentd's local lanes, and a module that calls it
License: Apache-2.0
Requires-Python: >=3.10
END
cat >"$info/WHEEL" <<END
Wheel-Version: 1.0
Generator: residentd
Root-Is-Purelib: false
Tag: $tag
END
SOURCE_DATE_EPOCH=1700000000 /usr/bin/python3 -m wheel pack --dest-dir "$work" "$work/wheel" >"$work/log" || {
  cat "$work/log" >&2
  exit 1
}
install -m 644 "$work"/*.whl "$output"
