#!/bin/bash
# The learner's laptop, as it was: Soft-RoCE on its Wi-Fi. Then the lab.      usage: demo.sh PROGRAM
# shellcheck source=tests/vm/lib.sh
out=${TMPDIR:-/tmp}
. "$(dirname "$0")/lib.sh" "$1" "$out"
modules >/dev/null 2>&1

# A veth stands in for the Wi-Fi adapter: the driver does the same on any netdev.
ip link add wlp0s20f3 type veth peer name air
ip link set air up
ip link set wlp0s20f3 up
ip addr add 192.168.51.106/24 dev wlp0s20f3
rdma link add rxe0 type rxe netdev wlp0s20f3
sleep 2

rc=0
show() { printf '\n$ sudo roce-sniff %s\n' "$*"; "$program" "$@" || rc=$?; }
show --iface wlp0s20f3 --write
show lab up
show --iface rs-veth0 --write --peer-dev rs_rxe1
show lab down
exit $rc
