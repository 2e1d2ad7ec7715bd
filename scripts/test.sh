#!/usr/bin/env bash
# Runs the checks, step by step, and sums them up: a line of result for each step, with its time, and at the end
# `N passed, N failed, N skipped`. Exits 1 on any failure. What a step prints is in target/test-logs/STEP.log.
#
#   scripts/test.sh              the steps of `make test`
#   scripts/test.sh --long       those of `make test-long`: the same, wider and for longer
#   scripts/test.sh STEP..       these only (`make test STEP=clients`)
#   scripts/test.sh --list       the steps, and what each is for
set -uo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
adverb=$target/release/adverb
logs=$target/test-logs

steps=(
    "tidy     widths, lengths, links, words that say nothing"
    "format   rustfmt"
    "unit     cargo test of the workspace"
    "build    the command and the library, in release"
    "swarm    safety and liveness on random networks, thousands of seeds"
    "examples crates outside the workspace, as users have them"
    "clients  unmodified programs on the library, in real processes"
    "packages the wheel, its Python package and the Debian package, installed where nothing else is"
    "starved  the same beside ten tasks for each processor: a sample, or three times four suites"
    "interop  a Linux guest with rdma_rxe, both ways"
    "rebuild  an older revision of this repository, built"
    "lints    clippy, warnings denied"
    "memory   the tests that share memory under AddressSanitizer, ThreadSanitizer and Miri, where they can be had"
    "models   the lock and the rings under loom, in every order that the memory model allows"
    "programs native programs in the simulator, bugs planted in them"
    "lab      figures of the papers, and that their gates can fail"
    "older    today's library and command with that older revision's, both ways"
)
# These compile or simulate: nothing in them waits. In a run of all steps they go on behind `clients`, `starved` and `interop`,
# whose programs wait for one another and leave a third of two processors idle, and get only what those leave.
behind=(rebuild lints memory models programs lab)

# -- what each step runs; its counts are read from what it prints ------------------------------------------------

step_tidy() { check scripts/tidy.py; }
step_format() { check cargo fmt --all --check; }
step_lints() {
    check cargo clippy --workspace --all-targets --locked -- -D warnings
    # The policy and the protocol of grants stand without a NIC's driver and without TLS.
    check cargo clippy -p adverb-grants --no-default-features --locked -- -D warnings
}
step_unit() { scripts/unit.py; }

step_memory() {
    local status=0 tool
    for tool in address thread miri; do scripts/sanitize.sh "$tool" || status=1; done
    return "$status"
}

step_models() {
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$target/loom" cargo test --release --locked -p adverb-os loom
}

step_build() { check make --no-print-directory build; }

step_swarm() {
    local seeds=3000 seeds_1rma=500
    [ "$long" = no ] || seeds=100000 seeds_1rma=10000
    check "$adverb" swarm --seeds "$seeds"
    check "$adverb" swarm --1rma --seeds "$seeds_1rma"
}

# Programs under crashes, loss and reordering; and the bugs that are planted in them.
step_programs() {
    local seeds=1000
    [ "$long" = no ] || seeds=10000
    for app in lock locks queue catalog chain tree; do check "$adverb" swarm --app "$app" --seeds "$seeds"; done
    found "$adverb" swarm --app lock --bug early-release --seeds 10000 --failures 1
    for bug in early-release no-fence no-recovery; do
        found "$adverb" swarm --app locks --bug $bug --seeds 10000 --failures 1
    done
    for bug in early-release no-fence no-sibling torn-entry; do
        found "$adverb" swarm --app tree --bug $bug --seeds 10000 --failures 1
    done
    found "$adverb" swarm --app queue --bug torn-header --seeds 10000 --failures 1
    found "$adverb" swarm --app catalog --bug early-head --seeds 10000 --failures 1
    for bug in unlinked-ack torn-entry stale-tail steered-anew reads-to-pending links-to-pending; do
        found "$adverb" swarm --app chain --bug $bug --seeds 10000 --failures 1
    done
    check "$adverb" swarm --redn --seeds "$seeds"
    for bug in skip-wait prefetch-managed forget-restore forget-indices no-fence no-stage reply-twice wrong-ties; do
        found "$adverb" swarm --redn --bug "$bug" --seeds 100 --failures 1
    done
}

