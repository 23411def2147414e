#!/usr/bin/env bash
# Builds residentd, starts a daemon, streams work to it, trains a small language model and decodes
# with it, checks the results, prints the speed, and stops the daemon. `make demo` runs it after
# deploy/setup-debian.sh. The language model needs the sources and NumPy; a bundle leaves it out.
#
#   deploy/demo.sh [FLAG]...     FLAGs are passed to `residentd serve`, e.g. --devices=cpu
#
#   RESIDENTD, RESIDENTCTL   programs to use instead of building them
#   TRAINING_STEPS           of the language model (default: that of deploy/demo/train.py)
#   RESIDENT_OPS_LIBRARY     with the above: libresident_ops.so, which makes the training faster
#
# Exit status: 0 only if the daemon started, every result was correct and it stopped cleanly.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

say() { printf '%s\n' "$*"; }
die() {
  say "demo: $*" >&2
  exit 1
}

if [[ -z ${RESIDENTD:-} || -z ${RESIDENTCTL:-} ]]; then
  say "Building residentd and residentctl (the first time takes several minutes on two cores) ..."
  # Device code is compiled only for the GPUs of this machine. Without one, only its portable form is.
  architectures=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
    sed -e 's/\.//' -e 's/^8.$/80/' -e 's/^10.$/100/' -e 's/^12.$/120/' | sort -u | paste -sd ,)
  bazel/progress build --ui_event_filters=-info \
    --repo_env=RESIDENT_CUDA_ARCHITECTURES="${RESIDENT_CUDA_ARCHITECTURES:-${architectures:-none}}" //server:residentd //client:residentctl \
    //library:libresident_ops.so || die "the build failed (output above)"
  bin=$(bazel info bazel-bin 2>/dev/null) || die "bazel info bazel-bin failed"
  [[ bazel-bin -ef $bin ]] && bin=bazel-bin
  RESIDENTD=${RESIDENTD:-$bin/server/residentd}
  RESIDENTCTL=${RESIDENTCTL:-$bin/client/residentctl}
  export RESIDENT_OPS_LIBRARY=${RESIDENT_OPS_LIBRARY:-$PWD/$bin/library/libresident_ops.so}
fi

folder=$(mktemp -d "${TMPDIR:-/tmp}/residentd-demo.XXXXXX") || exit 1
pid=
# Ends the daemon that this script started, and returns its exit status.
stop_daemon() {
  [[ -n $pid ]] || return 0
  local ending=$pid
  pid=
  kill -TERM "$ending" 2>/dev/null
  # The daemon normally ends within its --drain_timeout; kill it if it hangs.
  for ((i = 0; i < 600; ++i)); do
    kill -0 "$ending" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "$ending" 2>/dev/null
  wait "$ending"
}
cleanup() {
  stop_daemon
  rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A socket's path has at most 107 bytes.
local=()
[[ ${#folder} -gt 100 ]] || local=(--local_address="$folder/local")
say "Starting: residentd serve"
"$RESIDENTD" serve --address=127.0.0.1:0 --metrics_address=127.0.0.1:0 \
  --port_file="$folder/ports" "${local[@]}" "$@" \
  >"$folder/log" 2>&1 </dev/null &
pid=$!
for ((i = 0; i < 600; ++i)); do
  [[ -s $folder/ports ]] && break
  kill -0 "$pid" 2>/dev/null || {
    cat "$folder/log" >&2
    die "residentd failed to start (its log is above)"
  }
  sleep 0.1
done
[[ -s $folder/ports ]] || {
  cat "$folder/log" >&2
  die "residentd was not ready within a minute (its log is above)"
}
RESIDENTD_SERVER=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["address"])' \
  <"$folder/ports") || die "cannot read the address from the port file"
export RESIDENTD_SERVER
page=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["metrics_address"])' \
  <"$folder/ports") || die "cannot read the address from the port file"
say "Its page, until the end of this demo: http://$page/"

"$RESIDENTCTL" demo --out="$folder/demo.json"
checked=$?
[[ $checked -eq 0 ]] || tail -n 20 "$folder/log" >&2

documents=()
for document in README.md docs/*.md; do
  # The operators' descriptions repeat the same sentences.
  [[ -f $document && $document != docs/operator_reference.md ]] && documents+=("$document")
done
if [[ $checked -eq 0 && -x deploy/demo/decode.py ]]; then
  say
  say "4. A language model, decoded by a task graph"
  say
  deploy/demo/decode.py "$RESIDENTCTL" "$folder/model" "${documents[@]}" \
    ${TRAINING_STEPS:+--steps="$TRAINING_STEPS"}
  checked=$?
fi

# Prints the address of the metrics page, then some of its counters.
say
say "5. The metrics page for Prometheus"
say
python3 - "$folder/ports" <<'END' || checked=1
import json, re, sys, urllib.request

address = json.load(open(sys.argv[1]))["metrics_address"]
url = "http://{}/metrics".format(address)
print("   " + url)
page = urllib.request.urlopen(url, timeout=10).read().decode()
for line in page.splitlines():
    if re.match(r"resident_(build_info|tasks_total|(?:parks|resumes)_total)\{", line):
        if not line.endswith(" 0"):
            print("   " + line)
END

stopped=0
stop_daemon || stopped=$?
say
if [[ $stopped -ne 0 ]]; then
  tail -n 20 "$folder/log" >&2
  die "FAILED: the daemon ended with status $stopped (its log is above)"
fi
[[ $checked -eq 0 ]] || die "FAILED: work was refused, or results were wrong (see above)"

python3 - "$folder/demo.json" "$folder/model/figures.json" <<'END'
import json, os, sys

demo = json.load(open(sys.argv[1]))
devices = ", ".join("the CPU" if d["engine"] == "cpu" else d["name"] for d in demo["devices"])
print("""Summary
  A daemon kept one kernel resident on {}. Programs and tasks were streamed to it
  over gRPC; none of them needed a launch or a compilation. Every result was correct.

    FLUX programs       {:>12,} runs     {:8.1f} M instructions/s
    elementwise tasks   {:>12,} tasks    {:8.2f} M tasks/s
    one task at a time  {:>12.0f} µs median {:7.0f} µs 99th percentile
""".format(devices, demo["flux"]["runs"], demo["flux"]["instructions_per_second"] / 1e6,
           demo["tasks"]["tasks"], demo["tasks"]["tasks_per_second"] / 1e6,
           demo["lone_run"]["p50_us"], demo["lone_run"]["p99_us"]), end="")
if demo["lane"]:
    print("    through a local lane{:>12.1f} µs median {:7.2f} M tasks/s".format(
        demo["lane"]["p50_us"], demo["lane"]["tasks_per_second"] / 1e6))
if os.path.exists(sys.argv[2]):
    model = json.load(open(sys.argv[2]))
    print("    decoded tokens      {:>12,} tokens   {:8.0f} tokens/s".format(
        model["tokens"], model["tokens_per_second"]))
print()
END
cat <<END
Next
  $RESIDENTD serve                starts a daemon on 127.0.0.1:50051
  $RESIDENTCTL run add x=1,2,3 y=10,20,30
  $RESIDENTCTL help
END
