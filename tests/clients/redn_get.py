"""A client of `adverb redn serve` in pyverbs: it sets up by lines of text, and gets by messages of 28 bytes.

    redn_get.py HOST PORT ADDRESS KEY..    prints KEY VALUE, or KEY -

ADDRESS is that of the own NIC. docs/redn.md describes the exchange, the message, buckets and records.
"""

import ipaddress
import socket
import struct
import sys
import time
import zlib

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

SLOTS, REPLY, PSN, TRIES, LIMIT_S = 8, 4096, 0x123456, 8, 10
ALL = (1 << 64) - 1


def mixed(number):
    """The finalizer of SplitMix64."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & ALL
    number = (number ^ number >> 27) * 0x94D049BB133111EB & ALL
    return number ^ number >> 31


def hash_of(seed, key):
    """FNV-1a and the finalizer of MurmurHash3."""
    number = seed ^ 0xCBF29CE484222325
    for byte in key:
        number = (number ^ byte) * 0x00000100000001B3 & ALL
    number = (number ^ number >> 33) * 0xFF51AFD7ED558CCD & ALL
    number = (number ^ number >> 33) * 0xC4CEB9FE1A85EC53 & ALL
    return number ^ number >> 33


class Client:
    def __init__(self, host, port, address):
        self.context = Context(name=get_device_list()[0].name.decode())
        self.pd, self.cq = PD(self.context), CQ(self.context, 8 * SLOTS)
        self.buffer = MR(self.pd, SLOTS * REPLY, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        self.message = MR(self.pd, 28, e.IBV_ACCESS_LOCAL_WRITE)
        cap = QPCap(max_send_wr=SLOTS, max_recv_wr=SLOTS)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        self.qp = QP(self.pd, init, attr)
        self.asked = 0
        # The connection stays open: it is what the hull knows this client by.
        self.line = socket.create_connection((host, port), timeout=LIMIT_S).makefile("rw")
        print("connect version=1", f"gid={address} qpn={self.qp.qp_num} psn={PSN} buffer={self.buffer.buf}",
              f"rkey={self.buffer.rkey} slots={SLOTS} reply={REPLY}", file=self.line, flush=True)
        first, *words = self.line.readline().split()
        if first != "connected":
            sys.exit(f"redn_get.py: {first} {' '.join(words)}")
        self.told = dict(word.split("=", 1) for word in words)
        self.connect()

    def number(self, name):
        return int(self.told[name], 0)

    def connect(self):
        gid = ipaddress.ip_address(self.told["gid"])
        gid = gid if gid.version == 6 else ipaddress.ip_address(f"::ffff:{gid}")
        route = GlobalRoute(dgid=GID(gid.exploded), hop_limit=64)
        attr = QPAttr(port_num=1)
        attr.path_mtu, attr.min_rnr_timer, attr.max_dest_rd_atomic, attr.max_rd_atomic = e.IBV_MTU_1024, 1, 1, 1
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = self.number("qpn"), self.number("psn"), PSN
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        self.qp.to_rts(attr)

    def ask(self, message):
        """Sends a message; returns the reply's bytes."""
        self.message.write(message, len(message))
        piece = SGE(self.message.buf, len(message), self.message.lkey)
        # A WRITE with immediate takes a receive, and leaves its piece, which pyverbs asks for, as it is.
        self.qp.post_recv(RecvWR(wr_id=1, num_sge=1, sg=[piece]))
        self.qp.post_send(SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[piece], send_flags=e.IBV_SEND_SIGNALED))
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            _, completions = self.cq.poll(1)
            for completion in completions:
                if completion.status != e.IBV_WC_SUCCESS:
                    sys.exit(f"redn_get.py: completion status {completion.status}")
                if completion.opcode == e.IBV_WC_RECV_RDMA_WITH_IMM:
                    at = self.asked % SLOTS * REPLY
                    self.asked += 1
                    return self.buffer.read(min(completion.byte_len, REPLY), at)
        return sys.exit("redn_get.py: no reply")

    def get(self, key):
        """A key's value, None if there is none."""
        number, buckets = hash_of(self.number("seed"), key), self.number("buckets")
        first = number & buckets - 1
        at = [first, first + 1 + mixed(number) % (buckets - 1) & buckets - 1]
        fingerprint = max(mixed(number ^ 0x9E3779B97F4A7C15) >> 16, 1).to_bytes(6, "little")
        missed = 0
        # What is missed in one order of the buckets may have been moved: the other order finds it.
        for attempt in range(TRIES):
            order = at if attempt % 2 == 0 else at[::-1]
            places = [self.number("index") + 16 * bucket for bucket in order]
            record = self.ask(fingerprint * 2 + struct.pack(">QQ", *places))
            if len(record) < 64:
                missed += 1
                if missed == 2:
                    return None
                continue
            crc, key_len, value_len = struct.unpack_from("<IHxxI", record, 8)
            whole = zlib.crc32(record[:8] + bytes(4) + record[12:]) == crc and record[:8] == record[-8:]
            if whole and key_len == len(key) and record[32:32 + key_len] == key:
                # Flags and end, then the client's bytes.
                return record[32 + key_len + 8:32 + key_len + value_len]
            missed = 0
        return sys.exit(f"redn_get.py: {key} stays unsure")


def main():
    host, port, address, *keys = sys.argv[1:]
    client = Client(host, int(port), address)
    for key in keys:
        value = client.get(key.encode())
        print(key, "-" if value is None else value.decode())


main()
