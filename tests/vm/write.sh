#!/bin/bash
# Write runs of every kind on a real Soft-RoCE driver.      usage: write.sh PROGRAM OUT
# shellcheck source=tests/vm/lib.sh
. "$(dirname "$0")/lib.sh"
modules

# Before there is any device.
run no-device 20 --iface lo --write
run missing-interface 20 --iface nosuch0 --write

two_devices
write=(--iface veth0 --write --format json)

# To itself: never on any netdev.
run self 60 "${write[@]}"
run self-table 60 --iface veth0 --write
run self-v6 60 "${write[@]}" --gid-family 6
run self-64k 60 "${write[@]}" --size 65536 --count 5 --depth 4
run self-other-qp 60 "${write[@]}" --peer-dev rxe0
run self-no-control 60 "${write[@]}" --no-control
for op in write-imm send read fetch-add cmp-swap; do
  run "self-$op" 60 "${write[@]}" --op "$op"
done
run self-expect-wire 60 "${write[@]}" --expect on-the-wire

# To the other device: over the veth pair.
run peer 60 "${write[@]}" --peer-dev rxe1
run peer-table 60 --iface veth0 --write --peer-dev rxe1
run peer-64k 60 "${write[@]}" --peer-dev rxe1 --size 65536 --count 5
for op in write-imm send read fetch-add cmp-swap; do
  run "peer-$op" 60 "${write[@]}" --peer-dev rxe1 --op "$op" --size 3000
done
run peer-v6 60 "${write[@]}" --peer-dev rxe1 --gid-family 6
run peer-bandwidth 90 "${write[@]}" --peer-dev rxe1 --size 65536 --count 200 --depth 16

# Every tenth packet that reaches rxe1 is dropped after the netdevs have shown it: sequence NAKs.
tc qdisc add dev veth1 ingress
tc filter add dev veth1 ingress matchall action gact pass random determ drop 10
run loss 120 "${write[@]}" --peer-dev rxe1 --count 100 --size 4096 --depth 8
tc qdisc del dev veth1 ingress

# Nothing that rxe1 answers arrives, and then nothing that rxe0 sends. The queue pairs shall get as far as
# sending, so addresses are not asked for.
ip neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev veth0 nud permanent
ip neigh replace 10.0.0.1 lladdr 02:00:00:00:00:01 dev veth1 nud permanent
tc qdisc add dev veth1 root netem loss 100%
run silence 60 "${write[@]}" --peer-dev rxe1
tc qdisc del dev veth1 root
tc qdisc add dev veth0 root netem loss 100%
run egress-drop 60 "${write[@]}" --peer-dev rxe1 --no-control
tc qdisc del dev veth0 root

# The learner's mistake: the source GID is link-local, the destination's an IPv4 address.
run never-sent 60 "${write[@]}" --gid-index 0 --peer-dev rxe0

# A listener where the packets do not go.
ip link add dummy0 type dummy
ip addr add 10.7.0.1/24 dev dummy0
ip link set dummy0 up
run wrong-device 60 --iface dummy0 --dev rxe0 --write --format json

# A netdev without a device gets one for the run, and no longer.
run setup-rxe 90 --iface dummy0 --write --setup-rxe --format json
keep setup-rxe-after rdma link

# Too large a path MTU completes nothing and says nothing: refused beforehand.
run mtu 30 "${write[@]}" --mtu 4096

keep unprivileged timeout 30 setpriv --reuid 65534 --regid 65534 --clear-groups "$program" --iface veth0 --write
