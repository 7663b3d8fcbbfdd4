#!/bin/bash
# What the kernel tap costs the traffic it looks at: bandwidth and message rate of looped writes with the tap
# off, cut to headers and whole, in turns.      usage: bench-tap.sh PROGRAM OUT [ROUNDS]
# shellcheck source=tests/vm/lib.sh
. "$(dirname "$0")/lib.sh"
rounds=${3:-3}
modules
two_devices

# measure MODE SIZE COUNT: one line, MODE SIZE Mb/s messages/s packets lost.
measure() {
  local mode=$1 size=$2 count=$3 tap='' i
  case $mode in
    off) ;;
    128) "$program" --tap --tap-snaplen 128 -q -w /dev/null --op unknown >/dev/null 2>"$out/tap.err" & tap=$! ;;
    full) "$program" --tap -q -w /dev/null --op unknown >/dev/null 2>"$out/tap.err" & tap=$! ;;
  esac
  if [ -n "$tap" ]; then
    for i in $(seq 100); do [ -s /sys/kernel/debug/kprobes/list ] && break; sleep 0.1; done
  fi
  timeout 120 "$program" --iface veth0 --write --no-control --size "$size" --count "$count" --depth 16 --format json \
    >"$out/run.json" 2>"$out/run.err"
  if [ -n "$tap" ]; then kill -INT $tap; wait $tap; fi
  python3 - "$out/run.json" "$mode" "$size" "$out/tap.err" <<'PY'
import json, re, sys
run = json.load(open(sys.argv[1]))
lost = sum(int(n) for n in re.findall(r": (\d+) frames dropped", open(sys.argv[4]).read())) if sys.argv[2] != "off" else 0
print(sys.argv[2], sys.argv[3], round(run["bandwidth_bps"] / 1e6, 1), round(run["messages_per_s"]), lost)
PY
}

mount -t debugfs none /sys/kernel/debug 2>/dev/null
for size in 64 65536; do
  count=$([ "$size" = 64 ] && echo 2000 || echo 200)
  measure off "$size" "$count" >/dev/null # warm
  for _ in $(seq "$rounds"); do
    for mode in off 128 full; do measure "$mode" "$size" "$count"; done
  done
done | tee "$out/bench"
