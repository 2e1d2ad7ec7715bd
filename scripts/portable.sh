#!/usr/bin/env bash
# Builds the command and the libraries for older systems, for aarch64 or for musl, into target/portable/ARCH or, for musl,
# target/portable/ARCH-musl: what `make build` leaves in target/release, for the packages (docs/packages.md).
#
#   scripts/portable.sh [x86_64|aarch64] [GLIBC]     2.28 unless told
#   scripts/portable.sh x86_64 musl
#
# zig, from PyPI, compiles C and links: it has musl and every glibc's names and versions, for both machines, and no root of
# another system is needed. For aarch64 the standard library comes with a compiler of its own, from Debian's archive, and for
# musl the library's source with it. What cannot be had ends this with status 3.
set -euo pipefail
cd "$(dirname "$0")/.."

ZIGLANG=0.17.1
arch=${1:-x86_64} libc=${2:-2.28}
case $arch in x86_64 | aarch64) ;; *)
    echo "portable: no machine is called $arch: x86_64 or aarch64" >&2
    exit 2 ;;
esac
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
if [ "$libc" != musl ]; then
    name=$arch triple=$arch-unknown-linux-gnu zig_triple=$arch-linux-gnu.$libc
elif [ "$arch" = x86_64 ]; then
    name=$arch-musl triple=$arch-unknown-linux-musl zig_triple=$arch-linux-musl
else
    echo "portable: for musl there is x86_64 only" >&2
    exit 2
fi
out=$target/portable/$name
tools=$out/tools
if [ "$(uname -m)" != x86_64 ]; then
    echo "portable: builds on x86-64 only" >&2
    exit 3
fi
mkdir -p "$tools"

# -- zig ---------------------------------------------------------------------------------------------------------------
zig=$target/portable/ziglang-$ZIGLANG
if [ ! -e "$zig/ziglang/zig" ]; then
    rm -rf "$zig"
    python3 -m pip install --quiet --no-deps --target "$zig.new" "ziglang==$ZIGLANG" || {
        echo "portable: zig cannot be had: pip does not install ziglang $ZIGLANG (\`make packages GLIBC=host\` needs no zig)" >&2
        exit 3
    }
    mv "$zig.new" "$zig"
fi
export ZIG_GLOBAL_CACHE_DIR=$target/portable/zig-cache ZIG_LOCAL_CACHE_DIR=$target/portable/zig-cache

# tool NAME LINE..: a program of that name in $tools.
tool() {
    local path=$tools/$1
    shift
    printf '%s\n' '#!/bin/bash' "$@" >"$path.new"
    chmod +x "$path.new"
    # Cargo goes by the time of what it runs.
    if cmp -s "$path.new" "$path"; then rm "$path.new"; else mv "$path.new" "$path"; fi
}
# What rustc and the crate `cc` say to a gcc and zig does not take: which linker, how well, and the triple, which zig spells
# otherwise. What is linked goes into packages, which have no debugging information.
links=(-s)
if [ "$libc" = musl ]; then
    # A musl system's own programs ask for musl by this name, and what judges wheels expects it; musl takes any that begins
    # with `libc.` for itself. zig's is `libc.so`, which its linker leaves out where the one before it has all names.
    musl=$tools/libc.musl-$arch.so.1
    "$zig/ziglang/zig" cc -target "$zig_triple" -shared -nostdlib -Wl,-soname,"${musl##*/}" -DPTR64 -DFAMILY_x86 \
        "-DARCH_$arch" "$zig/ziglang/lib/libc/musl/libc.S" -o "$musl"
    links+=(-dynamic -Wl,--as-needed "$musl")
fi
tool cc "words=() linked=(${links[*]@Q})" \
    'for word; do' \
    '    case $word in' \
    '        -fuse-ld=* | --target=* | -B* | -Wl,-O*) continue ;;' \
    '        -c | -S | -E) linked=() ;;' \
    '    esac' \
    '    words+=("$word")' \
    'done' \
    "exec '$zig/ziglang/zig' cc -target $zig_triple -fno-sanitize=undefined \"\${linked[@]}\" \"\${words[@]}\""
tool ar "exec '$zig/ziglang/zig' ar \"\$@\""

# -- Rust for aarch64 and for musl ---------------------------------------------------------------------------------------
# A compiler takes the standard library of its own version alone. The installed one's for aarch64 or musl, and its source,
# cannot be had where rustup reaches nothing; Debian's sid has compiler, library and source, and they run by their own
# loader, beside this system's: as any user.
debian=$target/portable/sid

