#!/bin/sh
# Links the verbs library: link.sh <libadverb_verbs.a> <outdir> makes <outdir>/libibverbs.so.1.
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
# Under a temporary name first, so that a running program never maps a half-written library.
"${CC:-cc}" -shared -o "$outdir/.libibverbs.so.1.$$" \
    -Wl,-soname,libibverbs.so.1 \
    -Wl,--version-script="$here/libibverbs.map" \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
    -Wl,--gc-sections -Wl,-z,relro -Wl,-z,now -Wl,-z,defs -Wl,--as-needed \
    -lgcc_s -lpthread -ldl -lm -lrt -lc
mv -f "$outdir/.libibverbs.so.1.$$" "$outdir/libibverbs.so.1"
