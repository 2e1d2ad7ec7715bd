#!/usr/bin/env bash
# Runs the tests of what shares memory under a tool that sees wrong accesses, and shows first that it finds a planted
# one. A tool that cannot be had here is skipped, and it says why. The last line is `N passed, N failed, N skipped`.
#
#   scripts/sanitize.sh address   AddressSanitizer; with the stable compiler, whose flag for it RUSTC_BOOTSTRAP allows
#   scripts/sanitize.sh thread    ThreadSanitizer; needs a nightly compiler with the sources of std (rust-src)
#   scripts/sanitize.sh miri      Miri over nic's memory; needs the component miri of a nightly compiler
#
# Compiler tools do not see assembly: the copies are the portable ones here. memcheck (tests/clients/suite_memcheck.py)
# sees those that ship.
set -uo pipefail
cd "$(dirname "$0")/.."

tool=${1:-}
target=${CARGO_TARGET_DIR:-target}
host=$(rustc -vV | sed -n 's/^host: //p')
log=$target/test-logs/sanitize-$tool.log
mkdir -p "$target/test-logs"

skip() {
    echo "SKIPPED: $tool: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

# planted NAME WORDS COMMAND..: the planted bug of that name must end the run with the tool's words.
planted() {
    local name=$1 words=$2
    shift 2
    if "$@" --ignored --exact "memory::tests::planted::$name" >"$log" 2>&1 || ! grep -q "$words" "$log"; then
        tail -n 20 "$log"
        echo "FAIL $tool: the planted $name was not found"
        echo "0 passed, 1 failed, 0 skipped"
        exit 1
    fi
    echo "$tool finds the planted $name: $(grep -m 1 "$words" "$log")"
    echo "1 passed, 0 failed, 0 skipped"
}

case $tool in
    address)
        export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$target/address ASAN_OPTIONS=detect_leaks=0
        export RUSTFLAGS="-Zsanitizer=address --cfg adverb_portable_copy"
        echo 'fn main() {}' | rustc -Zsanitizer=address --target "$host" -o "$target/test-logs/probe" - 2>"$log" ||
            skip "this compiler cannot: $(grep -m 1 error "$log")"
        planted overflow "AddressSanitizer: heap-buffer-overflow" \
            cargo test --locked --target "$host" -p adverb-nic --lib --
        cargo test --locked --no-fail-fast --target "$host" -p adverb-nic --lib --test verbs --test hostile
        nic=$?
        # The rings, doors and locks between processes, over memory that several map.
        cargo test --locked --no-fail-fast --target "$host" -p adverb-os -p adverb-io -p adverb-rma --lib
        exit $((nic + $?))
        ;;
    thread)
        [ -d "$(rustc +nightly --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library" ] ||
            skip "no nightly compiler with the sources of std, which must be built with it"
        export CARGO_TARGET_DIR=$target/thread RUSTFLAGS="-Zsanitizer=thread --cfg adverb_portable_copy"
        planted race "ThreadSanitizer: data race" \
            cargo +nightly test -Zbuild-std --locked --target "$host" -p adverb-nic --lib --
        exec cargo +nightly test -Zbuild-std --locked --target "$host" -p adverb-nic -p adverb-os --lib
        ;;
    miri)
        cargo +nightly miri --version >/dev/null 2>&1 || skip "no nightly compiler with the component miri"
        export CARGO_TARGET_DIR=$target/miri MIRIFLAGS="-Zmiri-permissive-provenance"
        planted overflow "Undefined Behavior" cargo +nightly miri test --locked -p adverb-nic --lib --
        planted race "Data race detected" cargo +nightly miri test --locked -p adverb-nic --lib --
        exec cargo +nightly miri test --locked -p adverb-nic --lib -- memory::
        ;;
    *)
        sed -n '2,12p' "$0" >&2
        exit 2
        ;;
esac
