# make demo    install what is missing, build, run Debian's RDMA programs on the NIC
# make test    everything that is checked on each change; make test STEP=clients runs one step (scripts/test.sh --list)
# make test-long  the same, wider and for hours
# make tidy    widths, lengths, links and words of the tree
# make build   the command and the library, in target/release
# make bench   figures (bench/run), a server's cost by its number of clients (bench/grid), contended locks (bench/crowd)
# make packages  a wheel and a Debian package for glibc from 2.28 on, in target/packages; GLIBC=host: of what make build makes
# make packages ARCH=aarch64  a wheel for aarch64; GLIBC=musl: for musl
# make lint    format and lints only
# make install PREFIX=/usr/local

TARGET := $(or $(CARGO_TARGET_DIR),target)
PREFIX ?= /usr/local
LIBRARY := $(TARGET)/release/lib/libibverbs.so.1
FACADE := $(TARGET)/release/lib/libadverb_facade.so
DIRECT := $(TARGET)/release/lib/mlx5dv/libmlx5.so.1

.PHONY: demo build packages test test-long tidy bench lint install

build:
	cargo build --release --locked -p adverb-cli -p adverb-verbs -p adverb-mlx5 -p adverb-facade
	crates/verbs/link.sh $(TARGET)/release/libadverb_verbs.a $(TARGET)/release/lib
	crates/mlx5/link.sh $(TARGET)/release/libadverb_mlx5.a $(LIBRARY) $(TARGET)/release/lib/mlx5dv
	install -m 644 $(TARGET)/release/libadverb_facade.so $(FACADE)

ARCH ?= x86_64
GLIBC ?= 2.28
BUILT = $(ARCH)$(if $(filter musl,$(GLIBC)),-musl)
ifeq ($(GLIBC),host)
packages: build
	@scripts/packages.py
else
packages:
	scripts/portable.sh $(ARCH) $(GLIBC)
	@ADVERB_BUILD=$(TARGET)/portable/$(BUILT) scripts/packages.py $(if $(filter x86_64,$(BUILT)),,wheel)
endif

demo:
	@scripts/setup.sh
	@$(MAKE) --no-print-directory build
	@scripts/demo.sh

test:
	@scripts/test.sh $(STEP)

test-long:
	@scripts/test.sh --long $(STEP)

tidy:
	@scripts/tidy.py

bench:
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory build
	bench/run
	bench/crowd
	bench/grid

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

install: build
	install -D $(TARGET)/release/adverb $(DESTDIR)$(PREFIX)/bin/adverb
	install -D -m 644 $(LIBRARY) $(DESTDIR)$(PREFIX)/lib/adverb/libibverbs.so.1
	ln -sf libibverbs.so.1 $(DESTDIR)$(PREFIX)/lib/adverb/librdmacm.so.1
	install -D -m 644 $(FACADE) $(DESTDIR)$(PREFIX)/lib/adverb/libadverb_facade.so
	install -D -m 644 $(DIRECT) $(DESTDIR)$(PREFIX)/lib/adverb/mlx5dv/libmlx5.so.1
	for header in xchannel.h verbs_exp.h compat/infiniband/verbs_exp.h; do install -D -m 644 \
		crates/verbs/include/adverb/$$header $(DESTDIR)$(PREFIX)/include/adverb/$$header; done
