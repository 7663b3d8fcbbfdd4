#!/usr/bin/env bash
# Measures roce-sniff beside other programs on synthetic captures of known content, in one run, and prints the medians
# as Markdown; with --readme they also replace the block in README.md. What it counts must be what is in them.
#                                                                         usage: scripts/bench.sh [--readme] [ROUNDS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readme='' rounds=5
for word in "$@"; do
  case $word in
    --readme) readme=README.md ;;
    [1-9] | [1-9][0-9]) rounds=$word ;;
    *) echo "usage: scripts/bench.sh [--readme] [ROUNDS]" >&2; exit 2 ;;
  esac
done
if [ -n "$readme" ] && ! grep -qx '<!-- bench -->' "$readme"; then
  echo "$readme has no line <!-- bench -->" >&2
  exit 1
fi

# shellcheck source=scripts/env.sh
. scripts/env.sh
cargo build --release --locked --bin roce-sniff --example traffic
release=$(realpath "${CARGO_TARGET_DIR:-target}/release")
dir=$(mktemp -d "${TMPDIR:-/tmp}/roce-sniff-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
# The two large files are there at the same time, the others once the larger one is gone.
room=$(df -Pk "$dir" | awk 'NR == 2 { print $4 }')
if [ "$room" -lt 2300000 ]; then
  echo "$dir: $((room / 1000)) MB are free, and it takes 2300: name another place by TMPDIR" >&2
  exit 1
fi

make() { "$release/examples/traffic" "$1" "$dir/$2.pcap" "${@:3}" >"$dir/$2.json"; }
# Files that changed a moment ago are read rather than mapped.
settle() { sleep 3; }
measure() { python3 - "$release/roce-sniff" "$dir" "$rounds" "$@" <"$dir/measure.py"; }

cat >"$dir/measure.py" <<'PY'
import json, os, shutil, statistics, subprocess, sys, time

program, directory, rounds, part = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
path = lambda name: os.path.join(directory, name)
fields = [word for name in ("frame.number", "ip.src", "ip.dst", "infiniband.bth.opcode", "infiniband.bth.destqp",
                            "infiniband.bth.psn") for word in ("-e", name)]
missing = set()

def sniff(command, form, file):
    return [program, *command.split(), "--format", form, file]

def seconds(arguments):
    start = time.monotonic()
    ran = subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    took = time.monotonic() - start
    if ran.returncode:
        sys.exit(f"{' '.join(arguments)}: status {ran.returncode}\n{ran.stderr.decode(errors='replace')}")
    return took

def medians(commands, times=rounds):
    """Runs the commands in turn, so that what else the machine does falls on all of them alike."""
    found = {}
    for _ in range(times):
        for name, arguments in commands.items():
            if shutil.which(arguments[0]):
                found.setdefault(name, []).append(seconds(arguments))
            else:
                missing.add(arguments[0])
    return {name: statistics.median(took) for name, took in found.items()}

def peak(file, piped):
    """Most memory that flows held, in MB. Mapped pages count, so that a file that is piped in tells what it needs."""
    arguments = sniff("flows", "json", "-" if piped else file)
    with open(file if piped else os.devnull) as given, open(os.devnull, "w") as nowhere:
        streams = {"stdin": given, "stdout": nowhere, "check": True}
        if os.access("/usr/bin/time", os.X_OK):
            note = path("peak")
            subprocess.run(["/usr/bin/time", "-o", note, "-f", "%M", *arguments], **streams)
            with open(note) as found:
                return int(found.read()) / 1024
        # The largest child so far, so each is asked for in a process of its own; never less than python itself.
        ask = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True); " \
              "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        streams["stdout"] = subprocess.PIPE
        return int(subprocess.run([sys.executable, "-c", ask, *arguments], **streams).stdout) / 1024

def check(name):
    """What is counted must be what was put in. Reads the file too, so that it is in memory from here on."""
    with open(path(name + ".json")) as answers:
        known = json.load(answers)
    out = subprocess.run(sniff("flows", "json", path(name + ".pcap")), stdout=subprocess.PIPE, check=True).stdout
    document = json.loads(out)
    flows, evicted = document["flows"], document["capture"]["evicted"]
    keys = ("packets", "messages", "acks", "gaps", "missing", "retransmitted", "payload_bytes")
    found = {key: sum(flow[key] for flow in flows) for key in keys}
    found["flows"] = len(flows)
    found["sequence_naks"] = sum(flow["naks"].get("sequence_error", 0) for flow in flows)
    if evicted["flows"]:
        # More flows than are kept: of the others, only these two are known.
        found = {key: found[key] + evicted[key] for key in ("flows", "packets")}
        known = {key: known[key] for key in found}
    if found != known:
        sys.exit(f"{name}: roce-sniff counts {found}, and there are {known}")
    return known["packets"]

