#!/bin/bash
# What the kernel tap costs the traffic it looks at: bandwidth of a looped ib_write_bw with the tap off, cut to
# headers and whole, in turns.      usage: bench-tap.sh PROGRAM OUT [ROUNDS]
# shellcheck source=tests/vm/lib.sh
. "$(dirname "$0")/lib.sh"
rounds=${3:-3}
# What a run prints stays in memory: the way out of the machine is slow.
scratch=$(mktemp -d -p /dev/shm)
modules
two_devices

# measure MODE SIZE COUNT: one line, MODE SIZE, MB a second, packets lost by the tap.
measure() {
  local mode=$1 size=$2 count=$3 tap='' i
  case $mode in
    off) ;;
    128) "$program" --tap --tap-snaplen 128 -q -w /dev/null --op unknown >/dev/null 2>"$scratch/tap.err" & tap=$! ;;
    full) "$program" --tap -q -w /dev/null --op unknown >/dev/null 2>"$scratch/tap.err" & tap=$! ;;
  esac
  if [ -n "$tap" ]; then
    for i in $(seq 100); do grep -q rxe_rcv /sys/kernel/debug/kprobes/list && break; sleep 0.1; done
    grep -q rxe_rcv /sys/kernel/debug/kprobes/list || { echo "no probe: $(cat "$scratch/tap.err")" >&2; exit 1; }
  fi
  # Server and client on one device: every packet goes round the driver's loop.
  local perf=(timeout 120 ib_write_bw -d rxe0 -x 1 -s "$size" -n "$count" -t 16)
  "${perf[@]}" >"$scratch/server.out" 2>&1 &
  local server=$!
  sleep 1.5
  "${perf[@]}" 10.0.0.1 >"$scratch/client.out" 2>&1
  wait $server
  if [ -n "$tap" ]; then kill -INT $tap; wait $tap; fi
  # Nothing larger than sed: programs start slowly under emulation.
  local rate lost=0
  # The line of numbers: bytes, iterations, peak, average MB/s, million messages a second.
  rate=$(sed -n "s/^ *$size  *$count  *[0-9.]*  *\([0-9.]*\).*/\1/p" "$scratch/client.out")
  [ -z "$tap" ] || lost=$(sed -n 's/.*: \([0-9]*\) frames dropped.*/\1/p' "$scratch/tap.err")
  echo "$mode $size ${rate:-0} ${lost:-0}"
}

mount -t debugfs none /sys/kernel/debug 2>/dev/null
for size in 64 65536; do
  count=$([ "$size" = 64 ] && echo 5000 || echo 300)
  measure off "$size" "$count" >/dev/null # warm
  for _ in $(seq "$rounds"); do
    for mode in off 128 full; do measure "$mode" "$size" "$count"; done
  done
done | tee "$out/bench"
