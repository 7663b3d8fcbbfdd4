#!/bin/bash
# Makes the captures of faulty traffic that fixtures/ holds.      usage: fixtures.sh PROGRAM OUT [NAME...]
# PROGRAM is traffic.c compiled, with reject.c compiled beside it. OUT gets of each scenario both ends' captures
# (NAME.veth0.pcap, NAME.veth1.pcap), what traffic printed, the faults, and the drivers' counters before and after;
# of all scenarios, or of those named.
# shellcheck source=tests/vm/lib.sh
. "$(dirname "$0")/lib.sh"
shift 2
wanted=" $* "
modules
modprobe -a bridge sch_ingress cls_u32

# The two devices with a bridge between them, in a namespace of its own, that does the harm: what is lost there
# was seen by the one end's capture and not by the other's.
devices_with_middle() {
  ip netns add middle
  local i
  for i in 0 1; do
    ip link add "veth$i" type veth peer name "m$i"
    ip link set "m$i" netns middle
  done
  middle ip link add br0 type bridge
  middle ip link set br0 up
  for i in 0 1; do
    middle ip link set "m$i" master br0 up
  done
  for i in all default veth0 veth1; do
    sysctl -qw "net.ipv4.conf.$i.rp_filter=0" "net.ipv4.conf.$i.accept_local=1"
  done
  for i in 0 1; do
    ip link set "veth$i" address "02:00:00:00:00:0$((i + 1))"
    ip link set "veth$i" up
    ip addr add "10.0.0.$((i + 1))/24" dev "veth$i"
    rdma link add "rxe$i" type rxe netdev "veth$i"
  done
  # No address resolution while packets are being lost: that is another fault.
  ip neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev veth0 nud permanent
  ip neigh replace 10.0.0.1 lladdr 02:00:00:00:00:01 dev veth1 nud permanent
  sleep 2
}

middle() { ip netns exec middle "$@"; }

# fault TC-ARGUMENT...: a fault in the middle that begins once the first operation of the scenario is complete.
fault() {
  printf 'tc %s\n' "$*" >>"$out/$name.netem"
  then+="ip netns exec middle tc $*; "
}

# heal: no faults any more, neither in the middle nor for the traffic to come.
heal() {
  then=
  local i
  for i in 0 1; do
    middle tc qdisc del dev "m$i" root
    middle tc qdisc del dev "m$i" clsact
  done 2>/dev/null
}

traffic() {
  echo "traffic $*" >>"$out/$name.err"
  timeout -k 5 130 "$program" "$@" --then "${then:-true}" >>"$out/$name.jsonl" 2>>"$out/$name.err" ||
    echo "traffic ended with $?" >>"$out/$name.err"
}

