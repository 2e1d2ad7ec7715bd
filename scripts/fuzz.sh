#!/usr/bin/env bash
# Fuzzes each target for some seconds, and shows that a planted bug is found. The last line is `N passed, N failed,
# N skipped`. Needs cargo-fuzz; says so, and skips, where it is not. The compiler is nightly where there is one; otherwise
# the stable one is told to take the sanitizer's options.
#
#   scripts/fuzz.sh                60 seconds a target
#   scripts/fuzz.sh 600 wire nicd  these, for ten minutes each
#
# What it learns stays in target/fuzz-corpus; findings are in fuzz/artifacts. `cargo fuzz run TARGET FILE` repeats one.
set -uo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cd fuzz/fuzz_targets && ls | sed 's/\.rs$//' | grep -v '^planted$')

if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "SKIPPED: fuzzing: \`cargo fuzz --version\` fails here (\`cargo install cargo-fuzz --locked\` brings it)"
    echo "0 passed, 0 failed, ${#targets[@]} skipped"
    exit 0
fi
if cargo +nightly --version >/dev/null 2>&1; then
    cargo=(cargo +nightly)
else
    cargo=(cargo)
    export RUSTC_BOOTSTRAP=1
fi

learned=${CARGO_TARGET_DIR:-target}/fuzz-corpus
mkdir -p "$learned"
learned=$(cd "$learned" && pwd)
# The crypto library's C code is not what is looked for, and takes a quarter of an hour to build with a sanitizer.
export CFLAGS="${CFLAGS:-} -fno-sanitize=address"
passed=0 failed=0

# fuzz TARGET CORPUS: runs it for its time; what it learns goes to a folder of its own.
fuzz() {
    mkdir -p "$learned/$1"
    "${cargo[@]}" fuzz run "$1" "$learned/$1" "fuzz/corpus/$2" -- \
        -max_total_time="$seconds" -print_final_stats=1 -rss_limit_mb=4096 -timeout=20
}

for target in "${targets[@]}"; do
    if fuzz "$target" "$target" >"$learned/$target.log" 2>&1; then
        echo "ok   $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$learned/$target.log") inputs"
        passed=$((passed + 1))
    else
        echo "FAIL $target: see $learned/$target.log"
        grep -E 'panicked|ERROR|error' "$learned/$target.log" | head -n 5
        failed=$((failed + 1))
    fi
done

if fuzz planted wire >"$learned/planted.log" 2>&1; then
    echo "FAIL planted: a bug put there on purpose was not found"
    failed=$((failed + 1))
elif grep -q 'index out of bounds' "$learned/planted.log"; then
    echo "ok   planted: the bug was found"
    passed=$((passed + 1))
else
    echo "FAIL planted: it ended otherwise; see $learned/planted.log"
    failed=$((failed + 1))
fi
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
