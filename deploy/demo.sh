#!/usr/bin/env bash
# Builds residentd, starts a daemon, streams checked work to it, says how fast it was,
# and stops it. `make demo` runs it after deploy/setup-debian.sh.
#
#   deploy/demo.sh [FLAG]...     FLAGs go to `residentd serve`, e.g. --devices=cpu
#
#   RESIDENTD, RESIDENTCTL   programs to use instead of building them
#
# Exit status: 0 only if the daemon started, every result was right and it stopped cleanly.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

say() { printf '%s\n' "$*"; }
die() {
  say "demo: $*" >&2
  exit 1
}

if [[ -z ${RESIDENTD:-} || -z ${RESIDENTCTL:-} ]]; then
  say "Building residentd and residentctl (the first time takes a few minutes) ..."
  bazel build //server:residentd //client:residentctl || die "the build failed (output above)"
  bin=$(bazel info bazel-bin 2>/dev/null) || die "bazel does not say where it built"
  RESIDENTD=${RESIDENTD:-$bin/server/residentd}
  RESIDENTCTL=${RESIDENTCTL:-$bin/client/residentctl}
fi

folder=$(mktemp -d "${TMPDIR:-/tmp}/residentd-demo.XXXXXX") || exit 1
pid=
# Ends the daemon that this script started, and no other; returns its exit status.
stop_daemon() {
  [[ -n $pid ]] || return 0
  local ending=$pid
  pid=
  kill -TERM "$ending" 2>/dev/null
  # The daemon ends within its own --drain_timeout; this is for one that hangs.
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

say "Starting: residentd serve"
"$RESIDENTD" serve --address=127.0.0.1:0 --metrics_address=127.0.0.1:0 \
  --port_file="$folder/ports" "$@" \
  >"$folder/log" 2>&1 </dev/null &
pid=$!
for ((i = 0; i < 600; ++i)); do
  [[ -s $folder/ports ]] && break
  kill -0 "$pid" 2>/dev/null || {
    cat "$folder/log" >&2
    die "residentd ended at its start (its log is above)"
  }
  sleep 0.1
done
[[ -s $folder/ports ]] || {
  cat "$folder/log" >&2
  die "residentd was not ready within a minute (its log is above)"
}
RESIDENTD_SERVER=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["address"])' \
  <"$folder/ports") || die "the port file is not what it should be"
export RESIDENTD_SERVER

"$RESIDENTCTL" demo
checked=$?
if [[ $checked -ne 0 ]]; then
  tail -n 20 "$folder/log" >&2
fi

metrics=$("$RESIDENTCTL" status --json |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["metrics_address"])')
say
say "4. What Prometheus sees: http://$metrics/metrics"
say
page=$(python3 -c 'import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())' "http://$metrics/metrics") ||
  { say "   the metrics page does not answer" && checked=1; }
grep -E '^resident[a-z_]*_(tasks_total|info)\{' <<<"$page" | head -n 8 | sed 's/^/   /'

engine=$("$RESIDENTCTL" status --json | python3 -c 'import json, sys
devices = json.load(sys.stdin)["devices"]
print(" and ".join("the CPU" if d["engine"] == "cpu" else d["name"] for d in devices))')

stopped=0
stop_daemon || stopped=$?
say
if [[ $checked -ne 0 || $stopped -ne 0 ]]; then
  [[ $stopped -eq 0 ]] || tail -n 20 "$folder/log" >&2
  die "FAILED: results wrong or refused: $([[ $checked -eq 0 ]] && echo no || echo yes); exit status of the daemon: $stopped"
fi
cat <<END
Summary: a daemon kept one kernel resident on $engine; residentctl streamed
bytecode programs and element-wise tasks to it over gRPC; nothing was launched or compiled
for any of them; every result was checked and right; the daemon stopped cleanly.

Next:
  $RESIDENTD serve                  a daemon that stays (127.0.0.1:50051)
  $RESIDENTCTL run add x=1,2,3 y=10,20,30
  $RESIDENTCTL help                 everything else
END
