#!/usr/bin/env bash
# A C program uses the installed library: a C compiler builds docs/examples/resident_ops.c, as C99 and as C++,
# with the flags of pkg-config, and it runs without further settings, also after the folder was
# moved. The library exports the functions of its header only.
#
#   tests/library/example_test.sh INSTALL_HEADERS_SH LIBRESIDENT_OPS_SO BUNDLE_FILES_SH PAGE
#
# PAGE is docs/ops_library.md, which contains the example.
set -uo pipefail

install_headers=$1 library=$2 bundle_files=$3 page=$4
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/library.XXXXXX")
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
example=$prefix/docs/examples/resident_ops.c
expected='0.0900 0.2447 0.6652
0.3333 0.3333 0.3333
refused: softmax takes 2 arguments and got 1. Fix: pass one argument for each of: x, out'

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

flags() { PKG_CONFIG_PATH=$1/lib/pkgconfig pkg-config --cflags --libs resident_ops; }
compile() {  # prefix compiler option...
  local all
  read -ra all <<<"$(flags "$1")"
  shift
  "$@" -Wall -Wextra -pedantic -Werror "$example" -o "$work/example" "${all[@]}"
}
prints() { [[ $(env -i "$work/example") == "$expected" ]]; }
moved() {
  mv "$prefix" "$work/moved"
  example=$work/moved/docs/examples/resident_ops.c
  compile "$work/moved" cc -std=c99 && prints
  local status=$?
  mv "$work/moved" "$prefix"
  return "$status"
}
exports() {
  local exported declared
  exported=$(nm -D --defined-only "$prefix/lib/libresident_ops.so" | awk '$2 == "T" { print $3 }')
  declared=$(grep -oE '\bresident_ops_[a-z_]+\(' "$prefix/include/resident_ops.h" | tr -d '(' | sort -u |
    grep -vxE 'resident_ops_(dense|real|integer)')
  diff <(sort <<<"$exported") <(echo "$declared")
}

# shellcheck disable=SC2016  # The page has backquotes.
page_has_example() { diff <(sed -n '/^```c$/,/^```$/p' "$page" | sed '1d;$d') "$example"; }

check "the library is installed" "$bundle_files" "$prefix" 20 "$library"
check "the header is installed" "$install_headers" "$prefix"
check "the page has the same example" page_has_example
check "C99 compiles" compile "$prefix" cc -std=c99
check "the example prints the softmax and a refusal" prints
check "C++ compiles" compile "$prefix" c++ -x c++ -std=c++11
check "the same from C++" prints
check "it works after the folder was moved" moved
check "the exports are the functions of the header" exports

echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
