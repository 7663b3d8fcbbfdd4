#!/usr/bin/env bash
# Measures what a live capture keeps up with: the same load on a veth pair for tcpdump and roce-sniff in turns, in a
# network namespace of its own. Prints as Markdown what was sent, captured, and dropped by the kernel; stops where
# these do not add up, or what is found in the packets is not what was sent.
#                                               usage: scripts/bench-live.sh [ROUNDS [PACKETS_PER_SECOND [PACKETS]]]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for word in "$@"; do
  case $word in
    '' | *[!0-9]* | 0*) echo "usage: scripts/bench-live.sh [ROUNDS [PACKETS_PER_SECOND [PACKETS]]]" >&2; exit 2 ;;
  esac
done
rounds=${1:-3} rate=${2:-10000000} packets=${3:-2000000}

# shellcheck source=scripts/env.sh
. scripts/env.sh
cargo build --release --locked --bin roce-sniff --example traffic
release=$(realpath "${CARGO_TARGET_DIR:-target}/release")
dir=$(mktemp -d "${TMPDIR:-/tmp}/roce-sniff-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
# One recording at a time, of a kilobyte a packet.
room=$(df -Pk "$dir" | awk 'NR == 2 { print $4 }')
if [ "$room" -lt "$packets" ]; then
  echo "$dir: $((room / 1000)) MB are free, and it takes $((packets / 1000)): name another place by TMPDIR" >&2
  exit 1
fi

cat >"$dir/measure.py" <<'PY'
import json, os, re, shutil, signal, statistics, subprocess, sys, time

release, directory, (rounds, rate, packets) = sys.argv[1], sys.argv[2], map(int, sys.argv[3:])
program, recording, said = (os.path.join(place, name) for place, name in
                            ((release, "roce-sniff"), (directory, "recording"), (directory, "said")))
sender = [os.path.join(release, "examples/traffic"), "send", "near", str(packets), str(rate)]
listen = [program, "flows", "--iface", "far", "--format", "json"]
commands = {
    # Another user, which root would become, may not write there.
    "`tcpdump -w FILE -B 65536`": ["tcpdump", "-i", "far", "-Z", "root", "-B", "65536", "-w", recording,
                                   "udp", "port", "4791"],
    "`roce-sniff -w FILE`, a CSV row a packet": [program, "--iface", "far", "--format", "csv", "-o", "/dev/null",
                                                 "-w", recording],
    "`roce-sniff flows`": listen,
    "`roce-sniff flows -w FILE`": [*listen, "-w", recording],
}

def flows(document):
    """What was captured and dropped, and what is in it, named as the sender's answers are."""
    capture, flows = document["capture"], document["flows"]
    keys = ("packets", "messages", "acks", "gaps", "missing", "retransmitted", "payload_bytes")
    found = {key: sum(flow[key] for flow in flows) for key in keys}
    found["flows"] = len(flows)
    found["sequence_naks"] = sum(flow["naks"].get("sequence_error", 0) for flow in flows)
    return capture["packets"], capture.get("dropped_by_capture"), found

def read_back():
    out = subprocess.run([program, "flows", "--format", "json", recording], stdout=subprocess.PIPE, check=True).stdout
    return flows(json.loads(out))

def wait_for(capture, words):
    for _ in range(500):
        with open(said) as found:
            text = found.read()
        if words in text:
            return
        if capture.poll() is not None:
            break
        time.sleep(0.02)
    sys.exit(f"{' '.join(capture.args)}: does not listen: {text}")

def run(name):
    command = commands[name]
    with open(said, "w") as err:
        capture = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
    wait_for(capture, "listening on far")
    sent = json.loads(subprocess.run(sender, stdout=subprocess.PIPE, check=True).stdout)
    seconds = sent.pop("seconds")
    # Longer than frames stay in the kernel's buffer.
    time.sleep(1)
    capture.send_signal(signal.SIGINT)
    out = capture.stdout.read()
    _, status, used = os.wait4(capture.pid, 0)
    with open(said) as err:
        words = err.read()
    if status:
        sys.exit(f"{' '.join(command)}: status {status}\n{words}")
    captured, dropped, found = read_back() if recording in command else flows(json.loads(out))
    if command[0] == "tcpdump":
        dropped = int(re.search(r"(\d+) packets? dropped by kernel", words)[1])
    if command[1:2] == ["flows"] and recording in command:
        live = flows(json.loads(out))
        if live != (captured, dropped, found):
            sys.exit(f"{name}: live {live}, and recorded {(captured, dropped, found)}")
    if captured + dropped != sent["packets"]:
        sys.exit(f"{name}: {captured} captured and {dropped} dropped of {sent['packets']}\n{words}")
    if not dropped and found != sent:
        sys.exit(f"{name}: finds {found}, and sent was {sent}")
    if os.path.exists(recording):
        os.unlink(recording)
    return sent["packets"], seconds, captured, dropped, used.ru_utime + used.ru_stime

names = [name for name in commands if shutil.which(commands[name][0])]
found = {name: [] for name in names}
for _ in range(rounds):
    for name in names:
        found[name].append(run(name))
print("| | packets sent | a second | captured | dropped by the kernel | CPU, s |")
print("|---|---:|---:|---:|---:|---:|")
for name, runs in found.items():
    sent, _, captured, dropped, _ = map(sum, zip(*runs))
    speed = statistics.median(run[0] / run[1] for run in runs)
    used = statistics.median(run[4] for run in runs)
    print(f"| {name} | {sent:,} | {speed:,.0f} | {captured:,} | {dropped:,} ({dropped / sent:.2%}) | {used:.2f} |")
times = "one round" if rounds == 1 else f"{rounds} rounds in turns, speed and CPU time their medians"
print(f"\n{times}; RC RDMA WRITEs in frames of 1082 bytes and an acknowledgement for")
print(f"every four, sent on the same {os.cpu_count()} cores in one run of `scripts/bench-live.sh`.")
for name in commands.keys() - names:
    print(f"Not installed, and left out: {commands[name][0]}.")
PY

# Who is no root has the capabilities in there; tcpdump would not be able to leave a root of its own.
enter=(unshare --net)
if [ "$(id -u)" != 0 ]; then enter=(unshare --map-current-user --keep-caps --net); fi
"${enter[@]}" sh -eu -c '
  ip link add near type veth peer name far
  ip link set near up
  ip link set far up
  exec python3 "$@"' sh "$dir/measure.py" "$release" "$dir" "$rounds" "$rate" "$packets"
