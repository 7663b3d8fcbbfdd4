#!/usr/bin/env python3
"""Copies the captures that tests/vm/fixtures.sh made into a directory, with truth-faults.json: what is known about
each from tshark, from both ends' captures, from the traffic's maker and from the drivers' counters; nothing of it
from the program under test. Of scenarios that OUT lacks, what the directory has stays.
usage: fixture-truth.py OUT DIRECTORY"""
import collections, json, pathlib, re, shutil, statistics, struct, subprocess, sys, zlib

OUT, DIRECTORY = map(pathlib.Path, sys.argv[1:])
SERVER, CLIENT = "10.0.0.1", "10.0.0.2"
NEAR = {SERVER: "veth0", CLIENT: "veth1"}
READ_RESPONSES = (13, 14, 15, 16)
ACK, NAK_SEQUENCE, NAK_ACCESS = 17, 0x60, 0x62
# Capture, scenario, the end it was taken at.
CAPTURES = [
    ("lossy_sender", "lossy", "veth1"),
    ("lossy_receiver", "lossy", "veth0"),
    ("read_loss", "read_loss", "veth1"),
    ("read_loss_responder", "read_loss", "veth0"),
    ("psn_wrap", "psn_wrap", "veth1"),
    ("rnr", "rnr", "veth1"),
    ("reorder", "reorder", "veth0"),
    ("corrupt", "corrupt", "veth0"),
    ("bad_rkey", "bad_rkey", "veth1"),
    ("peer_dies", "peer_dies", "veth1"),
    ("cm_refused", "cm_refused", "veth1"),
    ("jumbo", "jumbo", "veth1"),
    ("qp_reuse", "qp_reuse", "veth1"),
    ("delay", "delay", "veth1"),
    ("delay_responder", "delay", "veth0"),
    ("read_write_mix", "read_write_mix", "veth1"),
]
FIELDS = {
    "frame": "frame.number", "src": "ip.src", "ip_id": "ip.id", "sport": "udp.srcport", "time": "frame.time_epoch",
    "opcode": "infiniband.bth.opcode", "dest_qp": "infiniband.bth.destqp", "psn": "infiniband.bth.psn",
    "syndrome": "infiniband.aeth.syndrome", "attribute": "infiniband.mad.attributeid",
    "reason": "infiniband.cm.rej.reason", "rejected": "infiniband.cm.rej.msgrej",
    "service": "infiniband.cm.req.serviceid", "private": "infiniband.cm.rej.private",
}


def lines(name):
    path = OUT / name
    return path.read_text().splitlines() if path.exists() else []


def frames(path):
    """The frames of a capture with nanoseconds, as bytes."""
    data = path.read_bytes()
    magic, *_, link = struct.unpack_from("<IHHiIII", data)
    assert magic == 0xA1B23C4D and link == 1, path
    found, at = [], 24
    while at < len(data):
        _, _, held, length = struct.unpack_from("<IIII", data, at)
        assert held == length, f"{path}: a packet was cut"
        found.append(data[at + 16 : at + 16 + held])
        at += 16 + held
    return found


def nanoseconds(text):
    whole, _, part = text.partition(".")
    return int(whole) * 10**9 + int(part.ljust(9, "0"))


def decode(path):
    """The packets of a capture as tshark reads them, those that are RoCE."""
    command = ["tshark", "-r", str(path), "-T", "fields", "-E", "occurrence=f"]
    for field in FIELDS.values():
        command += ["-e", field]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = []
    for line in text.splitlines():
        row = dict(zip(FIELDS, line.split("\t")))
        if not row["opcode"]:
            continue
        for key, value in row.items():
            if key == "time":
                row[key] = nanoseconds(value)
            elif key not in ("src", "service", "private"):
                row[key] = int(value, 0) if value else None
        rows.append(row)
    return rows


def counts(values):
    found = collections.Counter(str(value) for value in values if value is not None)
    return dict(sorted(found.items()))


def counters(name):
    found = {}
    for line in lines(name):
        path, value = line.split(":")
        found[path.split("/")[0], path.split("/")[-1]] = int(value)
    return found


