# shellcheck shell=bash
# Sourced by the other scripts (or by hand: `. scripts/env.sh`); prints nothing.
# No `set -euo pipefail` here: it would change the shell of whoever sources it. The callers set it,
# so everything below is written to hold under it.

_rs_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Python tools live under the target dir: nothing is put into the user's own Python.
_rs_target=${CARGO_TARGET_DIR:-$_rs_root/target}
case $_rs_target in /*) ;; *) _rs_target=$_rs_root/$_rs_target ;; esac
export ROCE_SNIFF_TOOLS=$_rs_target/tools

if ! command -v cargo >/dev/null 2>&1 && [ -x "${HOME:-/root}/.cargo/bin/cargo" ]; then
  export PATH="${HOME:-/root}/.cargo/bin:$PATH"
fi
# Appended, so that the private venv's python3 does not hide the system's.
case ":$PATH:" in
  *":$ROCE_SNIFF_TOOLS/bin:"*) ;;
  *) if [ -d "$ROCE_SNIFF_TOOLS/bin" ]; then export PATH="$PATH:$ROCE_SNIFF_TOOLS/bin"; fi ;;
esac

# True where DIR (or the file DIR) is a libclang that can be loaded: dangling links do not count.
_rs_has_libclang() {
  local f
  for f in "$1" "$1"/libclang.so* "$1"/libclang-[0-9]*.so*; do
    if [ -f "$f" ]; then return 0; fi
  done
  return 1
}

# rdma-sys generates its bindings with bindgen 0.59, which panics with libclang 16 and newer
# and would take the newest one it finds. A working LIBCLANG_PATH of the caller's wins.
if [ -z "${LIBCLANG_PATH:-}" ] || ! _rs_has_libclang "$LIBCLANG_PATH"; then
  unset LIBCLANG_PATH
  for _rs_dir in /usr/lib/llvm-{15,14,13}/lib /usr/lib64/llvm{15,14,13}/lib \
    "$ROCE_SNIFF_TOOLS"/lib*/python3*/site-packages/clang/native; do
    if _rs_has_libclang "$_rs_dir"; then
      export LIBCLANG_PATH=$_rs_dir
      break
    fi
  done
fi

# libclang needs stddef.h and stdarg.h of a compiler. A bare libclang brings none, and bindgen finds
# them by itself only where a clang command is installed: lend it gcc's.
if [ -n "${LIBCLANG_PATH:-}" ] && [ -z "${BINDGEN_EXTRA_CLANG_ARGS:-}" ] &&
  ! compgen -G "$LIBCLANG_PATH/clang/*/include/stddef.h" >/dev/null &&
  command -v gcc >/dev/null 2>&1; then
  BINDGEN_EXTRA_CLANG_ARGS="-I$(gcc -print-file-name=include)"
  export BINDGEN_EXTRA_CLANG_ARGS
fi

unset _rs_root _rs_target _rs_dir
unset -f _rs_has_libclang
