#!/usr/bin/env bash
# The lab's gates, and the mutations that must make them fail. `short` is for every run of the tests: two minutes of two
# processors; `long` is every experiment with all its mutations. Prints the verdicts; the last line counts experiments.
set -uo pipefail
cd "$(dirname "$0")/.."

adverb=${ADVERB:-${CARGO_TARGET_DIR:-target}/release/adverb}
case ${1:-} in
short)
    mutate=(irn/fig10 onerma/fig16a redn/fig8 redn/table3 redn/turing redn/table7 redn/scatter redn/doubled-latency star/scale)
    run=(star/fig1 irn/fig1 onerma/fig9 onerma/fig11b onerma/fig12 onerma/fig15bc)
    ;;
long)
    mutate=(irn onerma kvs redn star)
    run=()
    ;;
*)
    echo "usage: scripts/lab-gates.sh short|long" >&2
    exit 2
    ;;
esac
if [ ! -x "$adverb" ]; then
    echo "lab-gates: there is no $adverb; make build first" >&2
    exit 2
fi

out=$(mktemp)
trap 'rm -f "$out"' EXIT
status=0
"$adverb" lab mutate "${mutate[@]}" --quiet | tee -a "$out" || status=1
if [ "$1" = long ]; then
    # A million steps, where quick scale takes a tenth.
    "$adverb" lab run redn/turing-endless --scale paper --quiet | tee -a "$out" || status=1
fi
if [ "${#run[@]}" -gt 0 ]; then
    "$adverb" lab run "${run[@]}" --quiet | tee -a "$out" || status=1
fi

echo "== verdicts"
grep -E '^[a-z0-9]+/[^ ]+: [0-9]+ hold' "$out"
echo "== mutations"
grep -E ' (caught by|SURVIVED|not tried)' "$out" | sed -E 's/.*(caught|SURVIVED|not tried).*/\1/' | sort | uniq -c
failed=$(grep -cE '^[a-z0-9]+/[^ ]+: .* ([1-9][0-9]* fail|did not end)|SURVIVED' "$out")
passed=$(grep -cE '^[a-z0-9]+/[^ ]+: [0-9]+ hold.* 0 fail$' "$out")
if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
    failed=1
fi
echo "$passed passed, $failed failed, 0 skipped"
exit "$status"