# sid: puts sid's rustc, the standard libraries for here and for aarch64, and the library's source, into $debian/root.
sid() {
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg state=$debian/apt uri names deb
    uri=$(apt-get indextargets --format '$(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        awk '$1 == "main" { print $2; exit }') || true
    if [ -z "$uri" ] || [ ! -e "$keys" ]; then
        echo "portable: Rust for $name cannot be had: this is no Debian with an archive, and the keys for it" >&2
        return 1
    fi
    rm -rf "$debian"
    mkdir -p "$state"/{lists/partial,cache/archives/partial,parts} "$debian/debs" "$debian/new"
    : >"$state/status"
    echo "deb [signed-by=$keys] $uri sid main" >"$state/sources.list"
    printf '%s;\n' 'APT::Architecture "amd64"' 'APT::Architectures { "amd64"; "arm64"; }' 'APT::Sandbox::User "root"' \
        'APT::Install-Recommends "false"' 'Acquire::Languages "none"' "Dir::Cache \"$state/cache\"" \
        "Dir::State::lists \"$state/lists\"" "Dir::State::status \"$state/status\"" \
        "Dir::Etc::sourcelist \"$state/sources.list\"" "Dir::Etc::sourceparts \"$state/parts\"" \
        "Dir::Etc::preferencesparts \"$state/parts\"" >"$state/apt.conf"
    (
        export APT_CONFIG=$state/apt.conf
        cd "$debian/debs"
        apt-get update -qq --error-on=any
        # What rustc depends on, but for what compiles C and links, which zig does.
        names=$(apt-get install --print-uris -y -qq rustc libstd-rust-dev:amd64 libstd-rust-dev:arm64 rust-src |
            sed -nE "s/^\S+ ([^_]+)_[^_]+_(amd64|arm64|all)\.deb .*/\1:\2/p" |
            sed -nE '/:amd64$|^libstd-rust-dev:/p; s/^(rust-src):all$/\1/p' |
            grep -vE '^(gcc|cpp|binutils|libc6-dev|libgcc-[0-9])|san[0-9]*:|-dev-bin:')
        # shellcheck disable=SC2086 # names of packages
        apt-get download -qq $names
    ) || {
        echo "portable: Rust for $name cannot be had: apt-get does not download it from $uri" >&2
        return 1
    }
    for deb in "$debian"/debs/*.deb; do dpkg-deb -x "$deb" "$debian/new"; done
    rm -r "$debian/debs" "$state"
    mv "$debian/new" "$debian/root"
}

if [ "$name" != x86_64 ]; then
    [ -d "$debian/root/usr/src" ] || sid || exit 3
    libraries=$debian/root/usr/lib/x86_64-linux-gnu
    tool rustc "exec '$libraries/ld-linux-x86-64.so.2' --library-path '$libraries' '$debian/root/usr/bin/rustc' \\" \
        "    --sysroot '$debian/root/usr' \"\$@\""
    export RUSTC=$tools/rustc
    unset RUSTC_WRAPPER
fi

# -- build ---------------------------------------------------------------------------------------------------------------
under=${triple//-/_}
export "CARGO_TARGET_${under^^}_LINKER=$tools/cc" "CC_$under=$tools/cc" "AR_$under=$tools/ar"
# Packages have no debugging information.
export CARGO_TARGET_DIR=$out/cargo CARGO_PROFILE_RELEASE_DEBUG=none
standard=()
if [ "$libc" = musl ]; then
    # Cargo builds the standard library by an unstable option. Rust's programs for musl are static unless told, and then it
    # makes no libraries.
    export RUSTC_BOOTSTRAP=1 RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=-crt-static"
    standard=(-Zbuild-std=std,panic_abort)
fi
cargo build --release --locked "${standard[@]}" --target "$triple" -p adverb-cli -p adverb-verbs -p adverb-mlx5 -p adverb-facade
built=$out/cargo/$triple/release
CC=$tools/cc crates/verbs/link.sh "$built/libadverb_verbs.a" "$out/lib"
CC=$tools/cc crates/mlx5/link.sh "$built/libadverb_mlx5.a" "$out/lib/libibverbs.so.1" "$out/lib/mlx5dv"
install -m 644 "$built/libadverb_facade.so" "$out/lib/libadverb_facade.so"
install -m 755 "$built/adverb" "$out/adverb"