# A thousand seeds of a program, a program for the NIC, and one for the switch, whose own command `clients` runs on real
# ports. They take the workspace's versions and target folder, so that what is built already is not built again.
step_examples() {
    local folder own
    folder=$(realpath "$target")
    for own in own-program own-chain own-switch; do
        cp Cargo.lock examples/$own/Cargo.lock
        (cd examples/$own && CARGO_TARGET_DIR=$folder cargo test --offline -- --nocapture)
    done
}

step_lab() {
    local which=short
    [ "$long" = no ] || which=long
    scripts/lab-gates.sh "$which"
}

step_clients() {
    if [ "$long" = no ]; then tests/clients/run.py --without older/; else tests/clients/run.py --long --without older/; fi
}

step_packages() {
    check scripts/packages.py
    if [ "$long" = no ]; then
        tests/packages/run.py
    else
        tests/packages/run.py --long
        tests/packages/containers.py
    fi
}

# Of make test-long alone, before `clients`, whose oldest releases of Debian run it: the command and the libraries for older
# systems, for aarch64 and for musl, in packages.
step_portable() {
    local arch status
    for arch in x86_64 aarch64 "x86_64 musl"; do
        status=0
        # shellcheck disable=SC2086 # a machine, and a C library other than the usual
        scripts/portable.sh $arch 2>&1 || status=$?
        case $status in
            0) echo "1 passed, 0 failed, 0 skipped" ;;
            3) echo "skip portable/$arch: what builds it cannot be had" && echo "0 passed, 0 failed, 1 skipped" ;;
            *) echo "FAIL scripts/portable.sh $arch" && echo "0 passed, 1 failed, 0 skipped" ;;
        esac
    done
    tests/packages/portable.py
}

# Beside a load that leaves connections' processes without a processor for longer than their timeouts come to.
step_starved() {
    if [ "$long" = no ]; then
        tests/clients/run.py --starved -k utils/rc-validate -k perftest/loss-send-bw-rc-bidirectional \
            -k perftest/loss-send-lat-xrc-events -k perftest/udp-write-bw-rc -k irn/udp-send-lat-faulty \
            -k faults/killed-server -k faults/stopped-server
        return
    fi
    # Three times at once, each beside the two others and with a third of the load: 73 minutes on two processors.
    local status=0 number pid pids=()
    for number in 1 2 3; do
        apart "$number" tests/clients/run.py --starved --of 3 -k utils/ -k perftest/ -k faults/ -k irn/ \
            >"$logs/starved-$number.log" 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || status=1; done
    cat "$logs"/starved-[123].log
    return "$status"
}

# apart NUMBER COMMAND..: with a network, a /dev/shm and a folder for cases of its own.
apart() {
    local root=()
    [ "$(id -u)" -eq 0 ] || root=(--map-root-user)
    # shellcheck disable=SC2016 # expanded by the inner shell
    ADVERB_BIN=$(realpath "$adverb") ADVERB_LIB=$(realpath "$target/release/lib") \
        CARGO_TARGET_DIR=$(realpath "$target")/starved-$1 unshare "${root[@]}" --mount --net sh -c \
        'mount -t tmpfs -o size=64m tmpfs /dev/shm && ip link set lo up && exec "$@"' apart "${@:2}"
}

step_interop() {
    if [ "$long" = no ]; then tests/interop/run.py; else tests/interop/run.py --long; fi
}

step_rebuild() { scripts/older.sh || echo "the cases with an older adverb will be skipped"; }
step_older() { tests/clients/run.py -k older/; }

# Of make test-long alone: its bounded twin is part of `unit`.
step_fuzz() { scripts/fuzz.sh 300; }

# Of make test-long alone: queues of WQEs that go round until their indices wrap.
step_laps() { cargo test --release --locked -p adverb-nic --test engine -- --ignored; }

