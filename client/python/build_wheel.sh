#!/usr/bin/env bash
# Builds the wheel of the package, offline, with Debian's setuptools. The same sources give the same
# bytes: times and modes of files are fixed.
#
#   client/python/build_wheel.sh FOLDER DESCRIPTORS OUTPUT
#
# FOLDER is client/python, DESCRIPTORS the set of descriptors, OUTPUT the wheel.
set -euo pipefail
folder=$1 descriptors=$2 output=$3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/source/residentd/torch" "$work/wheel" "$work/home"
install -m 644 "$folder"/{pyproject.toml,README.md} "$work/source/"
install -m 644 "$folder"/residentd/{*.py,py.typed} "$work/source/residentd/"
install -m 644 "$folder"/residentd/torch/*.py "$work/source/residentd/torch/"
install -m 644 "$descriptors" "$work/source/residentd/descriptors.bin"
umask 022
cd "$work/source"
log=$work/log
HOME=$work/home SOURCE_DATE_EPOCH=1700000000 /usr/bin/python3 -m pip --disable-pip-version-check \
  --no-cache-dir wheel --no-build-isolation --no-index --no-deps --wheel-dir "$work/wheel" . \
  >"$log" 2>&1 || {
  cat "$log" >&2
  exit 1
}
cd "$OLDPWD"
install -m 644 "$work"/wheel/*.whl "$output"
