#!/usr/bin/env bash
# Measures what the kernel tap costs looped RDMA traffic, in the virtual machine, and prints the medians as
# ratios to the same traffic without it. Ratios only: the machine is emulated.   usage: scripts/bench-tap.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh build vm
# shellcheck source=scripts/env.sh
. scripts/env.sh
cargo build --release --locked
program=$(realpath "${CARGO_TARGET_DIR:-target}/release/roce-sniff")
out=$(mktemp -d "${TMPDIR:-/tmp}/roce-sniff-bench.XXXXXX")
trap 'rm -rf "$out"' EXIT
timeout 900 tests/vm/boot.sh "$out" /bin/bash "$PWD/tests/vm/bench-tap.sh" "$program" "$out" "${1:-3}" </dev/null
python3 - "$out/bench" <<'PY'
import statistics, sys
runs = {}
for line in open(sys.argv[1]):
    mode, size, rate, lost = line.split()
    runs.setdefault((size, mode), []).append((float(rate), int(lost)))
print("bytes a write  tap         MB/s  ratio  lost")
for (size, mode), found in runs.items():
    rate = statistics.median(rate for rate, _ in found)
    base = statistics.median(rate for rate, _ in runs[size, "off"])
    print(f"{size:>13}  {mode:<4}  {rate:>10.2f}  {rate / base:>5.2f}  {sum(lost for _, lost in found):>4}")
PY
