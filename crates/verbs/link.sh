#!/bin/sh
# Links the verbs library: link.sh <libadverb_verbs.a> <outdir> makes <outdir>/libibverbs.so.1, and its second
# name, <outdir>/librdmacm.so.1: one library, because a process has one NIC. The loader knows by the file that
# both names are the same.
#
# Not a `cdylib`, because rustc passes a version script of its own, and with a second one the linker
# either refuses both or drops the versions; and Debian's binaries ask for versioned names.
set -eu

if [ $# -ne 2 ]; then
    echo "usage: $0 <libadverb_verbs.a> <outdir>" >&2
    exit 2
fi
archive=$1
outdir=$2
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

mkdir -p "$outdir"
# One script of both, because not every linker takes a second one (zig's keeps the last).
map=$outdir/.map.$$
trap 'rm -f "$map"' EXIT
cat "$here/libibverbs.map" "$here/librdmacm.map" > "$map"
# Under a temporary name first, so that a running program never maps a half-written library.
"${CC:-cc}" -shared -o "$outdir/.libibverbs.so.1.$$" \
    -Wl,-soname,libibverbs.so.1 \
    -Wl,--version-script="$map" \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
    -Wl,--gc-sections -Wl,-z,relro -Wl,-z,now -Wl,-z,defs -Wl,--as-needed \
    -lgcc_s -lpthread -ldl -lm -lrt -lc
mv -f "$outdir/.libibverbs.so.1.$$" "$outdir/libibverbs.so.1"
ln -sf libibverbs.so.1 "$outdir/.librdmacm.so.1.$$"
# For archives without links, such as wheels: a library of that name which has the versions, for the loader to
# check, and no code. What it needs has the calls: two copies would be two NICs.
nolinks=$outdir/nolinks
mkdir -p "$nolinks"
sed -n '/^RDMACM/p;/^}/p' "$here/librdmacm.map" > "$nolinks/.map.$$"
"${CC:-cc}" -shared -nostdlib -o "$nolinks/.librdmacm.so.1.$$" \
    -Wl,-soname,librdmacm.so.1 -Wl,--version-script="$nolinks/.map.$$" -Wl,-rpath,'$ORIGIN' \
    -Wl,--no-as-needed "$outdir/libibverbs.so.1" -x c /dev/null
rm "$nolinks/.map.$$"
mv -f "$nolinks/.librdmacm.so.1.$$" "$nolinks/librdmacm.so.1"
mv -f "$outdir/.librdmacm.so.1.$$" "$outdir/librdmacm.so.1"
