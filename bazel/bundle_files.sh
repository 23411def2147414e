#!/usr/bin/env bash
# Copies programs and every shared library that they need, except those of glibc, so
# that they run on a machine without further packages whose glibc is not older than this one's.
#
#   bazel/bundle_files.sh FOLDER LIMIT_MIB PROGRAM... [--tests PROGRAM...]
#
# A PROGRAM may also be a shared library (NAME.so), which is stripped except for what it exports.
# FOLDER gets LICENSE, and NOTICE, which names the license of each library. FOLDER/licenses gets the
# texts: the copyright file of each Debian package of which a library is copied, or that is compiled
# into the programs, and the licenses to which these files refer. FOLDER/bin gets the programs,
# FOLDER/lib the libraries (libstdc++ and libgcc_s too), all stripped. Each PROGRAM gets a
# DT_RPATH relative to itself, which the loader also uses for what the libraries need. DT_RPATH takes
# precedence over LD_LIBRARY_PATH, so that no library of the machine replaces one of these. Fails if
# the total size is over LIMIT_MIB, and lists the largest files; programs behind --tests, which only
# test the others, do not count.
set -euo pipefail

folder=$1 limit_mib=$2
shift 2
mkdir -p "$folder/bin" "$folder/lib" "$folder/licenses"
install -m 644 "$(dirname "$0")"/../{LICENSE,NOTICE} "$folder/"

# Packages of one source may share a file, which one of them contains. The others link to its folder,
# but images without documents may have no links.
copy_license() {  # package
  local doc source other
  doc=$(realpath "/usr/share/doc/$1")
  if [[ ! -s $doc/copyright ]]; then
    source=$(dpkg-query -W -f='${source:Package}' "$1")
    for other in $(dpkg-query -W -f='${Package} ${source:Package}\n' |
      awk -v source="$source" '$2 == source { print $1 }'); do
      [[ -s /usr/share/doc/$other/copyright ]] && doc=$(realpath "/usr/share/doc/$other")
    done
  fi
  if [[ ! -s $doc/copyright ]]; then
    echo "bundle: $doc/copyright, the license of the package $1, does not exist" >&2
    exit 1
  fi
  install -m 644 "$doc/copyright" "$folder/licenses/${doc##*/}"
}
for package in libcli11-dev nlohmann-json3-dev libgtest-dev; do copy_license "$package"; done
# Apache-2.0 is in LICENSE. The copyright files contain the other licenses of what is shipped.
install -m 644 /usr/share/common-licenses/{GPL-3,LGPL-2.1} "$folder/licenses/"

# glibc must match the machine's loader and kernel, so it is not included.
glibc='^(ld-linux.*|libc|libm|libpthread|libdl|librt|libresolv|libutil|libanl|libnss_.*)\.so\.'

of_others=()
is_test=0 bytes_of_tests=0
for program in "$@"; do
  if [[ $program == --tests ]]; then
    is_test=1
    continue
  fi
  name=$(basename "$program")
  if [[ $name == *.so ]]; then
    install -m 755 "$program" "$folder/lib/$name"
    strip --strip-unneeded "$folder/lib/$name"
    patchelf --force-rpath --set-rpath "\$ORIGIN" "$folder/lib/$name"
  else
    install -m 755 "$program" "$folder/bin/$name"
    strip "$folder/bin/$name"
    patchelf --force-rpath --set-rpath "\$ORIGIN/../lib" "$folder/bin/$name"
    ((is_test == 0)) || bytes_of_tests=$((bytes_of_tests + $(stat -c %s "$folder/bin/$name")))
  fi

  needed=$(ldd "$program")
  if grep 'not found' <<<"$needed" >&2; then
    echo "bundle: $program needs libraries that this machine does not have (above)" >&2
    exit 1
  fi
  while read -r library _ path _; do
    [[ $path == /* && ! $library =~ $glibc && ! -e $folder/lib/$library ]] || continue
    install -m 644 "$path" "$folder/lib/$library"
    [[ $library == libresident_* ]] || of_others+=("$(realpath "$path")")
    strip --strip-unneeded "$folder/lib/$library"
    # A path of its own would replace that of the program. The others are left as they are, because
    # patchelf makes a library with many symbols a tenth larger.
    if [[ -n $(patchelf --print-rpath "$folder/lib/$library") ]]; then
      patchelf --force-rpath --set-rpath "\$ORIGIN" "$folder/lib/$library"
    fi
  done <<<"$needed"
done

# A library in /lib, which is /usr/lib, may have been packaged under either name.
declare -A packages=()
while read -r package path; do
  packages[/usr${path#/usr}]=${package%%:*}
done < <(dpkg -S "${of_others[@]}" "${of_others[@]#/usr}" 2>/dev/null || true)
for path in "${of_others[@]}"; do
  if [[ -z ${packages[/usr${path#/usr}]:-} ]]; then
    echo "bundle: $path belongs to no package, so that its license is unknown" >&2
    exit 1
  fi
  copy_license "${packages[/usr${path#/usr}]}"
done

bytes=$(($(du -sb "$folder" | cut -f1) - bytes_of_tests))
if ((bytes > limit_mib << 20)); then
  echo "bundle: $((bytes >> 20)) MiB, over the limit of $limit_mib MiB. The largest files, in bytes:" >&2
  find "$folder" -type f -printf '%s %P\n' | sort -rn | sed -n 1,15p >&2
  exit 1
fi
