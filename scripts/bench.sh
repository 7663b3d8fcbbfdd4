#!/usr/bin/env bash
# Measures roce-sniff beside other programs on two synthetic captures of known content, in one run, and prints the
# medians as a Markdown table. What it counts must be what is in them.          usage: scripts/bench.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-5}

# shellcheck source=scripts/env.sh
. scripts/env.sh
cargo build --release --locked --bin roce-sniff --example traffic
release=$(realpath "${CARGO_TARGET_DIR:-target}/release")
dir=$(mktemp -d "${TMPDIR:-/tmp}/roce-sniff-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
for kind in headers full; do
  "$release/examples/traffic" "$kind" "$dir/$kind.pcap" >"$dir/$kind.json"
done
"$release/examples/traffic" headers "$dir/tenth.pcap" 500000 >/dev/null
# Files that changed a moment ago are read rather than mapped.
sleep 3

python3 - "$release/roce-sniff" "$dir" "$rounds" <<'PY'
import json, os, resource, shutil, statistics, subprocess, sys, time

program, directory, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
path = lambda kind: os.path.join(directory, kind + ".pcap")
fields = [word for name in ("frame.number", "ip.src", "ip.dst", "infiniband.bth.opcode", "infiniband.bth.destqp",
                            "infiniband.bth.psn") for word in ("-e", name)]

def commands(file):
    yield "cat", ["cat", file]
    yield "tcpdump, filter only", ["tcpdump", "-r", file, "-w", "/dev/null", "udp dst port 4791"]
    yield "capinfos -c", ["capinfos", "-c", file]
    for command in ("flows", "messages", "health"):
        yield f"roce-sniff {command}", [program, command, "--format", "json", file]
    for form in ("csv", "json"):
        yield f"roce-sniff packets, {form}", [program, "packets", "--format", form, file]

def seconds(arguments):
    start = time.monotonic()
    subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.monotonic() - start

def check(kind):
    known = json.load(open(os.path.join(directory, kind + ".json")))
    out = subprocess.run([program, "flows", "--format", "json", path(kind)], stdout=subprocess.PIPE, check=True)
    flows = json.loads(out.stdout)["flows"]
    total = lambda key: sum(flow[key] for flow in flows)
    found = {key: total(key) for key in ("packets", "messages", "acks", "gaps", "missing", "retransmitted",
                                         "payload_bytes")}
    found |= {"flows": len(flows), "sequence_naks": sum(sum(flow["naks"].values()) for flow in flows)}
    if found != known:
        sys.exit(f"{kind}: roce-sniff counts {found}, and there are {known}")

times = {}
missing = set()
for kind in ("headers", "full"):
    check(kind)
    for number in range(rounds):
        for name, arguments in commands(path(kind)):
            if not shutil.which(arguments[0]):
                missing.add(arguments[0])
                continue
            times.setdefault(name, {}).setdefault(kind, []).append(seconds(arguments))
if shutil.which("tshark"):
    tenth = seconds(["tshark", "-r", path("tenth"), "-T", "fields", *fields])
    times["tshark, 6 fields (a tenth, times 10)"] = {"headers": [tenth * 10]}
else:
    missing.add("tshark")

median = lambda name, kind: statistics.median(times[name][kind]) if kind in times.get(name, {}) else None
def cell(name, kind):
    value, floor = median(name, kind), median("cat", kind)
    return f"{value:.2f} s | {value / floor:.1f}" if value is not None else " | "
print("| | headers | × cat | full | × cat |\n|---|---:|---:|---:|---:|")
for name in times:
    print(f"| {name} | {cell(name, 'headers')} | {cell(name, 'full')} |")
sizes = ", ".join(f"{kind}: {os.path.getsize(path(kind)) / 1e6:.0f} MB" for kind in ("headers", "full"))
print(f"\n{sizes}; medians of {rounds} runs in turn, the files in memory.", end="")
print(f" Not installed: {', '.join(sorted(missing))}." if missing else "")
PY
