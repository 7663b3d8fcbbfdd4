#!/usr/bin/env bash
# Runs a command as root on a real Linux kernel that has Soft-RoCE, in a small virtual machine over this
# machine's own files: read-only, but for DIR.      usage: boot.sh DIR COMMAND [ARG...]  or  boot.sh --check
# Exits 77 with one line that says what is missing where that is not possible; --check does only that.
set -euo pipefail

missing() { echo "no virtual machine with Soft-RoCE: $1 (scripts/setup.sh vm installs it)" >&2; exit 77; }
command -v vng >/dev/null || missing 'vng (virtme-ng) is not installed'
command -v qemu-system-x86_64 >/dev/null || missing 'qemu-system-x86_64 is not installed'

# The newest installed kernel that brings the driver.
kernel=
for image in $(printf '%s\n' /boot/vmlinuz-* | sort -V); do
  modules=/lib/modules/${image#/boot/vmlinuz-}/kernel/drivers/infiniband/sw/rxe
  [ -r "$image" ] && compgen -G "$modules/rdma_rxe.ko*" >/dev/null && kernel=$image
done
[ -n "$kernel" ] || missing 'no kernel in /boot has the module rdma_rxe'

if [ "$1" = --check ]; then exit 0; fi
dir=$(realpath "$1")
shift

# /dev/kvm can exist and still not start a stock kernel; emulation always works, and is fast enough.
exec vng -r "$kernel" --disable-kvm --force-9p --user root --memory "${VM_MEMORY:-1G}" --cpus "${VM_CPUS:-2}" \
  --rwdir="$dir" -- "$@"
