#!/usr/bin/env bash
# A bundle runs on a machine without further packages: its programs find every library in the
# bundle, in an empty environment and in a root directory that contains only the bundle and
# glibc. Its NOTICE names every library of others, and it has the license of each.
#
#   bazel/bundle_test.sh BUNDLE_FILES_SH LIMIT_MIB PROGRAM...
set -uo pipefail

bundle_files=$(realpath "$1") limit_mib=$2
shift 2
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/bundle.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
dist=$root/opt/residentd

passed=0 failed=0
check() {  # what command...
  local what=$1 output
  shift
  if output=$("$@" 2>&1); then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'failed: %s\n%s\n' "$what" "$output"
  fi
}

check "the bundle is created, and is not too large" "$bundle_files" "$dist" "$limit_mib" "$@"

refused() {
  local output
  output=$("$bundle_files" "$work/small" 0 "$1" 2>&1) && return 1
  grep 'over the limit of 0 MiB' <<<"$output"
}
check "a bundle over its limit is refused, with the reason" refused "$1"

# Programs behind --tests: at a limit that the first program just meets, a large one more is in the
# bundle, and is refused without --tests.
tests_do_not_count() {
  local large=${*: -1} limit
  "$bundle_files" "$work/alone" 1000 "$1" || return 1
  limit=$((($(du -sb "$work/alone" | cut -f1) >> 20) + 1))
  "$bundle_files" "$work/with_tests" "$limit" "$1" --tests "$large" || return 1
  [[ -x $work/with_tests/bin/${large##*/} ]] || return 1
  ! "$bundle_files" "$work/counted" "$limit" "$1" "$large"
}
check "programs that only test do not count" tests_do_not_count "$@"

has_license() {
  grep -q 'Apache License' "$dist/LICENSE" &&
    grep -q 'Licensed under the Apache License' "$dist/NOTICE"
}
check "the bundle has its license and notice" has_license

# The table of NOTICE names libraries without their version; `*` stands for any characters.
named_in_notice() {
  local library name pattern found wrong=0 count=0
  local -a patterns
  mapfile -t patterns < <(sed -n 's/^| *\([^|]*\) |.*/\1/p' "$dist/NOTICE" |
    grep -oE 'lib[A-Za-z0-9_+*-]+')
  for library in "$dist"/lib/*; do
    name=${library##*/} name=${name%%.so*} found=0
    [[ $name == libresident_* ]] && continue
    count=$((count + 1))
    # shellcheck disable=SC2053 # A pattern.
    for pattern in "${patterns[@]}"; do [[ $name == $pattern ]] && found=1; done
    [[ $found == 1 ]] && continue
    echo "NOTICE does not name ${library##*/}"
    wrong=1
  done
  [[ $count -gt 0 && $wrong == 0 ]]
}
check "NOTICE names every library of the bundle" named_in_notice

# The license of a library is the copyright file of a package of the same source as the one that
# contains the library on this machine.
find_source() { dpkg-query -W -f='${source:Package}' "${1%%:*}" 2>/dev/null; }
has_every_license() {
  local name package path source wrong=0
  local -a names
  local -A sources=() licensed=()
  for path in "$dist"/licenses/*; do
    name=${path##*/}
    cmp -s "/usr/share/doc/$name/copyright" "$dist/licenses/$name" || continue
    source=$(find_source "$name") && sources[$source]=1
  done
  mapfile -t names < <(cd "$dist/lib" && printf '%s\n' * | grep -v '^libresident_')
  while read -r package path; do
    source=$(find_source "$package") && [[ -n ${sources[$source]:-} ]] && licensed[${path##*/}]=1
  done < <(dpkg -S "${names[@]/#/*/}" 2>/dev/null)
  for name in "${names[@]}"; do
    [[ -n ${licensed[$name]:-} ]] && continue
    echo "the bundle has no license of $name"
    wrong=1
  done
  [[ ${#names[@]} -gt 0 && $wrong == 0 ]]
}
check "the bundle has the license of every library" has_every_license
has_compiled_in_licenses() {
  grep -q 'CLI11' "$dist/licenses/libcli11-dev" &&
    grep -q 'Niels Lohmann' "$dist/licenses/nlohmann-json3-dev" &&
    grep -q 'Google' "$dist/licenses/libgtest-dev" &&
    grep -q 'GNU GENERAL PUBLIC LICENSE' "$dist/licenses/GPL-3" &&
    grep -q 'GNU LESSER GENERAL PUBLIC LICENSE' "$dist/licenses/LGPL-2.1"
}
check "the bundle has the licenses of what is compiled in" has_compiled_in_licenses
no_license() {
  mv "$dist/licenses" "$dist/licenses.moved"
  has_every_license
  local status=$?
  mv "$dist/licenses.moved" "$dist/licenses"
  [[ $status != 0 ]]
}
check "a bundle without licenses is detected" no_license

# Without any environment, the loader uses only libraries of the bundle and of glibc.
only_ours() {
  local library path wrong=0
  while read -r library _ path _; do
    case $library in
      linux-vdso.so.* | /lib*/ld-linux*) continue ;;
      libc.so.6 | libm.so.6 | libpthread.so.0 | libdl.so.2 | librt.so.1 | libresolv.so.2) continue ;;
    esac
    [[ $(realpath "$path") == "$(realpath "$dist")"/lib/* ]] && continue
    echo "$library comes from $path"
    wrong=1
  done < <(env -i /usr/bin/ldd "$1")
  return "$wrong"
}
runs() { env -i "$1" --version; }

# The same in a root directory without any other library.
glibc() {
  local file
  for file in "$@"; do
    mkdir -p "$root$(dirname "$file")"
    cp -L "$file" "$root$file"
  done
}
glibc /lib64/ld-linux-x86-64.so.2 /lib/x86_64-linux-gnu/lib{c,m}.so.6 \
  /lib/x86_64-linux-gnu/lib{pthread,dl,rt,resolv}.so.[012]
as_root=()
[[ $(id -u) -eq 0 ]] || as_root=(unshare --map-root-user)
# The loader finds the program's folder through /proc, which is missing in this root directory;
# LD_ORIGIN_PATH replaces it.
runs_alone() {
  env -i LD_ORIGIN_PATH=/opt/residentd/bin "${as_root[@]}" \
    /usr/sbin/chroot "$root" "/opt/residentd/bin/$1" --version
}

# The library paths are relative, so that a bundle may be moved.
moved() {
  local status
  mv "$dist" "$dist.moved"
  runs "$dist.moved/bin/$1"
  status=$?
  mv "$dist.moved" "$dist"
  return "$status"
}
# A library in LD_LIBRARY_PATH does not replace one of the bundle.
ignores_library_path() {
  mkdir -p "$work/decoy"
  local library
  for library in "$dist"/lib/*; do echo "not a library" >"$work/decoy/${library##*/}"; done
  env -i LD_LIBRARY_PATH="$work/decoy" "$dist/bin/$1" --version
}

for program in "$@"; do
  name=$(basename "$program")
  check "$name takes its libraries from the bundle" only_ours "$dist/bin/$name"
  check "$name runs in an empty environment" runs "$dist/bin/$name"
  check "$name runs with only glibc installed" runs_alone "$name"
  check "$name runs after the bundle was moved" moved "$name"
  check "$name ignores LD_LIBRARY_PATH" ignores_library_path "$name"
done

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
