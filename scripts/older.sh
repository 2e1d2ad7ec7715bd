#!/usr/bin/env bash
# Builds an older adverb, with which today's must interoperate (tests/clients/suite_older.py), from this repository's
# history: target/older/COMMIT/adverb, and its library beside it. Once; what is there already is left as it is.
#
#   scripts/older.sh             the one that the tests ask for
#   scripts/older.sh COMMIT
#   scripts/older.sh --optimized COMMIT    as `make build` has it, in target/older/COMMIT-optimized: to be measured
set -euo pipefail
cd "$(dirname "$0")/.."

optimized=
[ "${1:-}" != --optimized ] || { optimized=-optimized && shift; }
commit=${1:-86e1a6e}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
place=$target/older/$commit$optimized
[ ! -x "$place/adverb" ] || exit 0
if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
    echo "older: $commit is not in this repository's history (a shallow clone?)" >&2
    exit 1
fi
work=$place.new
rm -rf "$work"
mkdir -p "$work/source"
trap 'rm -rf "$work"' EXIT
git archive "$commit" | tar -x -C "$work/source"
# Tests measure nothing: there optimization would take most of the time, and only the NIC itself gets a little.
plain=()
if [ -z "$optimized" ]; then
    export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_PROFILE_RELEASE_DEBUG=0
    for package in '"*"' adverb-sim adverb-cli adverb-lab; do
        plain+=(--config "profile.release.package.$package.opt-level=0")
    done
fi
(cd "$work/source" && CARGO_TARGET_DIR="$work/target" \
    cargo build --quiet --release --locked -p adverb-cli -p adverb-verbs "${plain[@]}")
"$work/source/crates/verbs/link.sh" "$work/target/release/libadverb_verbs.a" "$work/lib"
mv "$work/target/release/adverb" "$work/adverb"
rm -rf "$work/source" "$work/target"
mv "$work" "$place"
trap - EXIT
