#!/bin/bash
# The kernel tap on a real Soft-RoCE driver: looped and wired packets, losses, recordings, its end.
# usage: tap.sh PROGRAM OUT
# shellcheck source=tests/vm/lib.sh
. "$(dirname "$0")/lib.sh"
mount -t debugfs none /sys/kernel/debug 2>/dev/null
mount -t tracefs none /sys/kernel/tracing 2>/dev/null

# Before there is a driver.
run no-driver 20 --tap
modules
two_devices
write=(--iface veth0 --write --format json)

# start NAME ARG...: taps in the background, and returns once it does.
start() {
  local name=$1 i
  shift
  "$program" --tap "$@" >"$out/$name.out" 2>"$out/$name.err" &
  tap=$!
  for i in $(seq 200); do
    grep -q 'Ctrl-C ends' "$out/$name.err" && return
    kill -0 "$tap" 2>/dev/null || return
    sleep 0.1
  done
}
# stop NAME: ends it as Ctrl-C does.
stop() {
  kill -INT "$tap" 2>/dev/null
  wait "$tap"
  echo $? >"$out/$1.status"
}

# Beside a write run: every packet matched to its write.
run self 60 "${write[@]}" --tap -w "$out/self.pcapng"
run self-table 60 --iface veth0 --write --tap
run self-v6 60 "${write[@]}" --tap --gid-family 6
run self-64k 60 "${write[@]}" --tap --size 65536 --count 5 --depth 4 -w "$out/self-64k.pcapng"
run self-read 60 "${write[@]}" --tap --op read --size 4096
run peer 60 "${write[@]}" --tap --peer-dev rxe1

# Two devices at once: between them over the veth pair, and one to itself.
keep two-before counters rxe0 rxe1
start two --format json -w "$out/two.pcapng"
run two-peer 60 "${write[@]}" --peer-dev rxe1 --no-control
run two-self 60 --iface veth1 --write --format json --no-control
sleep 0.3
stop two
sleep 0.1
keep two-after counters rxe0 rxe1
keep two-tshark timeout 150 tshark -r "$out/two.pcapng" -T fields -e frame.interface_name -e pkt_comment -e frame.comment \
  -e infiniband.bth.opcode
keep two-capinfos timeout 60 capinfos -M "$out/two.pcapng"

# A netdev and the tap: each packet once.
start both --iface veth0 --format json -w "$out/both.pcapng"
run both-peer 60 "${write[@]}" --peer-dev rxe1 --no-control
run both-self 60 "${write[@]}" --no-control
sleep 0.5
stop both
start table
run table-self 60 "${write[@]}" --no-control --count 2
sleep 0.3
stop table

# Limits and filters.
start count --format csv --count 5
run count-self 60 "${write[@]}" --no-control
wait "$tap"
echo $? >"$out/count.status"
start dev --format json --tap-dev rxe1
run dev-peer 60 "${write[@]}" --peer-dev rxe1 --no-control
sleep 0.3
stop dev
start short --format json --tap-snaplen 60
run short-self 60 "${write[@]}" --no-control --size 1000
sleep 0.3
stop short
start qp --format json --tap-qp 0x7fffff
run qp-self 60 "${write[@]}" --no-control
sleep 0.3
stop qp
run no-such-device 20 --tap --tap-dev rxe7

# A ring too small, and a reader that is not let to read: what is lost is counted, exactly.
keep overflow-before counters rxe0
start overflow --format json --tap-buffer 64
kill -STOP "$tap"
run overflow-self 60 "${write[@]}" --no-control --size 4096 --count 100 --depth 8
kill -CONT "$tap"
sleep 0.3
stop overflow
sleep 0.1
keep overflow-after counters rxe0

# Wireshark's tshark as the client.
export WIRESHARK_EXTCAP_DIR=$out/extcap
mkdir -p "$WIRESHARK_EXTCAP_DIR"
run extcap-install 20 extcap install --dir "$WIRESHARK_EXTCAP_DIR"
run extcap-config 20 extcap --extcap-config --extcap-interface roce-tap-rxe0
if command -v tshark >/dev/null; then
  keep extcap-list timeout 120 tshark -D
  timeout 150 tshark -l -i roce-tap-rxe0 -c 20 -T fields -e frame.interface_name -e frame.comment -e infiniband.bth.opcode \
    >"$out/extcap-live.out" 2>"$out/extcap-live.err" &
  client=$!
  for i in $(seq 900); do grep -q rxe_rcv /sys/kernel/debug/kprobes/list && break; sleep 0.1; done
  sleep 1
  run extcap-self 60 "${write[@]}" --no-control
  wait $client
  echo $? >"$out/extcap-live.status"
fi
run extcap-uninstall 20 extcap uninstall --dir "$WIRESHARK_EXTCAP_DIR"

# Killed, it leaves nothing in the kernel.
probes() { grep rxe_rcv /sys/kernel/debug/kprobes/list; cat /sys/kernel/tracing/kprobe_events; true; }
start killed
keep probes-during probes
kill -9 "$tap"
wait "$tap" 2>/dev/null
sleep 0.5
keep probes-after probes

keep unprivileged timeout 30 setpriv --reuid 65534 --regid 65534 --clear-groups "$program" --tap
