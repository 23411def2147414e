#!/usr/bin/env bash
# Makes the folder for other machines (Debian 12, Ubuntu 24.04, or newer; they need only the
# NVIDIA driver, if there is a GPU):
#
#   LICENSE, NOTICE  of residentd, and which licenses the libraries have
#   licenses/   the texts of these
#   bin/        residentd, residentctl, the client's example, and the test programs of
#               tests/gpu/checks
#   lib/        every shared library that they need, except those of glibc; libresident_ops.so and
#               libresidentd_lane.so, with lib/pkgconfig for them
#   include/    the headers of these two
#   completions/  scripts for bash, zsh and fish that complete residentd's and residentctl's flags
#   deploy/     the demo
#   docs/       the example operators of the documents
#   python/     the Python packages, for pip; the binding of libresident_ops.so, for PYTHONPATH
#   tests/      tests/gpu/run and its inputs: the checks written in Python, and the messages that
#               some of them need
#
#   bazel/bundle.sh [FOLDER]        default: dist
#
# BAZEL_OPTIONS holds further options of Bazel, such as --config=ci.
set -euo pipefail
cd "$(dirname "$0")/.."

dist=${1:-dist}
# So that the folder is copied quickly. The programs that only test it do not count.
limit_mib=60
targets=(//server:residentd //client:residentctl //client:example)
test_targets=()
wheels=(//client/python:wheel //client/python:lane_wheel)
messages=//proto:python_messages
libraries=(//library:libresident_ops.so //client/lane:libresidentd_lane.so)
scripts=()
left_out=()
# Programs that are only for GPUs are not built without the CUDA toolkit.
gpu_programs=$(bazel query --noshow_progress 'kind(rule, //tests/gpu:all)')
have_cuda=$(grep -cx //tests/gpu:engine_tests <<<"$gpu_programs" || true)
while read -r _ target _; do
  if [[ $target == *.py ]]; then
    scripts+=("$target")
  elif [[ $have_cuda == 0 && $target == //tests/gpu:* ]] &&
    ! grep -qx "$target" <<<"$gpu_programs"; then
    left_out+=("${target#*:}")
  else
    test_targets+=("$target")
  fi
done < <(grep -v '^ *\(#\|$\)' tests/gpu/checks)
mapfile -t test_targets < <(printf '%s\n' "${test_targets[@]}" | sort -u)

read -ra options <<<"${BAZEL_OPTIONS:-}"
bazel/progress build "${options[@]}" "${targets[@]}" "${test_targets[@]}" "${wheels[@]}" "$messages" "${libraries[@]}"
bin=$(bazel info "${options[@]}" bazel-bin 2>/dev/null)
path_of() {  # target
  local path=${1#//}
  echo "$bin/${path/://}"
}
programs=()
for target in "${targets[@]}" "${libraries[@]}"; do programs+=("$(path_of "$target")"); done
programs+=(--tests)
for target in "${test_targets[@]}"; do programs+=("$(path_of "$target")"); done

rm -rf "$dist"
mkdir -p "$dist/tests/gpu"
install -m 755 tests/report_results.py "$dist/tests/"
install -m 755 tests/gpu/run "$dist/tests/gpu/"
install -m 644 tests/gpu/checks "$dist/tests/gpu/"
# A check in Python needs the other Python files of its folder, and tests/cli/daemon.py.
install -m 644 tests/unittest_main.py tests/onnx_file.py "$dist/tests/"
for script in "${scripts[@]}" tests/cli/daemon.py; do
  folder=$(dirname "$script")
  mkdir -p "$dist/$folder"
  install -m 755 "$folder"/*.py "$dist/$folder/"
done
install -m 644 tests/onnx/passing.txt "$dist/tests/onnx/"
install -D -m 644 -t "$dist/tests/strangers" tests/strangers/sentence_encoder.py
mkdir -p "$dist/deploy" "$dist/tests/flux" "$dist/docs/examples"
install -m 644 docs/examples/*.cc "$dist/docs/examples/"
# The tutorials that tests run.
install -m 644 docs/graphs.md docs/graph_format.md "$dist/docs/"
install -m 755 deploy/demo.sh "$dist/deploy/"
install -m 644 tests/flux/vectors.jsonl "$dist/tests/flux/"
mkdir "$dist/python"
install -m 644 "$bin"/client/python/*.whl "$dist/python/"
for module in inference/open_inference_pb2.py resident/v1/{buffers,executor,graphs,types}_pb2.py; do
  install -D -m 644 "$bin/proto/$module" "$dist/tests/proto/$module"
done
bazel/bundle_files.sh "$dist" "$limit_mib" "${programs[@]}"
library/install_headers.sh "$dist"
mkdir "$dist/completions"
for program in residentd residentctl; do
  for shell in bash zsh fish; do
    "$dist/bin/$program" completion "$shell" >"$dist/completions/$program.$shell"
  done
done

echo "bundle: $dist, $(du -sm --apparent-size "$dist" | cut -f1) MiB:" \
  "$(find "$dist/bin" -type f | wc -l) programs, $(find "$dist/lib" -type f | wc -l) libraries"
if ((${#left_out[@]} > 0)); then
  printf '%s\n' "${left_out[@]}" | sort -u | paste -sd ' ' |
    sed 's/^/bundle: no CUDA toolkit: only the CPU engine is included; omitted programs: /'
fi
