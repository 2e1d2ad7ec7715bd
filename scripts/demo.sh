#!/usr/bin/env bash
# Runs Debian's own RDMA programs, unmodified, as two processes on adverb's NIC at 127.0.0.1, and shows what they
# print and what the NIC counted. `make demo` builds first.
set -euo pipefail
cd "$(dirname "$0")/.."

adverb=${CARGO_TARGET_DIR:-target}/release/adverb
work=$(mktemp -d)
pids=()
# Ends what is still running, by process id.
finish() {
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap finish EXIT

# A listener on the TCP port, in the kernel's own table: connecting would use up the server's one accept.
listening() {
    grep -qsiE "^ *[0-9]+: [0-9A-F]+:$(printf '%04X' "$1") [0-9A-F:]+ 0A " /proc/net/tcp /proc/net/tcp6
}

# A free port below the ephemeral range.
port=$((20000 + $$ % 4000))
next_port() {
    port=$((port + 1))
    while listening "$port"; do port=$((port + 1)); done
}

# pair PROGRAM ARGUMENTS..: a server and a client of the program; shows the client's output and both NICs' counters.
pair() {
    next_port
    echo
    echo "\$ adverb run --address 127.0.0.1 -- $* &"
    echo "\$ adverb run --address 127.0.0.1 -- $* 127.0.0.1"
    "$adverb" run --address 127.0.0.1 --counters "$work/server" -- "$@" -p "$port" >"$work/server.log" 2>&1 &
    local server=$!
    pids=("$server")
    until listening "$port"; do
        if ! kill -0 "$server" 2>/dev/null; then
            cat "$work/server.log" >&2
            echo "demo: the server of $1 ended before it listened (above)" >&2
            exit 1
        fi
    done
    timeout 60 "$adverb" run --address 127.0.0.1 --counters "$work/client" -- "$@" -p "$port" 127.0.0.1
    wait "$server"
    pids=()
    for side in server client; do
        echo "  NIC counters, $side:" "$(awk '$NF + 0 > 0 { printf "%s%s", sep, $0; sep = ", " }' "$work/$side")"
    done
}

echo "\$ adverb devices"
"$adverb" devices --address 127.0.0.1
pair ibv_rc_pingpong -g 0 -c
pair ib_write_bw -F -n 2000
pair ib_read_lat -F -n 2000
