#!/usr/bin/env bash
# The checks of a package (make deb) in a Debian that systemd has booted: the service starts, answers,
# keeps its state over a restart, an update and a removal, and is gone after a purge. Run as root; the
# package is /root/residentd.deb. The last line is `N passed, N failed`.
set -uo pipefail
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
# Waits until a command succeeds.
await() {
  local i
  for ((i = 0; i < 600; ++i)); do
    "$@" >/dev/null 2>&1 && return 0
    sleep 0.1
  done
  "$@"
}
not() { ! "$@"; }
answers() { [[ $(residentctl run add x=1,2 y=3,4) == *4*6* ]]; }
runs_as() { [[ $(ps -o user= -p "$(systemctl show -P MainPID residentd)") == "$1" ]]; }
state_is() { [[ $(systemctl show -P ActiveState residentd) == "$1" ]]; }
refuses_flag() {
  echo 'RESIDENTD_FLAGS="--no_such_flag=1"' >/etc/default/residentd
  systemctl restart residentd
  await state_is failed && [[ $(systemctl show -P ExecMainStatus residentd) == 2 ]]
}
compiles() {
  local flags
  read -ra flags <<<"$(pkg-config --cflags --libs residentd_lane)"
  gcc /usr/share/doc/residentd/examples/lane_add.c "${flags[@]}" -o /tmp/lane_add
}
shows() { man "$1" | grep -e "$2"; }
updates() {
  dpkg --install --force-confold /root/residentd.deb && grep metrics_address= /etc/default/residentd
}
leaves_nothing() {
  local path left=0
  for path in /var/lib/residentd /etc/residentd /etc/default/residentd /usr/lib/residentd \
    /usr/share/doc/residentd /usr/lib/systemd/system/residentd.service; do
    [[ ! -e $path ]] || { echo "$path is left"; left=1; }
  done
  [[ $left == 0 ]]
}
has_operator() { [[ $(residentctl run twice x=1,2) == *2*4* ]]; }

check "it can be installed" dpkg --install /root/residentd.deb
check "the unit has no errors" systemd-analyze verify residentd.service
check "the service starts with the installation" await systemctl is-active residentd
check "it is enabled" systemctl is-enabled residentd
check "it is ready" await residentctl health
check "it answers" answers
check "it has a user of its own" runs_as residentd
check "only root and the daemon read /etc/residentd" test "$(stat -c '%U %G %a' /etc/residentd)" = "root residentd 750"
check "the state belongs to the daemon" test "$(stat -c '%U %a' /var/lib/residentd)" = "residentd 700"
check "an operator can be installed" residentctl ops install twice --expr='2 * x' --wait=active
check "the operator answers" has_operator
check "man residentd shows its flags" shows residentd --max_host_mib
check "man residentctl shows its commands" shows residentctl "ops install"
check "a C program finds the library of lanes" compiles
check "flags of /etc/default are used" refuses_flag
echo 'RESIDENTD_FLAGS="--metrics_address="' >/etc/default/residentd
systemctl reset-failed residentd
check "it starts again with other flags" systemctl restart residentd
check "and keeps its operators" await has_operator

check "an update keeps the changed configuration" updates
check "the updated daemon has the operators" await has_operator

check "it can be removed" dpkg --remove residentd
check "no process is left" not pgrep -u residentd
check "no program is left" not command -v residentd
check "the state is kept" test -d /var/lib/residentd
check "it can be installed again" dpkg --install /root/residentd.deb
check "with its operators" await has_operator
check "it can be purged" dpkg --purge residentd
check "nothing is left" leaves_nothing

echo "$passed passed, $failed failed"
