#!/usr/bin/env bash
# The first of the two commands: installs what is missing, builds, and shows roce-sniff at work.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step() { printf '\n$ %s\n' "$*"; "$@"; }

step scripts/setup.sh build
# shellcheck source=scripts/env.sh
. scripts/env.sh
step cargo build --release --locked

bin=${CARGO_TARGET_DIR:-target}/release/roce-sniff
step "$bin" --limit 12 fixtures/write_1k.pcap
step "$bin" -v --limit 1 fixtures/cm_rping.pcap
