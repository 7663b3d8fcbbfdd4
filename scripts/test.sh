#!/usr/bin/env bash
# The second of the two commands: installs what the tests need and runs them all, with every default
# feature and as the offline build that must hold no C library. Ends with a summary.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

log=$(mktemp "${TMPDIR:-/tmp}/roce-sniff-test.XXXXXX")
summary=() stage='set-up'
finish() {
  local rc=$?
  rm -f "$log"
  printf '\n== summary\n'
  if [ ${#summary[@]} -gt 0 ]; then printf '  %s\n' "${summary[@]}"; fi
  if [ $rc = 0 ]; then echo 'all passed'; else echo "FAILED: $stage"; fi
  exit $rc
}
trap finish EXIT

begin() { stage=$1; printf '\n== %s\n' "$stage"; }
passed() { summary+=("$(printf 'ok  %-50s %s' "$stage" "$1")"); }

# Runs a cargo test and adds up its "test result:" lines.
run_tests() {
  begin "$*"
  "$@" 2>&1 | tee "$log"
  local sums
  sums=$(awk '/^test result:/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^ignored/) n += $(i-1) } }
    END { printf "%d passed, %d ignored", p, n }' "$log")
  # A run that found no test at all is a broken run, not a good one.
  case $sums in 0\ passed*) echo "no test ran" >&2; return 1 ;; esac
  passed "$sums"
}

scripts/setup.sh build test vm
# shellcheck source=scripts/env.sh
. scripts/env.sh

# The same cases every time: what fails here fails for what was changed. Others come with another seed.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-20}

# Where tshark was just installed, a test that cannot find it is a failure.
export ROCE_SNIFF_REQUIRE_TSHARK=1
# The same for the virtual machine in which the real driver runs; where there can be none, boot.sh says why.
if tests/vm/boot.sh --check; then export ROCE_SNIFF_REQUIRE_VM=1; fi
run_tests cargo test --locked --workspace

begin 'cargo build --locked --no-default-features'
cargo build --locked --no-default-features
passed 'built'
# Taken now: later builds put another roce-sniff at the same path.
needed=$(LC_ALL=C readelf -d "${CARGO_TARGET_DIR:-target}/debug/roce-sniff" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')

run_tests cargo test --locked --no-default-features

begin 'no C library in the offline build'
# What glibc and the compiler's runtime consist of; older glibc keeps threads and dl apart.
extra=$(grep -vE '^(libc|libm|libgcc_s|libdl|libpthread|librt|ld-linux[-a-z0-9_]*)\.so' <<<"$needed" || true)
if [ -n "$extra" ]; then echo "links: $extra" >&2; exit 1; fi
# C that is compiled in shows in no dynamic section: nothing may build or look for any.
tools=$(cargo tree --locked --no-default-features -e normal,build --prefix none --format '{p}' |
  grep -E '^(cc|cmake|bindgen|pkg-config|vcpkg) v' | sort -u || true)
if [ -n "$tools" ]; then echo "compiles or looks for C through: $tools" >&2; exit 1; fi
passed "needs only ${needed//$'\n'/ }"
