#!/bin/sh
# Checks the unit with systemd on a bare Debian 12; run as root in the sources' folder.
set -eu
# Maximum overall exposure in `systemd-analyze security`, in tenths.
max_exposure=19

apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends systemd
unit=/etc/systemd/system/residentd.service
install -m 644 deploy/systemd/residentd.service "$unit"
# Any executable in place of the daemon.
install -D -m 755 /bin/true /opt/residentd/bin/residentd

output=$(systemd-analyze verify "$unit" 2>&1) || output="$output (exit status $?)"
echo "systemd-analyze verify: ${output:-nothing}"
test -z "$output"
systemd-analyze security --no-pager --offline=true --threshold="$max_exposure" "$unit"