def beside(name):
    file = path(name + ".pcap")
    commands = {
        "`cat`": ["cat", file],
        "`tcpdump -w`, filter only": ["tcpdump", "-r", file, "-w", "/dev/null", "udp dst port 4791"],
        "`capinfos -c`": ["capinfos", "-c", file],
    }
    for command in ("flows", "messages", "health"):
        commands[f"`roce-sniff {command}`"] = sniff(command, "json", file)
    if name == "headers":
        for form in ("csv", "json"):
            commands[f"`roce-sniff packets`, {form.upper()}"] = sniff("packets", form, file)
    packets = check(name)
    found = medians(commands)
    if name == "headers":
        tenth = medians({"tshark": ["tshark", "-r", path("tenth.pcap"), "-T", "fields", *fields]}, 1)
        if tenth:
            found["`tshark -T fields`, 6 fields (a tenth, × 10)"] = tenth["tshark"] * 10
    return {"times": found, "packets": packets, "size": os.path.getsize(file),
            "peaks": [peak(file, piped) for piped in (False, True)]}

def packed():
    found = {}
    for suffix, tool, level in (("gz", "gzip", "-1"), ("zst", "zstd", "-3")):
        if not shutil.which(tool):
            missing.add(tool)
            continue
        file = path(f"headers.pcap.{suffix}")
        with open(file, "wb") as out:
            subprocess.run([tool, level, "-c", path("headers.pcap")], stdout=out, stderr=subprocess.DEVNULL, check=True)
        alone = f"`{tool} -dc`"
        times = medians({alone: [tool, "-dc", file], "flows": sniff("flows", "json", file)})
        found[alone] = (f".{suffix}", times[alone], times["flows"])
    return found

def qps():
    packets = check("qps")
    files = {name: sniff("flows", "json", path(name + ".pcap")) for name in ("headers", "qps")}
    return {"times": medians(files), "packets": packets, "peak": peak(path("qps.pcap"), True)}

def remember(result):
    with open(path(part + ".result"), "w") as out:
        json.dump({"result": result, "missing": sorted(missing)}, out)

def recall(name):
    with open(path(name + ".result")) as found:
        found = json.load(found)
    missing.update(found["missing"])
    return found["result"]

def table():
    results = {name: recall(name) for name in ("headers", "full")}
    def cells(name, times):
        if name not in times:
            return ["", "", ""]
        tcpdump = next((took for known, took in times.items() if known.startswith("`tcpdump")), None)
        ratio = lambda floor: f"{times[name] / floor:.2f}" if floor else ""
        return [f"{times[name]:.2f}", ratio(times["`cat`"]), ratio(tcpdump)]
    yield "| | headers, s | × `cat` | × `tcpdump` | full, s | × `cat` | × `tcpdump` |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for name in results["headers"]["times"]:
        row = [name] + [cell for result in results.values() for cell in cells(name, result["times"])]
        yield f"| {' | '.join(row)} |"
    yield ""
    archives = recall("packed")
    if archives:
        yield "| compressed headers | alone, s | `roce-sniff flows`, s | × alone |"
        yield "|---|---:|---:|---:|"
        for name, (suffix, alone, flows) in archives.items():
            yield f"| {suffix}, {name} | {alone:.2f} | {flows:.2f} | {flows / alone:.2f} |"
        yield ""
    many = recall("qps")
    headers = results["headers"]
    few_ns = many["times"]["headers"] / headers["packets"] * 1e9
    many_ns = many["times"]["qps"] / many["packets"] * 1e9
    yield f"`roce-sniff flows` with a queue pair for every 5 packets, {many['packets']:,} packets:"
    yield f"{many_ns:.0f} ns a packet, {many_ns / few_ns:.1f} times the {few_ns:.0f} ns with 16 queue pairs."
    peaks = ", ".join("{} {:.0f} MB, {:.0f} MB".format(name, *found["peaks"]) for name, found in results.items())
    yield f"Peak memory, with the file mapped (its pages count) and piped in: {peaks};"
    yield f"with those queue pairs, piped in, {many['peak']:.0f} MB."
    yield ""
    sizes = ", ".join(f"{name} {found['packets']:,} packets, {found['size'] / 1e6:.0f} MB"
                      for name, found in results.items())
    times = "one round" if rounds == 1 else f"medians of {rounds} rounds in turns"
    yield f"{sizes}; {times}"
    yield f"in one run of `scripts/bench.sh`, the files in memory, {os.cpu_count()} cores."
    if missing:
        yield f"Not installed, and left out: {', '.join(sorted(missing))}."

def write():
    text = "<!-- bench -->\n" + "\n".join(table()) + "\n<!-- /bench -->"
    print(text)
    if len(sys.argv) < 6:
        return
    with open(sys.argv[5]) as file:
        before, rest = file.read().split("<!-- bench -->", 1)
    if "<!-- /bench -->" not in rest:
        sys.exit(f"{sys.argv[5]} has no <!-- /bench --> after <!-- bench -->")
    with open(sys.argv[5], "w") as file:
        file.write(before + text + rest.split("<!-- /bench -->", 1)[1])

if part in ("headers", "full"):
    remember(beside(part))
elif part == "packed":
    remember(packed())
elif part == "qps":
    remember(qps())
else:
    write()
PY

make headers headers
make headers tenth 500000
make full full
settle
measure headers
measure full
rm "$dir/full.pcap" "$dir/tenth.pcap"
measure packed
make qps qps
settle
measure qps
measure table ${readme:+"$readme"}