def deltas(scenario):
    if scenario == "qp_reuse":  # the devices of each run began at 0
        runs = [counters(f"{scenario}.run{n}") for n in (1, 2)]
        moved = {key: runs[0][key] + runs[1][key] for key in runs[0]}
    else:
        before, after = counters(f"{scenario}.before"), counters(f"{scenario}.after")
        moved = {key: after[key] - before[key] for key in after}
    result = {"rxe0": {}, "rxe1": {}}
    for (device, counter), value in sorted(moved.items()):
        if value and counter != "lifespan":  # a setting
            result[device][counter] = value
    return result


def printed(scenario):
    return [json.loads(line) for line in lines(f"{scenario}.jsonl")]


def perftest_sides(path):
    """The client's and the server's queue pair as ib_write_bw's client prints them, in the order of truth.json."""
    form = r"(local|remote) address:.*QPN (\w+) PSN (\w+) RKey (\w+) VAddr (\w+)"
    said = {who: values for who, *values in re.findall(form, (OUT / path).read_text())}
    names = ("qpn", "psn", "rkey", "va")
    return [{"side": side, **dict(zip(names, said[who]))} for side, who in (("server", "remote"), ("client", "local"))]


def identity(row):
    """What tells one packet on the wire from all others, its retransmissions among them."""
    return tuple(row[key] for key in ("src", "ip_id", "sport", "dest_qp", "opcode", "psn"))


def qp(number):
    return f"0x{number:06x}"


def lost(ends):
    """What one end sent and the other never saw, by the end that sent it."""
    result = {}
    for source, near in NEAR.items():
        far = "veth0" if near == "veth1" else "veth1"
        sent = [row for row in ends[near] if row["src"] == source]
        arrived = {identity(row) for row in ends[far] if row["src"] == source}
        assert len({identity(row) for row in sent}) == len(sent)
        assert arrived <= {identity(row) for row in sent}
        result[source] = [
            {"src": source, "dest_qp": qp(row["dest_qp"]), "opcode": row["opcode"], "psn": row["psn"],
             "ip_id": row["ip_id"], "frame_at_sender": row["frame"]}
            for row in sent if identity(row) not in arrived
        ]
    return result


def lost_counts(ends):
    by_source = lost(ends)
    return {"lost_from_client": len(by_source[CLIENT]), "lost_from_server": len(by_source[SERVER])}


def losses(rows, ends, scenario):
    by_source = lost(ends)
    moved = deltas(scenario)
    # The drivers count what they sent and received themselves: another witness.
    for source, device, peer in ((SERVER, "rxe0", "rxe1"), (CLIENT, "rxe1", "rxe0")):
        sent, received = moved[device]["sent_pkts"], moved[peer]["rcvd_pkts"]
        assert sent - received == len(by_source[source]), (scenario, source)
    if not by_source[SERVER] or not by_source[CLIENT] and scenario != "read_loss":
        sys.exit(f"{scenario}: chance lost nothing one way, make it again")
    return {
        **lost_counts(ends),
        "lost": by_source[CLIENT] + by_source[SERVER],
        "packets_from_client": moved["rxe1"]["sent_pkts"],
        "packets_from_server": moved["rxe0"]["sent_pkts"],
        "repeated_in_this_capture": repeated(rows),
    }


def repeated(rows):
    """Per source, the packets whose queue pair, opcode and PSN this capture had from that source before."""
    seen, again = set(), collections.Counter({CLIENT: 0, SERVER: 0})
    for row in rows:
        key = (row["src"], row["dest_qp"], row["opcode"], row["psn"])
        again[row["src"]] += key in seen
        seen.add(key)
    return dict(again)


