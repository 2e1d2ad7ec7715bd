"""A disk over the network by iSER: Debian's tgt serves a file, libiscsi's programs and QEMU's disk driver, which is over
libiscsi too, use it. What they write is compared with the file, and read back."""

import filecmp
import os
import subprocess

from harness import Case, Fail, Skip, read_counters, require, require_text
from suite_rdmacm import TCP, alive, listens

NOTES = (
    "tgt takes an iSER login only of an initiator whose address and name are both bound to the target (by TCP too), and says "
    "'target not found' of others",
    "tgt refuses a command ('non-login pdu during login phase') that it hears before the acknowledgement of its answer to the "
    "login: where that is lost, the initiator fails, whatever the NIC is; it is started again",
    "libiscsi's iSER refuses requests above 512 KB, as 'out of memory': qemu-img convert makes such, qemu-img dd need not",
)
TARGET = "iqn.2026-11.net.example:disk"
# QEMU's own name, as it is given none; the other programs take it too.
INITIATOR = "iqn.2008-11.org.linux-kvm"
PIECE, PIECES = 256 << 10, 32
SIZE = PIECE * PIECES
# What tgtd says when a command came before the acknowledgement of its answer to the login, and how often that may be.
TOO_EARLY, ATTEMPTS = "non-login pdu during login phase", 3
QEMU_DRIVER = "/usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so"


class Target:
    """tgtd with one disk in a file."""

    def __init__(self, room, options):
        self.room, self.options = room, options
        # A path for a Unix socket must be short.
        self.env = {"TGT_IPC_SOCKET": "tgt", "ADVERB": f"directory={room.path('shared')}"}
        self.disk, self.port, words_port = room.path("disk"), room.port(), room.port()
        with open(self.disk, "wb") as f:
            f.truncate(SIZE)
        argv = ["tgtd", "-f", "-C", "7", "--iscsi", f"portal=127.0.0.1:{words_port}", "--iser",
                f"port={self.port},pool_sz_mb=16"]
        self.proc = room.adverb("target", argv, options=options, env=self.env)
        room.wait_until("tgtd that answers", lambda: alive(self.proc) and self.admin("--op", "show", "--mode", "system"))
        of_target = ("--lld", "iser", "--mode", "target", "--tid", "1")
        for words in ((*of_target, "--op", "new", "-T", TARGET),
                      ("--lld", "iser", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "--op", "new", "-b", self.disk),
                      (*of_target, "--op", "bind", "-I", "ALL"), (*of_target, "--op", "bind", "-Q", INITIATOR)):
            if not self.admin(*words):
                raise Fail(f"tgtadm {' '.join(words)} failed")
        room.wait_until("tgtd that listens", lambda: alive(self.proc)
                        and listens(room.path("shared"), "127.0.0.1", TCP, self.port))

    def admin(self, *words):
        argv = ["tgtadm", "-C", "7", *words]
        done = subprocess.run(argv, cwd=self.room.dir, env=dict(os.environ, **self.env), capture_output=True, check=False)
        return done.returncode == 0

    def used_by(self, label, *argv, served=0):
        """Runs a program of which {url} is the disk; how many bytes the target must have moved from or to its memory."""
        path = self.room.path(label + ".counters")
        url = f"iser://127.0.0.1:{self.port}/{TARGET}/1"
        for _ in range(ATTEMPTS):
            before = self.proc.output().count(TOO_EARLY)
            proc = self.room.adverb(label, [word.replace("{url}", url) for word in argv], env=self.env,
                                    options=(*self.options, "--counters", path))
            if self.room.wait_exit(proc) == 0 or self.proc.output().count(TOO_EARLY) == before:
                break
            self.room.note(f"{label} was started again")
        self.room.expect_success(proc)
        counted = read_counters(path)
        if not counted["cm_established"] or counted["payload_served"] < served:
            raise Fail(f"{label}: {counted['payload_served']} bytes went by the device")
        return proc.output()


def disk(options=(), faulty=False):
    """8 MB in 32 pieces; both ways the target moves them, by READ and WRITE."""

    def run(room):
        require("tgtd", "tgtadm", "iscsi-readcapacity16", "iscsi-inq", "qemu-io", "qemu-img")
        if not os.path.exists(QEMU_DRIVER):
            raise Skip("QEMU's driver for iSCSI is not installed (scripts/setup.sh installs qemu-block-extra)")
        if os.geteuid():
            raise Skip("tgtd runs for root only")
        target = Target(room, options)
        said = target.used_by("capacity", "iscsi-readcapacity16", "-i", INITIATOR, "{url}")
        require_text(said, rf"^Total size:{SIZE}$", "iscsi-readcapacity16")
        require_text(target.used_by("inquiry", "iscsi-inq", "-i", INITIATOR, "{url}"), r"^Vendor:IET", "iscsi-inq")
        pieces = [os.urandom(PIECE) for _ in range(PIECES)]
        writes = []
        for nth, piece in enumerate(pieces):
            with open(room.path(f"piece{nth}"), "wb") as f:
                f.write(piece)
            writes += ["-c", f"write -s piece{nth} {nth * PIECE} {PIECE}"]
        said = target.used_by("writer", "qemu-io", "-f", "raw", *writes, "{url}", served=SIZE)
        if said.count(f"wrote {PIECE}/{PIECE} bytes") != PIECES:
            raise Fail("qemu-io did not write all pieces")
        with open(target.disk, "rb") as f:
            if f.read() != b"".join(pieces):
                raise Fail("the target's file has other bytes than were written")
        target.used_by("reader", "qemu-img", "dd", f"bs={PIECE}", "if={url}", "of=copy", served=SIZE)
        if not filecmp.cmp(target.disk, room.path("copy"), shallow=False):
            raise Fail("other bytes were read than the target's file has")
        counted = [read_counters(room.path(side + ".counters")) for side in ("writer", "reader")]
        lost = sum(values["fault_rx_lost"] + values["fault_tx_lost"] for values in counted)
        if faulty and not lost:
            raise Fail("no packet was lost")
        room.note(f"{SIZE >> 20} MB written and read, {lost} packets lost by the initiators")

    return run


def cases():
    yield Case("iser/disk", disk(), timeout=90)
    lossy = ("--path", "udp", "--loss", "0.001", "--seed", "5")
    yield Case("iser/disk-lossy", disk(lossy, True), timeout=180, long=True)
    irn = ("--transport", "irn", "--loss", "0.01", "--seed", "5")
    yield Case("iser/disk-irn", disk(irn, True), timeout=180, long=True)
