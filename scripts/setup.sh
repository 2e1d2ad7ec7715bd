#!/usr/bin/env bash
# Installs what adverb's demo and tests run and build with, where it is missing. Asks no questions: as root, or with
# a sudo that needs no password, it calls apt-get; otherwise it says in one line what is missing and how to get it.
#
#   scripts/setup.sh         what `make demo` needs
#   scripts/setup.sh test    what `make test` needs besides
#   scripts/setup.sh bench   what `make bench` compares with
set -euo pipefail

# A program, header or directory that shows the package is there -> its Debian package.
demo=(
    cc=gcc
    /usr/include/stdio.h=libc6-dev
    ibv_rc_pingpong=ibverbs-utils
    ib_write_bw=perftest
)
test=(
    /usr/bin/python3=python3
    /usr/include/infiniband/verbs.h=libibverbs-dev
    /usr/include/rdma/rdma_cma.h=librdmacm-dev
    rping=rdmacm-utils
    /usr/share/doc/rdma-core/tests=python3-pyverbs
    ip=iproute2
    nft=nftables
    tshark=tshark
    valgrind=valgrind
    patchelf=patchelf
    memccat=libmemcached-tools
    ucx_perftest=ucx-utils
    /usr/share/doc/libucx-dev/examples/ucp_client_server.c=libucx-dev
    fi_pingpong=libfabric-bin
    fio=fio
    qperf=qperf
    curl=curl
    mpirun.openmpi=openmpi-bin
    mpicc.openmpi=libopenmpi-dev
    mpirun.mpich=mpich
    mpicc.mpich=libmpich-dev
    ibstat=infiniband-diags
    chromium=chromium
    /usr/lib/python3/dist-packages/pymemcache=python3-pymemcache
    /usr/lib/python3/dist-packages/prometheus_client=python3-prometheus-client
    iperf3=iperf3
    # The guest with Linux's rdma_rxe (tests/interop/guest_image.py).
    qemu-system-x86_64=qemu-system-x86
    /bin/busybox=busybox-static
    # A disk by iSER.
    tgtd=tgt
    iscsi-inq=libiscsi-bin
    qemu-io=qemu-utils
    /usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so=qemu-block-extra
    /etc/libibverbs.d/rxe.driver=ibverbs-providers
    rdma=iproute2
    ethtool=ethtool
)

bench=(
    /usr/bin/python3=python3
    /usr/include/infiniband/verbs.h=libibverbs-dev
    /usr/include/rdma/rdma_cma.h=librdmacm-dev
    /usr/include/rdma/fabric.h=libfabric-dev
    ucx_perftest=ucx-utils
    iperf3=iperf3
    fi_pingpong=libfabric-bin
    valgrind=valgrind
)

wanted=("${demo[@]}")
case ${1:-demo} in
    test) wanted+=("${test[@]}") ;;
    bench) wanted+=("${bench[@]}") ;;
esac

is_there() {
    case $1 in
        /*) [ -e "$1" ] ;;
        *) PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null ;;
    esac
}

# find_missing: puts into `missing` the packages of what is not there.
find_missing() {
    local pair
    missing=()
    for pair in "${wanted[@]}"; do
        is_there "${pair%%=*}" || missing+=("${pair#*=}")
    done
}
find_missing

if ! command -v cargo >/dev/null; then
    echo "setup: cargo is not in PATH: install Rust, then run this again" >&2
    exit 1
fi
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "setup: missing ${missing[*]} (Debian's names): install them with this system's package tool" >&2
    exit 1
fi
if [ "$(id -u)" -eq 0 ]; then
    run=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    run=(sudo -n)
else
    echo "setup: missing ${missing[*]}: run 'sudo apt-get install ${missing[*]}', then run this again" >&2
    exit 1
fi

export DEBIAN_FRONTEND=noninteractive
"${run[@]}" apt-get update -qq
# Twice where it must be: a package that is there in a newer version than the archive's goes where another wants the
# archive's (qemu-utils, from backports, for qemu-block-extra).
for _ in 1 2; do
    [ ${#missing[@]} -gt 0 ] || break
    echo "setup: installing ${missing[*]}"
    "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    find_missing
done