# Of make test-long alone: gets under loss, doubling and reordering, and until all that counts them has wrapped, in the
# simulator and between processes.
step_gets() {
    cargo test --release --locked -p adverb-redn --test gets -- --ignored
    cargo test --release --locked -p adverb-cli --test redn_figures -- --ignored
}

# Of make test-long alone: what attacks on programs in NICs leave others of their rate.
step_attacks() { ADVERB_RATES=1 cargo test --locked -p adverb-cli --test redn_serve attacks; }

# Of make test-long alone: each test of what the host's processes share, in an order and beside neighbours of its own, round
# after round, to find what fails once in a thousand times.
step_again() { scripts/again.py; }

# Of make test-long alone: what the number of clients costs a StaR server's NIC, in instructions and misses.
step_profile() { check bench/profile clients; }

# -- running and counting ------------------------------------------------------------------------------------------

# check COMMAND..: a command that passes or fails as a whole.
check() {
    if "$@"; then
        echo "1 passed, 0 failed, 0 skipped"
    else
        echo "FAIL $*"
        echo "0 passed, 1 failed, 0 skipped"
        return 1
    fi
}

# found COMMAND..: a command that must fail, since a bug was planted in what it tries.
found() {
    if "$@"; then
        echo "FAIL not found: $*"
        echo "0 passed, 1 failed, 0 skipped"
        return 1
    fi
    echo "1 passed, 0 failed, 0 skipped"
}

# counts LOG: what cargo's tests and the runners say in it, added up.
counts() {
    awk '
        # cargo: test result: ok. 12 passed; 0 failed; 1 ignored; ...
        /^test result: / { for (i = 2; i <= NF; i++) {
            if ($i == "passed;") p += $(i - 1); if ($i == "failed;") f += $(i - 1); if ($i == "ignored;") s += $(i - 1) } }
        /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $1; f += $3; s += $5 }
        END { print p + 0, f + 0, s + 0 }' "$1"
}

# failures LOG: the lines that name what failed.
failures() {
    grep -E '^(FAIL |test .* FAILED|failed: |seed .* failed|error(\[|:))' "$1" | head -n 40
}

# Seconds of processors that all steps have taken so far. On a machine with other work these say more than the clock.
processors() {
    awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); sum += 60 * t[1] + t[2] } print int(sum) }'
}

# run STEP: runs it and prints its line. A step that fails without counting a failure (it did not compile, it crashed)
# counts as one.
run() {
    local name=$1 log=$logs/$1.log status=0 begun=$SECONDS taken p f s word=ok
    times >"$logs/$name.times"
    taken=$(processors <"$logs/$name.times")
    case $name in swarm | programs | lab | clients | packages | portable | starved | interop | older)
        if [ ! -x "$adverb" ]; then
            echo "FAIL $name: $adverb is not there: scripts/test.sh build makes it"
            echo "0 1 0" >"$logs/$name.counts"
            return
        fi ;;
    esac
    "step_$name" >"$log" 2>&1 || status=1
    read -r p f s < <(counts "$log")
    if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then
        echo "FAIL $name ended with an error" >>"$log"
        f=1
    fi
    echo "$p $f $s" >"$logs/$name.counts"
    if [ "$f" -ne 0 ]; then
        word=FAIL
        # What failed, and the end of what was printed; the whole is in the log.
        failures "$log" | sed "s/^/  $name: /"
        tail -n 60 "$log" | sed 's/^/  | /'
    fi
    times >"$logs/$name.times"
    printf '%-4s %-8s %5d passed %4d failed %4d skipped %6d s, %d s of processors\n' "$word" "$name" "$p" "$f" "$s" \
        $((SECONDS - begun)) $(($(processors <"$logs/$name.times") - taken))
}

# among NAME LIST..: whether the name is in the list.
among() {
    local name=$1
    shift
    [[ " $* " == *" $name "* ]]
}

