#!/bin/bash
# What the kernel tap costs the traffic it looks at: bandwidth and message rate of looped writes with the tap
# off, cut to headers and whole, in turns.      usage: bench-tap.sh PROGRAM OUT [ROUNDS]
# shellcheck source=tests/vm/lib.sh
. "$(dirname "$0")/lib.sh"
rounds=${3:-3}
# What a run prints stays in memory: the way out of the machine is slow.
scratch=$(mktemp -d /dev/shm/bench.XXXXXX)
modules
two_devices

# measure MODE SIZE COUNT: one line, MODE SIZE, messages a second, packets lost by the tap.
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
  timeout 120 "$program" --iface veth0 --write --no-control --size "$size" --count "$count" --depth 16 --format json \
    >"$scratch/run.json" 2>"$scratch/run.err"
  if [ -n "$tap" ]; then kill -INT $tap; wait $tap; fi
  # Nothing larger than sed: programs start slowly under emulation.
  local rate lost=0
  rate=$(sed -n 's/^ *"messages_per_s": \([0-9]*\).*/\1/p' "$scratch/run.json")
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
