#!/bin/sh
# Runs the README's first steps on a bare Debian 12, as root in the sources' folder.
set -eu
for program in make g++ bazel; do
  if command -v "$program"; then
    echo "this Debian is not bare" >&2
    exit 1
  fi
done
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq make git
make demo
# A second setup has nothing to do and prints nothing.
test -z "$(deploy/setup-debian.sh)"
