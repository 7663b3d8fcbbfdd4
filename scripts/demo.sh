#!/usr/bin/env bash
# The first of the two commands: installs what is missing, builds, and runs the main job: RDMA WRITEs on a
# netdev with a listener beside them, and the verdict. On this machine where its kernel has RDMA, else on a
# real kernel with Soft-RoCE in a small virtual machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh build
# shellcheck source=scripts/env.sh
. scripts/env.sh
cargo build --release --locked
program=$(realpath "${CARGO_TARGET_DIR:-target}/release/roce-sniff")

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
show() { printf '\n$ sudo roce-sniff %s\n' "$*"; as_root "$program" "$@"; }

native() {
  local iface
  # The netdev under an RDMA device, else the one that leads to the world.
  iface=$(cat /sys/class/infiniband/*/ports/1/gid_attrs/ndevs/0 2>/dev/null | head -n 1 || true)
  if [ -n "$iface" ]; then
    show --iface "$iface" --write
  else
    iface=$(ip -o route show default | awk '{ for (i = 1; i < NF; i++) if ($i == "dev") { print $(i+1); exit } }')
    [ -n "$iface" ] || { echo 'no netdev with a default route to run on' >&2; return 1; }
    show --iface "$iface" --write --setup-rxe
  fi
  show lab up
  show --iface rs-veth0 --write --peer-dev rs_rxe1 || true
  show lab down
}

if compgen -G '/sys/class/infiniband/*' >/dev/null || modprobe -n -q rdma_rxe 2>/dev/null; then
  native
else
  echo "this kernel ($(uname -r)) has no rdma_rxe: running on one that has, in a virtual machine (a minute)"
  scripts/setup.sh vm
  # shellcheck source=scripts/env.sh
  . scripts/env.sh
  out=$(mktemp -d "${TMPDIR:-/tmp}/roce-sniff-demo.XXXXXX")
  trap 'rm -rf "$out"' EXIT
  # Through a pipe: the machine opens what it prints to anew, and would write over a file from its start.
  rc=0
  timeout 300 tests/vm/boot.sh "$out" /bin/bash "$PWD/tests/vm/demo.sh" "$program" </dev/null 2>&1 | cat || rc=$?
  if [ "$rc" = 77 ]; then
    echo 'without it, here is what a capture of real Soft-RoCE traffic says:'
    "$program" fixtures/badrkey.pcap
  elif [ "$rc" != 0 ]; then
    exit "$rc"
  fi
fi
