#!/usr/bin/env bash
# Makes the captures of faulty traffic in fixtures/ anew, with truth-faults.json, on the real driver in the virtual
# machine. Chance has a part in them: no two runs give the same.      usage: scripts/make-fixtures.sh [SCENARIO...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh test vm
# shellcheck source=scripts/env.sh
. scripts/env.sh
out=$(mktemp -d "${TMPDIR:-/tmp}/roce-sniff-fixtures.XXXXXX")
trap 'rm -rf "$out"' EXIT
cc -std=gnu11 -Wall -Wextra -O2 -o "$out/traffic" tests/vm/traffic.c -libverbs
cc -std=gnu11 -Wall -Wextra -O2 -o "$out/reject" tests/vm/reject.c -lrdmacm
# Through a pipe: the machine opens what it prints to anew, and would write over a file from its start.
timeout 1800 tests/vm/boot.sh "$out" /bin/bash "$PWD/tests/vm/fixtures.sh" "$out/traffic" "$out" "$@" </dev/null | cat
python3 scripts/fixture-truth.py "$out" fixtures
