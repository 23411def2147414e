#!/usr/bin/env bash
# Installs what residentd needs to build and test on Debian 12, from the
# distribution's packages. Idempotent; prints nothing if nothing is missing.
# Run as root, or with sudo available.
#
#   deploy/setup-debian.sh            build and test dependencies
#   deploy/setup-debian.sh --check    only print what is missing; exit 1 if anything is
set -euo pipefail

packages=(
  # Toolchain and build.
  bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto bazel-skylib
  binutils ca-certificates clang clang-format clang-tidy file g++ git libclang-rt-14-dev make patchelf
  pkg-config python3 python3-grpcio python3-numpy python3-pip python3-protobuf
  python3-setuptools python3-venv python3-wheel shellcheck zstd
  # Libraries.
  libabsl-dev libbenchmark-dev libc-ares-dev libcivetweb-dev libcli11-dev libgmock-dev libgrpc++-dev
  libgtest-dev libprotobuf-dev libpython3-dev libre2-dev libseccomp-dev libsqlite3-dev libssl-dev
  libyaml-cpp-dev libzstd-dev nlohmann-json3-dev prometheus-cpp-dev zlib1g-dev
  # Code generators.
  protobuf-compiler protobuf-compiler-grpc
  # The Prometheus server and promtool, for the metrics tests; a browser, for the test of the
  # console; nginx, for the test of the reverse proxy; openssl, for certificates; dnsmasq, for the
  # test of several daemons behind one name.
  chromium dnsmasq-base nginx-light openssl prometheus
)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ "$status" == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

if [[ "${1:-}" == --check ]]; then
  echo "missing packages: ${missing[*]}" >&2
  echo "Fix: run deploy/setup-debian.sh as root" >&2
  exit 1
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || { echo "setup: not root and no sudo. Fix: run as root: apt-get install ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi

# The packages of nginx and prometheus would start services on the build machine: deny service
# starts while the packages are installed.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
fi

echo "setup: installing ${#missing[@]} packages: ${missing[*]}"
log=$(mktemp)
run() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "$@" >"$log" 2>&1 || {
    cat "$log" >&2
    echo "setup: '$*' failed (output above)" >&2
    exit 1
  }
}
run apt-get update -qq
run apt-get install -y -qq --no-install-recommends "${missing[@]}"
rm -f "$log"
echo "setup: done"