# go_behind: begins this script anew for the steps of `behind`, in a session of its own with the least share of the
# processors. Its lines are shown when it has ended.
go_behind() {
    local words=(--is-behind)
    [ "$long" = no ] || words+=(--long)
    setsid "$0" "${words[@]}" "${behind[@]}" >"$logs/behind" 2>&1 &
    behind_pid=$!
    trap 'kill -- "-$behind_pid" 2>/dev/null' EXIT
    trap 'exit 130' INT TERM
}

# come_forward: waits for the steps behind, which have the processors now, and shows what they said.
come_forward() {
    [ -n "$behind_pid" ] || return 0
    { echo 0 >"/proc/$behind_pid/autogroup"; } 2>/dev/null
    wait "$behind_pid"
    trap - EXIT
    behind_pid=
    cat "$logs/behind"
}

long=no is_behind=no
chosen=()
for word in "$@"; do
    case $word in
        --long) long=yes ;;
        --list) printf '%s\n' "${steps[@]}"; exit 0 ;;
        --is-behind) is_behind=yes ;;
        *)
            if ! declare -F "step_$word" >/dev/null; then
                echo "test: no step is called $word; scripts/test.sh --list names them" >&2
                exit 2
            fi
            chosen+=("$word") ;;
    esac
done

mkdir -p "$logs"
if [ "$is_behind" = yes ]; then
    # Where the scheduler groups tasks by session the group's share counts, elsewhere each task's.
    { echo 19 >/proc/self/autogroup; } 2>/dev/null
    renice -n 19 $$ >/dev/null
    for name in "${chosen[@]}"; do run "$name"; done
    exit 0
fi

together=()
if [ ${#chosen[@]} -eq 0 ]; then
    for row in "${steps[@]}"; do
        chosen+=("${row%% *}")
        [ "$long" = no ] || [ "${row%% *}" != build ] || chosen+=(portable)
    done
    [ "$long" = no ] || chosen+=(fuzz laps gets attacks again profile)
    # At length `programs` and `lab` take hours, and `starved` is to have no load but its own.
    [ "$long" = no ] || behind=(rebuild lints memory models)
    together=("${behind[@]}")
fi
rm -f "$logs"/*.counts

# A run of all steps writes 4 GB in CI, whose tests' programs have no lines for backtraces, and 8 elsewhere. On a full disk
# everything fails, in words of its own.
room() {
    local left
    left=$(df -Pm "$target" | awk 'NR == 2 { print $4 }')
    [ "${left:-0}" -ge "$1" ] || echo "test: $left MB of disk are left for $target, which may be too little"
}
[ ${#together[@]} -eq 0 ] || room 8000
if ! scripts/setup.sh test; then
    echo "test: something is missing (above); the cases that need it are skipped"
fi
behind_pid=
for name in "${chosen[@]}"; do
    if among "$name" "${together[@]}"; then continue; fi
    case $name in
        clients) [ ${#together[@]} -eq 0 ] || go_behind ;;
        older) come_forward ;;
    esac
    run "$name"
done

# Every skip once more, together, with its reason.
for name in "${chosen[@]}"; do cat "$logs/$name.log" 2>/dev/null; done |
    sed -nE 's/^(skip |SKIPPED: )/skipped: /p' | sort | uniq | head -n 200
# Every failure once more, where whoever sees only the end of the output finds it: its name, and what was printed with it.
for name in "${chosen[@]}"; do
    [ -f "$logs/$name.counts" ] && [ "$(cut -d ' ' -f 2 "$logs/$name.counts")" != 0 ] || continue
    failures "$logs/$name.log" | sed "s/^/failed: $name: /"
    # What a runner of cases says below the name of one that failed.
    awk '/^  \| / { if (left-- > 0) print; next } { left = /^FAIL / ? 24 : 0 }' "$logs/$name.log" | head -n 120 | cut -c -300
    awk '/^thread .* panicked at / { left = 5 } left-- > 0' "$logs/$name.log" | head -n 60 | cut -c -300 | sed 's/^/  | /'
done
room 200
passed=0 failed=0 skipped=0
for name in "${chosen[@]}"; do
    # A step that left no counts did not come to its end.
    read -r p f s < <(cat "$logs/$name.counts" 2>/dev/null || echo 0 1 0)
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
