#!/bin/sh
# Links the direct verbs: link.sh <libadverb_mlx5.a> <libibverbs.so.1> <outdir> makes <outdir>/libmlx5.so.1.
#
# By hand, as crates/verbs/link.sh does, because programs ask for versioned names.
set -eu

if [ $# -ne 3 ]; then
    echo "usage: $0 <libadverb_mlx5.a> <libibverbs.so.1> <outdir>" >&2
    exit 2
fi
archive=$1
verbs=$2
outdir=$3
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

mkdir -p "$outdir"
# What it calls is in the folder above: whoever looks into a package, as auditwheel does, finds it there too.
# Under a temporary name first, so that a running program never maps a half-written library.
"${CC:-cc}" -shared -o "$outdir/.libmlx5.so.1.$$" \
    -Wl,-soname,libmlx5.so.1 -Wl,-rpath,'$ORIGIN/..' \
    -Wl,--version-script="$here/libmlx5.map" \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive "$verbs" \
    -Wl,--gc-sections -Wl,-z,relro -Wl,-z,now -Wl,-z,defs -Wl,--as-needed \
    -lgcc_s -lpthread -ldl -lm -lc
mv -f "$outdir/.libmlx5.so.1.$$" "$outdir/libmlx5.so.1"
