#!/usr/bin/env bash
# The lab's gates, and the mutations that must make them fail. `short` is for every run of the tests: two minutes of two
# processors; `long` is every experiment with all its mutations; `seeds` is IRN's and 1RMA's with three sets of seeds, and with
# twice the flows: all verdicts must be the same. Prints the verdicts; the last line counts experiments.
set -uo pipefail
cd "$(dirname "$0")/.."

adverb=${ADVERB:-${CARGO_TARGET_DIR:-target}/release/adverb}
case ${1:-} in
short)
    mutate=(irn/fig10 onerma/fig16a redn/fig8 redn/table3 redn/turing redn/table7 redn/scatter redn/doubled-latency star/scale
        swordbox/resources)
    run=(star/fig1 irn/fig1 onerma/fig9 onerma/fig11b onerma/fig12 onerma/fig15bc)
    ;;
long)
    mutate=(irn onerma kvs redn star swordbox)
    run=()
    ;;
seeds) ;;
*)
    echo "usage: scripts/lab-gates.sh short|long|seeds" >&2
    exit 2
    ;;
esac
if [ ! -x "$adverb" ]; then
    echo "lab-gates: there is no $adverb; make build first" >&2
    exit 2
fi

# Each set into a folder of its own; a run that was cut off goes on where it was.
if [ "$1" = seeds ]; then
    folder=${LAB_OUT:-$(mktemp -d)}
    for first in 1 1000 2000; do
        "$adverb" lab run irn onerma --first-seed $first --out "$folder/from-$first" --resume --quiet
    done
    "$adverb" lab run irn onerma --first-seed 3000 --longer 2 --out "$folder/longer" --resume --quiet
    echo "== compared"
    "$adverb" lab compare "$folder"/from-1 "$folder"/from-1000 "$folder"/from-2000 "$folder"/longer | tee "$folder/compared"
    status=${PIPESTATUS[0]}
    same=$(sed -nE 's/.* verdicts: ([0-9]+) the same.*/\1/p' "$folder/compared")
    changed=$(sed -nE 's/.* same, ([0-9]+) change.*/\1/p' "$folder/compared")
    failed=${changed:-1}
    [ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || failed=1
    [ -n "${LAB_OUT:-}" ] || rm -rf "$folder"
    echo "${same:-0} passed, $failed failed, 0 skipped"
    exit "$status"
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
