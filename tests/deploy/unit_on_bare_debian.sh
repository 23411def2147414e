#!/bin/sh
# What systemd says of the unit, on a Debian 12 that has nothing: run as root in the sources'
# folder.
set -eu
# Overall exposure that `systemd-analyze security` may give, in tenths.
most_exposed=19

apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends systemd
unit=/etc/systemd/system/residentd.service
install -m 644 deploy/systemd/residentd.service "$unit"
# Whatever can be started, in the daemon's place.
install -D -m 755 /bin/true /opt/residentd/bin/residentd

said=$(systemd-analyze verify "$unit" 2>&1) || said="$said (exit status $?)"
echo "systemd-analyze verify: ${said:-nothing}"
test -z "$said"
systemd-analyze security --no-pager --offline=true --threshold="$most_exposed" "$unit"