all_counters() {
  # The driver's numbers are up to 12 ms old.
  sleep 0.05
  (cd /sys/class/infiniband && grep -H . {rxe0,rxe1}/ports/1/hw_counters/*)
}

listen() {
  local interface
  captures=()
  for interface in veth0 veth1; do
    # Whole packets: none is longer than this. With a larger limit the buffer holds few and loses the rest.
    tcpdump -i "$interface" -n -s 5000 -B 32768 -U --immediate-mode --time-stamp-precision nano \
      -w "$out/$name.$interface.pcap" "$filter" 2>"$out/$name.$interface.err" &
    captures+=($!)
  done
  for interface in veth0 veth1; do
    for _ in {1..200}; do
      grep -q 'listening on' "$out/$name.$interface.err" && break
      sleep 0.1
    done
  done
}

# scenario NAME [FILTER]: runs the function NAME between two captures and puts the middle right afterwards.
scenario() {
  name=$1 filter=${2:-udp port 4791} then=
  [[ $wanted == '  ' || $wanted == *" $name "* ]] || return 0
  rm -f "$out/$name".*
  listen
  all_counters >"$out/$name.before"
  "$name"
  all_counters >"$out/$name.after"
  sleep 0.3
  kill -INT "${captures[@]}"
  wait "${captures[@]}"
  heal
  echo "made $name"
}

# m0 leads to the server, m1 to the client. A path MTU of 256 makes many packets of few bytes.
read_loss() {
  fault qdisc add dev m1 root netem loss 5%
  traffic --op read --size 4000 --count 24 --depth 2
}

lossy() {
  fault qdisc add dev m0 root netem loss 3%
  fault qdisc add dev m1 root netem loss 3%
  traffic --op write,send --size 1500 --count 70 --mtu 256
}

reorder() {
  fault qdisc add dev m0 root netem delay 3ms reorder 4%
  traffic --op write,send --size 1500 --count 40 --mtu 256 --depth 2
}

# Short packets, so that headers are hit too.
corrupt() {
  fault qdisc add dev m0 root netem corrupt 3%
  traffic --op write,send --size 600 --count 70 --mtu 256
  heal
  fault qdisc add dev m0 root netem corrupt 8%
  traffic --op write,send --size 20 --count 300 --mtu 256 --client-psn 0x500000
}

# Unequal ways: who takes half of the round trip for each is wrong by 5 ms.
delay() {
  fault qdisc add dev m0 root netem delay 15ms
  fault qdisc add dev m1 root netem delay 5ms
  traffic --op write,read --size 1000 --count 20 --depth 1 --timeout 20
}

rnr() {
  traffic --op send --size 2500 --count 6 --depth 2 --rnr-timer 20 --receives 3 --late-ms 60
  traffic --op write-imm --size 2500 --count 4 --depth 1 --rnr-timer 18 --receives 2 --late-ms 40 \
    --client-psn 0x140000
}

peer_dies() {
  traffic --op write --size 1500 --count 40 --depth 3 --timeout 14 --retry 5 --kill-after 8
}

# Guesses, a right key with too far an address, and a right access among them.
bad_rkey() {
  local n
  for n in 0 1 2 3; do
    traffic --op write --size $((64 + 100 * n)) --count 3 --rkey $((0x1000 + n)) --client-psn $((0x300000 + 0x1000 * n))
  done
  traffic --op write --size 200 --count 2 --depth 1 --client-psn 0x310000
  for n in 0 1 2; do
    traffic --op read --size 3000 --count 2 --rkey $((0x2000 + 0x100 * n)) --client-psn $((0x320000 + 0x1000 * n))
  done
  traffic --op fetch-add --count 1 --rkey 0xdeadbe --client-psn 0x330000
  traffic --op write --size 4096 --count 1 --offset 0xff800 --client-psn 0x340000
}

# drop_copies N DEVICE OPCODE PSN: of the packets to DEVICE with this opcode and number the first N are lost.
drop_copies() {
  fault filter add dev "$2" egress protocol ip u32 match ip protocol 17 0xff match u8 "$3" 0xff at 28 \
    match u32 "$4" 0x00ffffff at 36 action gact drop random determ pass $(($1 + 1))
}

# Lost are the last number, the first one (its first copy, that follows a lost packet, tells nothing), and one more
# soon after. Then a response with the number 0.
psn_wrap() {
  fault qdisc add dev m0 clsact
  drop_copies 1 m0 0x00 0xffffff
  drop_copies 2 m0 0x01 0x000000
  drop_copies 1 m0 0x00 0x000005
  traffic --op write,send --size 3000 --count 16 --depth 2 --client-psn 0xfffff0 --server-psn 0xfffffb
  heal
  fault qdisc add dev m1 clsact
  drop_copies 1 m1 0x0e 0x000000
  traffic --op read --size 3000 --count 6 --depth 2 --client-psn 0xfffff9 --server-psn 0xfffffb
}

jumbo() {
  local i
  for i in m0 m1 br0; do middle ip link set $i mtu 4300; done
  for i in veth0 veth1; do ip link set $i mtu 4300; done
  sleep 1
  traffic --op write,read --size 16384 --count 8 --depth 2 --mtu 4096
  for i in veth0 veth1; do ip link set $i mtu 1500; done
  for i in m0 m1 br0; do middle ip link set $i mtu 1500; done
  sleep 1
}

# Chance rarely loses the few answers of some kinds: those of one FETCH_ADD and of one READ's beginning are lost for
# certain. A round of operations takes 26 numbers.
read_write_mix() {
  fault qdisc add dev m0 root netem loss 2%
  fault qdisc add dev m1 root netem loss 2%
  fault qdisc add dev m1 clsact
  drop_copies 1 m1 0x12 $((0x100000 + 26 + 12))
  drop_copies 1 m1 0x0d $((0x100000 + 2 * 26 + 6))
  traffic --op write,read,fetch-add,send,cmp-swap,write-imm --size 1500 --count 72 --depth 3 --mtu 256
}

# Nobody listens; then somebody does who wants no connection.
cm_refused() {
  timeout 20 rping -c -a 10.0.0.1 -I 10.0.0.2 -p 7999 -C 1 >>"$out/$name.err" 2>&1
  timeout 30 "${program%/*}/reject" 10.0.0.1 7471 >>"$out/$name.err" 2>&1 &
  local listener=$!
  sleep 2
  timeout 20 rping -c -a 10.0.0.1 -I 10.0.0.2 -p 7471 -C 1 >>"$out/$name.err" 2>&1
  wait $listener
}

# New devices number their queue pairs anew: two runs of perftest with the same numbers and other PSNs.
qp_reuse() {
  local i run
  for run in 1 2; do
    for i in 0 1; do
      rdma link delete "rxe$i"
      rdma link add "rxe$i" type rxe netdev "veth$i"
    done
    sleep 2
    timeout 40 ib_write_bw -d rxe0 -x 1 -n 5 -s 3000 -m 1024 >"$out/$name.server$run" 2>&1 &
    i=$!
    sleep 2
    timeout 40 ib_write_bw -d rxe1 -x 1 -n 5 -s 3000 -m 1024 10.0.0.1 >"$out/$name.client$run" 2>&1
    wait $i
    all_counters >"$out/$name.run$run"
    sleep 1
  done
}

devices_with_middle
# Both ends number alike: queue pairs of the client's device alone, so that afterwards no number names both.
for _ in {1..6}; do
  "$program" --client rxe1 --server rxe1 --count 1 >/dev/null
done
for n in lossy read_loss psn_wrap rnr reorder corrupt bad_rkey peer_dies cm_refused jumbo delay read_write_mix; do
  if [ $n = corrupt ]; then scenario $n 'not arp and not ip6'; else scenario $n; fi
done
scenario qp_reuse