def reordering(rows, ends, scenario):
    sent = [identity(row) for row in ends["veth1"] if row["src"] == CLIENT]
    place = {key: n for n, key in enumerate(sent)}
    arrived = [place[identity(row)] for row in ends["veth0"] if row["src"] == CLIENT]
    assert sorted(arrived) == list(range(len(sent)))
    late, highest = 0, -1
    for n in arrived:
        late += n < highest
        highest = max(highest, n)
    lowest, overtaking = len(sent), 0
    for n in reversed(arrived):
        overtaking += n > lowest
        lowest = min(lowest, n)
    return {
        "arrived_after_one_sent_later": late,
        "arrived_before_one_sent_earlier": overtaking,
        **lost_counts(ends),
        "sequence_naks": sum(row["syndrome"] == NAK_SEQUENCE for row in rows),
        "repeated_in_this_capture": repeated(rows),
    }


def icrc(ip):
    """The ICRC that this IPv4 packet with RoCE in it should end with."""
    size = struct.unpack_from(">H", ip, 2)[0]
    masked = bytearray(ip[: size - 4])
    for at in (1, 8, 10, 11, 26, 27, 32):  # TOS, TTL, both checksums, the BTH's byte of congestion bits
        masked[at] = 0xFF
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + masked))


def checksum_ok(header):
    total = sum(struct.unpack(">10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return (total & 0xFFFF) + (total >> 16) == 0xFFFF


def described(number, before, after):
    """Where the one bit between what was sent and what arrived is, and what still holds of the packet."""
    (at, bits), = [(at, a ^ b) for at, (a, b) in enumerate(zip(before, after)) if a != b]
    ip = after[14:]
    size = struct.unpack_from(">H", ip, 2)[0]
    roce = after[12:14] == b"\x08\x00" and ip[0] == 0x45 and ip[9] == 17 and ip[22:24] == b"\x12\xb7"
    fragment = struct.unpack_from(">H", ip, 6)[0] & 0x3FFF
    whole = roce and 44 <= size <= len(ip) and not fragment and struct.unpack_from(">H", ip, 24)[0] == size - 20
    ends = {"ethernet": 14, "ip": 34, "udp": 42, "bth": 54, "after_bth": len(before) - 4, "icrc": len(before)}
    part = next(name for name, end in ends.items() if at < end)
    return {
        "frame": number, "byte": at, "bits": f"0x{bits:02x}", "part": part,
        "still_ipv4_udp_4791": roce,
        "ip_header_checksum_ok": checksum_ok(ip[:20]) if after[12:14] == b"\x08\x00" else None,
        # Not to be checked in a fragment, or where the lengths no longer say where the packet ends.
        "icrc_ok": icrc(ip) == ip[size - 4 : size] if whole else None,
    }


def corruption(rows, ends, scenario):
    raw = {end: frames(OUT / f"{scenario}.{end}.pcap") for end in ("veth0", "veth1")}
    client, server = b"\x02\0\0\0\0\x02", b"\x02\0\0\0\0\x01"
    sent = [frame for frame in raw["veth1"] if frame[6:12] == client]
    arrived = [(n, frame) for n, frame in enumerate(raw["veth0"], 1) if frame[6:12] != server]
    # Nothing overtakes and nothing is lost, so both ends number alike.
    assert len(sent) == len(arrived)
    for frame in raw["veth0"]:
        if frame[6:12] == server:
            assert icrc(frame[14:]) == frame[-4:]
    changed = [described(n, a, b) for a, (n, b) in zip(sent, arrived) if a != b]
    roce = [packet for packet in changed if packet["still_ipv4_udp_4791"]]
    return {
        "corrupted": len(changed),
        "corrupted_still_ipv4_udp_4791": len(roce),
        "icrc_wrong": sum(packet["icrc_ok"] is False for packet in roce),
        "icrc_right_though_corrupted": sum(packet["icrc_ok"] is True for packet in roce),
        "icrc_not_checkable": sum(packet["icrc_ok"] is None for packet in roce),
        "ip_header_checksum_wrong": sum(packet["ip_header_checksum_ok"] is False for packet in changed),
        "no_longer_ipv4_udp_4791": len(changed) - len(roce),
        "corrupted_packets": changed,
    }


def spread(values):
    return {"min_ns": min(values), "median_ns": int(statistics.median(values)), "max_ns": max(values)}


def delays(rows, ends, scenario):
    result = {"delay_to_server_ms": 15, "delay_to_client_ms": 5, "clock_offset_between_the_ends_ns": 0}
    for source, name in ((CLIENT, "way_to_server"), (SERVER, "way_to_client")):
        far = "veth0" if NEAR[source] == "veth1" else "veth1"
        left = {identity(row): row["time"] for row in ends[NEAR[source]] if row["src"] == source}
        result[name] = spread([row["time"] - left[identity(row)] for row in ends[far] if row["src"] == source][1:])
    numbers = collections.Counter((row["src"], row["psn"]) for row in rows)
    assert set(numbers.values()) == {1}, "a retransmission: whose answer is whose cannot be told"
    asked = {row["psn"]: row["time"] for row in rows if row["src"] == CLIENT}
    # The first operation was before the delay.
    times = [row["time"] - asked[row["psn"]] for row in rows if row["src"] == SERVER][1:]
    result["request_to_answer_in_this_capture"] = spread(times)
    return result


def not_ready(rows, ends, scenario):
    naks = []
    for n, row in enumerate(rows):
        if row["syndrome"] is None or row["syndrome"] >> 5 != 1:
            continue
        again = next(later for later in rows[n:] if later["src"] == CLIENT and later["psn"] == row["psn"])
        naks.append({"frame": row["frame"], "dest_qp": qp(row["dest_qp"]), "psn": row["psn"],
                     "timer_code": row["syndrome"] & 31, "frame_of_the_next_copy": again["frame"],
                     "until_the_next_copy_ns": again["time"] - row["time"]})
    return {"rnr_naks": len(naks), "rnr_psns": len({(nak["dest_qp"], nak["psn"]) for nak in naks}),
            "rnr": naks,
            "all_recovered": all(line["status"] == 0 for line in printed(scenario) if "completed" in line),
            "repeated_in_this_capture": repeated(rows)}


def death(rows, ends, scenario):
    answered = max(row["psn"] for row in rows if row["src"] == SERVER)
    after = [row for row in rows if row["psn"] > answered]
    copies = collections.Counter(row["psn"] for row in after)
    times = [row["time"] for row in after if row["psn"] == answered + 1]
    return {
        "last_psn_answered": answered,
        "copies_of_unanswered_psns": {str(psn): n for psn, n in sorted(copies.items())},
        "between_copies_of_the_first_unanswered_ns": [b - a for a, b in zip(times, times[1:])],
        "retry_count": 5, "timeout_code": 14,
    }


def refusals(rows, ends, scenario):
    return {
        "requests": [{"frame": row["frame"], "service_id": row["service"]} for row in rows if row["attribute"] == 0x10],
        "rejections": [
            {"frame": row["frame"], "reason": row["reason"], "message_rejected": row["rejected"],
             "private_data_begins": row["private"][:32]} for row in rows if row["attribute"] == 0x12],
    }


def keys(rows, ends, scenario):
    naks = {(row["dest_qp"]): row["frame"] for row in rows if row["syndrome"] == NAK_ACCESS}
    attempts, sides = [], {}
    for line in printed(scenario):
        if "side" in line:
            sides[line["side"]] = line
        elif "posted" in line:
            server = sides["server"]
            # 1 MiB from its address on is what the key gives access to.
            attempts.append({
                **{key: line[key] for key in ("op", "size", "rkey", "va")},
                "dest_qp": qp(int(server["qpn"], 0)), "requester_qp": qp(int(sides["client"]["qpn"], 0)),
                "rkey_is_right": line["rkey"] == server["rkey"],
                "range_is_right": int(line["va"], 0) + line["size"] <= int(server["va"], 0) + (1 << 20)})
        else:
            made = attempts[-1] if line["status"] else [a for a in attempts if "status" not in a][0]
            made["status"] = line["text"]
            if line["status"]:
                made["frame_of_nak"] = naks[int(made["requester_qp"], 0)]
    return {"attempts": attempts, "remote_access_errors": sum(row["syndrome"] == NAK_ACCESS for row in rows),
            "wrong_rkeys": sorted({a["rkey"] for a in attempts if not a["rkey_is_right"]})}


def wrap(rows, ends, scenario):
    crossings = []
    for (source, dest), _ in collections.Counter((row["src"], row["dest_qp"]) for row in rows).items():
        some = [row for row in rows if (row["src"], row["dest_qp"]) == (source, dest)]
        first = next((row for row in some if row["psn"] < 0x800000), None)
        if first and some[0]["psn"] >= 0x800000:
            crossings.append({"src": source, "dest_qp": qp(dest), "first_frame_past_the_wrap": first["frame"]})
    return {"wraps": crossings, **losses(rows, ends, scenario)}


def sizes(rows, ends, scenario):
    lengths = [len(frame) for frame in frames(OUT / f"{scenario}.veth1.pcap")]
    return {"path_mtu": 4096, "longest_frame": max(lengths), **lost_counts(ends)}


def second_run(rows, ends, scenario):
    second = perftest_sides(f"{scenario}.client2")
    psn, dest = int(second[1]["psn"], 0), int(second[0]["qpn"], 0)
    first = next(row for row in rows if row["src"] == CLIENT and (row["dest_qp"], row["psn"]) == (dest, psn))
    return {"second_run_qps": second, "first_frame_of_second_run": first["frame"]}


MORE = {"lossy": losses, "read_loss": losses, "read_write_mix": losses, "psn_wrap": wrap, "reorder": reordering,
        "corrupt": corruption, "delay": delays, "rnr": not_ready, "peer_dies": death, "cm_refused": refusals,
        "bad_rkey": keys, "jumbo": sizes, "qp_reuse": second_run}


def operations(scenario):
    found = printed(scenario)
    return {
        "posted": counts(line["op"] for line in found if "posted" in line),
        "completed": counts(line["text"] for line in found if "completed" in line),
    } if found else None


path = DIRECTORY / "truth-faults.json"
before = json.loads(path.read_text()) if path.exists() else {}
truth, copies = {}, []
for capture, scenario, end in CAPTURES:
    if not (OUT / f"{scenario}.{end}.pcap").exists():
        if capture in before:
            truth[capture] = before[capture]
        continue
    for which in ("veth0", "veth1"):
        said = "\n".join(lines(f"{scenario}.{which}.err"))
        if "\n0 packets dropped by kernel" not in said:
            sys.exit(f"{scenario}: the capture at {which} is not whole: {said}")
    ends = {which: decode(OUT / f"{scenario}.{which}.pcap") for which in ("veth0", "veth1")}
    rows, source = ends[end], OUT / f"{scenario}.{end}.pcap"
    copies.append((source, DIRECTORY / f"{capture}.pcap"))
    sides = [line for line in printed(scenario) if "side" in line]
    if scenario == "bad_rkey":
        # Not what the requests name, as elsewhere, but what they should have named.
        names = {"rkey": "right_rkey", "va": "right_va"}
        sides = [{names.get(key, key): value for key, value in side.items()} for side in sides]
    if scenario == "qp_reuse":
        sides = perftest_sides("qp_reuse.client1")
    entry = {
        "packets": len(frames(source)),
        "opcodes": counts(row["opcode"] for row in rows),
        "syndromes": counts(row["syndrome"] for row in rows),
        "dest_qps": counts(qp(row["dest_qp"]) for row in rows),
    }
    if sides:
        entry["generator_qps"] = sides
    entry["driver_counters_delta"] = deltas(scenario)
    entry["other_end"] = next((other for other, what, where in CAPTURES if what == scenario and where != end), None)
    entry["captured_at"] = {"veth0": "the server's end", "veth1": "the client's end"}[end]
    entry["netem"] = [re.sub(r"\bdev m0\b", "towards the server", re.sub(r"\bdev m1\b", "towards the client", line))
                      for line in lines(f"{scenario}.netem")]
    if operations(scenario):
        entry["operations"] = operations(scenario)
    truth[capture] = entry | MORE[scenario](rows, ends, scenario)
# All or none: a capture without its truth is no fixture.
for copy in copies:
    shutil.copyfile(*copy)
path.write_text(json.dumps(truth, indent=1) + "\n")
