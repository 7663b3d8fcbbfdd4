#!/bin/bash
# Plain captures beside other programs' traffic, the lab, the doctor, two-host runs.   usage: capture.sh PROGRAM OUT
# shellcheck source=tests/vm/lib.sh
. "$(dirname "$0")/lib.sh"
modules

# The lab, from nothing to nothing, with a run in between.
keep sysctl-before sysctl net.ipv4.conf.all.rp_filter net.ipv4.conf.default.accept_local
run lab-up 60 lab up
run lab-status 20 lab status
run lab-again 60 lab up
run lab-write 60 --iface rs-veth0 --write --peer-dev rs_rxe1 --format json
run doctor 120 doctor --iface rs-veth0 --to 10.99.0.1 --format json
run doctor-peer 120 doctor --iface rs-veth0 --to 10.99.0.2 --format json
run doctor-table 120 doctor --iface rs-veth0
run lab-down 60 lab down
run lab-down-again 60 lab down
keep links-after ip -br link
keep sysctl-after sysctl net.ipv4.conf.all.rp_filter net.ipv4.conf.default.accept_local

# Killed in the middle of setting up: what was made is taken down all the same.
"$program" lab up >"$out/lab-killed.out" 2>&1 &
sleep 0.7
kill -9 $! 2>/dev/null
wait $! 2>/dev/null
run lab-killed-down 60 lab down
keep links-after-kill ip -br link

two_devices

# perftest beside a plain capture: every packet once, as many as the driver counted.
keep perftest-before counters rxe0 rxe1
"$program" --iface veth0 --duration 14s --format json -w "$out/perftest.pcapng" \
  >"$out/perftest.out" 2>"$out/perftest.err" &
capture=$!
sleep 3
timeout 30 ib_write_bw -d rxe0 -x 1 -n 50 -s 4096 >"$out/perftest-server.out" 2>&1 &
sleep 1.5
timeout 30 ib_write_bw -d rxe1 -x 1 -n 50 -s 4096 10.0.0.1 >"$out/perftest-client.out" 2>&1
echo $? >"$out/perftest-client.status"
wait $capture
echo $? >"$out/perftest.status"
sleep 0.1
keep perftest-after counters rxe0 rxe1

# Two hosts, here two devices of one: the exchange over TCP, and over the RDMA-CM.
timeout 60 "$program" responder --dev rxe1 --once >"$out/responder.out" 2>"$out/responder.err" &
responder=$!
sleep 2
run peer-host 60 --iface veth0 --write --peer 10.0.0.2 --format json
wait $responder
echo $? >"$out/responder.status"
timeout 60 "$program" responder --dev rxe1 --once --cm >"$out/responder-cm.out" 2>"$out/responder-cm.err" &
responder=$!
sleep 2
run peer-cm 60 --iface veth0 --write --peer 10.0.0.2 --cm --format json
wait $responder
echo $? >"$out/responder-cm.status"
run peer-nobody 60 --iface veth0 --write --peer 10.0.0.2 --format json
