#!/usr/bin/env bash
# Installs what is missing and nothing else: scripts/setup.sh [build|test|vm]...   (default: build)
#   build  compiler, libpcap, libibverbs, librdmacm, a libclang that rdma-sys can use, clang and libbpf for the
#          kernel tap
#   test   build, and the tools the tests compare with
#   vm     a kernel with rdma_rxe and an emulator, to run Soft-RoCE without touching this machine's kernel
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly RUST_MIN=88 # Rust 1.88
readonly LIBCLANG_PYPI='libclang==15.0.6.1' VNG_PYPI='virtme-ng==1.42'

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

groups=" ${*:-build} "
for g in $groups; do
  case $g in build | test | vm) ;; *) die "unknown group '$g' (build, test, vm)" ;; esac
done
want() { [[ $groups == *" $1 "* ]]; }
if want test && ! want build; then groups+="build "; fi

# Run as `sudo scripts/setup.sh`, cargo is still the invoking user's.
if [ "$(id -u)" = 0 ] && [ -n "${SUDO_USER:-}" ]; then
  HOME=$(getent passwd "$SUDO_USER" | cut -d: -f6)
  export HOME
fi
# shellcheck source=scripts/env.sh
load_env() { . scripts/env.sh; }
load_env

if command -v apt-get >/dev/null; then pm=apt
elif command -v dnf >/dev/null; then pm=dnf
else pm=none; fi

if want vm && { [ "$pm" != apt ] || [ "$(uname -m)" != x86_64 ]; }; then
  say "vm: skipped, it needs Debian or Ubuntu on x86_64"
  groups=${groups// vm / }
fi

installed() {
  case $pm in
    apt) dpkg-query -W -f='${Status}\n' "$1" 2>/dev/null | grep -q ' installed$' ;;
    dnf) rpm -q "$1" >/dev/null 2>&1 ;;
    none) return 1 ;;
  esac
}
# need NAME... : NAME is a package, or COMMAND=PACKAGE where a command from anywhere will do.
need() {
  local n
  for n in "$@"; do
    if [[ $n == *=* ]] && command -v "${n%%=*}" >/dev/null; then continue; fi
    installed "${n#*=}" || missing+=("${n#*=}")
  done
}
candidate() { [[ $(LC_ALL=C apt-cache policy "$1" 2>/dev/null) =~ Candidate:\ [^\(] ]]; }

# Fills missing[] (distribution packages) and pypi[] (for the private venv).
plan() {
  local v
  missing=() pypi=()
  if want build; then
    if [ "$pm" = apt ]; then need gcc libc6-dev pkg-config=pkg-config libpcap-dev libibverbs-dev librdmacm-dev clang=clang libbpf-dev
    else need gcc glibc-devel pkg-config=pkgconf-pkg-config libpcap-devel rdma-core-devel clang=clang libbpf-devel; fi
    # The runtime library alone is enough (env.sh lends it gcc's headers): a tenth of libclang-N-dev.
    if [ -z "${LIBCLANG_PATH:-}" ]; then
      for v in 15 14 13; do
        if [ "$pm" = apt ] && candidate "libclang1-$v"; then missing+=("libclang1-$v"); break; fi
        if [ "$v" = 13 ]; then pypi+=("$LIBCLANG_PYPI"); fi
      done
    fi
  fi
  if want test; then
    if [ "$pm" = apt ]; then need tshark=tshark shellcheck=shellcheck ip=iproute2
    else need tshark=wireshark-cli shellcheck=ShellCheck ip=iproute; fi
    need tcpdump=tcpdump zstd=zstd gzip=gzip python3=python3
  fi
  if want vm; then
    need qemu-system-x86_64=qemu-system-x86 busybox-static kmod=kmod ip=iproute2 rdma-core \
      ibverbs-utils ibverbs-providers perftest rdmacm-utils
    if ! compgen -G '/lib/modules/*/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*' >/dev/null; then
      if candidate linux-image-amd64; then need linux-image-amd64; else need linux-image-generic; fi
    fi
    command -v vng >/dev/null || pypi+=("$VNG_PYPI")
  fi
  if [ ${#pypi[@]} -gt 0 ]; then
    need python3=python3
    # Debian splits the venv module off its python3; another python3 on PATH may have it.
    if [ "$pm" = apt ] && ! python3 -c 'import ensurepip' 2>/dev/null; then need python3-venv; fi
  fi
}

install_packages() {
  local root=() line
  case $pm in
    apt) line="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" ;;
    dnf) line="dnf install -y ${missing[*]}" ;;
    none) say "no apt-get or dnf here: going on as if these were installed: ${missing[*]}"; return ;;
  esac
  if [ "$(id -u)" != 0 ]; then
    # Without a terminal a password prompt would hang for ever: -n fails instead.
    if command -v sudo >/dev/null && [ -t 0 ]; then root=(sudo)
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then root=(sudo -n)
    else
      say "packages are missing and this user cannot install them; run this as root, then try again:" >&2
      printf '%s\n' "$line" >&2
      exit 1
    fi
  fi
  if [ "$pm" = dnf ]; then "${root[@]}" dnf install -y "${missing[@]}" </dev/null; return; fi
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
  say "something is missing: updating the package lists"
  "${apt[@]}" update
  plan # again: an empty or old package list hides candidates
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  say "installing ${missing[*]}"
  # The question tshark would ask; "no" is its default, and reading files needs no privilege.
  if [[ " ${missing[*]} " == *" tshark "* ]]; then
    "${root[@]}" debconf-set-selections <<<'wireshark-common wireshark-common/install-setuid boolean false' || true
  fi
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null </dev/null
}

install_pypi() {
  say "installing ${pypi[*]} into $ROCE_SNIFF_TOOLS"
  [ -x "$ROCE_SNIFF_TOOLS/bin/pip" ] || python3 -m venv "$ROCE_SNIFF_TOOLS"
  "$ROCE_SNIFF_TOOLS/bin/pip" install -q --no-cache-dir --disable-pip-version-check "${pypi[@]}"
  # Under sudo, leave no target dir that the user's own cargo cannot write to.
  if [ -n "${SUDO_USER:-}" ]; then
    chown "$SUDO_USER:" "${ROCE_SNIFF_TOOLS%/*}"
    chown -R "$SUDO_USER:" "$ROCE_SNIFF_TOOLS"
  fi
}

check_cargo() {
  local v how='see https://rustup.rs, or: curl -sSf https://sh.rustup.rs | sh -s -- -y --profile default'
  command -v cargo >/dev/null || die "cargo not found, Rust 1.$RUST_MIN or newer is needed: $how"
  v=$(cargo --version | cut -d' ' -f2) || die "cargo does not run (a rustup without a toolchain? try: rustup default stable)"
  case $v in 1.*) v=${v#1.} v=${v%%.*} ;; *) return 0 ;; esac
  [ "$v" -ge "$RUST_MIN" ] || die "cargo 1.$v is too old, 1.$RUST_MIN or newer is needed: run 'rustup update stable' ($how)"
}

plan
if [ ${#missing[@]} -gt 0 ]; then install_packages; load_env; plan; fi
if [ ${#pypi[@]} -gt 0 ]; then install_pypi; load_env; fi
if want build; then
  [ -n "${LIBCLANG_PATH:-}" ] || die "no libclang 13 to 15 found after the installation; set LIBCLANG_PATH to one"
  check_cargo
fi
say "ready:${groups% }"
