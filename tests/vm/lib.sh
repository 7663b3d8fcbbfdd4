# shellcheck shell=bash
# Sourced by the scenarios: networks to run them on, and a way to run one and keep what it printed.
# Inside the virtual machine, as root.
set -u
program=$1
out=$2

# run NAME SECONDS ARG...: runs the program, keeps NAME.out, NAME.err and NAME.status.
run() {
  local name=$1 seconds=$2 rc=0
  shift 2
  timeout -k 5 "$seconds" "$program" "$@" >"$out/$name.out" 2>"$out/$name.err" || rc=$?
  echo "$rc" >"$out/$name.status"
}

# keep NAME COMMAND...: runs anything else, keeps what it printed.
keep() {
  local name=$1 rc=0
  shift
  "$@" >"$out/$name.out" 2>"$out/$name.err" || rc=$?
  echo "$rc" >"$out/$name.status"
}

modules() {
  ip link set lo up
  modprobe -a rdma_rxe rdma_ucm ib_umad sch_netem cls_matchall act_gact veth dummy
}

# Two Soft-RoCE devices that meet over a veth pair: rxe0 on veth0 (10.0.0.1), rxe1 on veth1 (10.0.0.2).
two_devices() {
  ip link add veth0 type veth peer name veth1
  local i
  for i in all default veth0 veth1; do
    sysctl -qw "net.ipv4.conf.$i.rp_filter=0" "net.ipv4.conf.$i.accept_local=1"
  done
  ip link set veth0 address 02:00:00:00:00:01
  ip link set veth1 address 02:00:00:00:00:02
  ip link set veth0 up mtu 1500
  ip link set veth1 up mtu 1500
  ip addr add 10.0.0.1/24 dev veth0
  ip addr add 10.0.0.2/24 dev veth1
  rdma link add rxe0 type rxe netdev veth0
  rdma link add rxe1 type rxe netdev veth1
  # Link-local addresses take a moment to lose their "tentative".
  sleep 2
}

counters() {
  local device
  for device in "$@"; do
    local c=/sys/class/infiniband/$device/ports/1/hw_counters
    echo "$device sent $(cat "$c/sent_pkts") received $(cat "$c/rcvd_pkts")"
  done
}
