#!/usr/bin/env bash
# Runs every check and sums them up. The last line is `N passed, N failed, N skipped`; exits 1 on any failure.
# Format and lints count as one check each; cargo's tests and the clients as what they report.
set -uo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
logs=$target/test-logs
mkdir -p "$logs"
passed=0 failed=0 skipped=0

add() {
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

# check NAME COMMAND..: one check.
check() {
    local name=$1
    shift
    echo "== $name"
    if "$@" 2>&1 | tee "$logs/$name.log"; then
        add 1 0 0
    else
        echo "FAIL $name: $*"
        add 0 1 0
    fi
}

# runner NAME COMMAND..: a command that prints how many passed, failed and were skipped. A runner that fails without
# counting a failure (it did not compile, it crashed) counts as one.
runner() {
    local name=$1 status=0 counts
    shift
    echo "== $name"
    "$@" 2>&1 | tee "$logs/$name.log" || status=1
    counts=$(awk '
        # cargo: test result: ok. 12 passed; 0 failed; 1 ignored; ...
        /^test result: / { for (i = 2; i <= NF; i++) {
            if ($i == "passed;") p += $(i - 1); if ($i == "failed;") f += $(i - 1); if ($i == "ignored;") s += $(i - 1) } }
        # the clients: 12 passed, 0 failed, 1 skipped
        /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $1; f += $3; s += $5 }
        END { print p + 0, f + 0, s + 0 }' "$logs/$name.log")
    # shellcheck disable=SC2086  # three numbers
    set -- $counts
    if [ "$status" -ne 0 ] && [ "$2" -eq 0 ]; then
        echo "FAIL $name: ended with an error; see $logs/$name.log"
        set -- "$1" 1 "$3"
    fi
    add "$1" "$2" "$3"
}

if ! scripts/setup.sh test; then
    echo "test: something is missing (above); the cases that need it are skipped"
fi
check format cargo fmt --all --check
check lints cargo clippy --workspace --all-targets --locked -- -D warnings
runner cargo cargo test --workspace --locked --no-fail-fast
echo "== build"
if make --no-print-directory build >"$logs/build.log" 2>&1; then
    # Safety and liveness on random networks; 100,000 seeds are an evening's work: adverb swarm --seeds 100000.
    check swarm "$target/release/adverb" swarm --seeds 3000
    check swarm-1rma "$target/release/adverb" swarm --1rma --seeds 500
    # Figures with numbers that stand in the papers' texts; the others: adverb lab run irn, adverb lab run onerma.
    check lab "$target/release/adverb" lab run irn/fig1 irn/fig12 onerma/fig12 onerma/fig15bc onerma/fig16a --out "$logs/lab"
    runner clients tests/clients/run.py
    runner interop tests/interop/run.py
else
    tail -n 30 "$logs/build.log"
    echo "FAIL build: make build failed, so no client ran"
    add 0 1 0
fi

# Every skip once more, together, with its reason.
grep -hE '^(skip |SKIPPED: )' "$logs"/{cargo,clients,interop}.log 2>/dev/null | sort | uniq -c | sort -rn | head -n 200 >"$logs/skips.log" || true
if [ -s "$logs/skips.log" ]; then
    echo "== skipped, and why"
    sed -E 's/^ *[0-9]+ (skip |SKIPPED: )//' "$logs/skips.log"
fi
grep -hE '^(FAIL |test .* FAILED|failed: |seed .* failed)' "$logs"/{cargo,swarm,swarm-1rma,clients,interop}.log 2>/dev/null | sed 's/^/failed above: /'
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
