#!/usr/bin/python3
"""Says what nobody should say at a port of a switch, as fast as it is taken: random bytes, frames that are packets but for
some of their bytes, packets with a right ICRC that nobody has asked for, and others' names.

    tests/clients/noise.py SEED SECONDS ADDRESS TO,.. unix SOCKET          a process of this host
    tests/clients/noise.py SEED SECONDS ADDRESS TO,.. tcp HOST:PORT TOKEN  one of another host
    tests/clients/noise.py SEED SECONDS ADDRESS TO,.. machine SOCKET       a virtual machine
    tests/clients/noise.py SEED SECONDS ADDRESS TO,.. interface NAME       an interface

It prints `sent N frames, N other messages, N connections`, and stays until it is killed, so that its port does. Frames are
counted on the connection that it has last. Nothing goes to groups: such a frame would leave by several ports."""

import random
import signal
import socket
import struct
import sys
import time
import zlib

from icrc import BTH_FECN_BECN, IPV4_VARIANT, LINK_ONES, ROCE_PORT, UDP_CHECKSUM
from packets import ETH_IPV4, checksum

HELLO, FRAMES, ASK, TOKEN = 1, 4, 5, 7
VERSION, SLOT = 1, 9
FRAME_MAX, MESSAGE_MAX = 4096 + 320, 60 << 10
# Of what other opcodes have, the services that queue pairs of RC, UC, UD and XRC have.
OPCODES = [service | operation for service in (0, 0x20, 0x60, 0xA0) for operation in range(0x18)]
HEADS = 20 + 8
# Between two connections of strangers so many messages.
STRANGERS_EVERY = 200


class Noise:
    def __init__(self, seed, address, to):
        self.rng = random.Random(seed)
        self.address, self.to = address, to

    def packet(self):
        """A packet of RoCEv2 from its IP header on, of its own address or, seldom, of another one."""
        rng = self.rng
        source = rng.choice(self.to) if rng.random() < 0.1 else self.address
        body = rng.randbytes(rng.choice((0, 4, 8, 16, 28, 100, 1024, 4096)))
        queue_pair = rng.randrange(1 << 24) if rng.random() < 0.5 else rng.randrange(256) << 16 | rng.randrange(64)
        bth = struct.pack("!BBHII", rng.choice(OPCODES), rng.randrange(256), 0xFFFF, queue_pair, rng.randrange(1 << 32))
        length = 8 + len(bth) + len(body) + 4
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 2, 20 + length, 0, 0x4000, 64, 17, 0,
                           socket.inet_aton(source), socket.inet_aton(rng.choice(self.to)))
        head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
        packet = head + struct.pack("!HHHH", 0xC000, ROCE_PORT, length, 0) + bth + body
        masked = bytearray(packet)
        for at in (*IPV4_VARIANT, *(20 + at for at in UDP_CHECKSUM), 20 + BTH_FECN_BECN):
            masked[at] = 0xFF
        return packet + struct.pack("<I", zlib.crc32(LINK_ONES + bytes(masked)))

    def frame(self):
        """Bytes that are a frame, by their length alone or by more."""
        rng = self.rng
        kind = rng.randrange(3)
        if kind == 0:
            return rng.randbytes(rng.randrange(1, FRAME_MAX + 1))
        frame = bytearray(self.packet())
        if kind == 1:
            # What is behind the heads: with these it stays a frame of RoCE, whose sum is wrong now, or whose end is missing.
            frame[rng.randrange(HEADS, len(frame))] ^= 1 << rng.randrange(8)
            if rng.random() < 0.3:
                del frame[rng.randrange(HEADS, len(frame)) :]
        return bytes(frame)

    def message(self):
        """A message with frames, and how many; or, seldom, one of any bytes and none."""
        rng = self.rng
        if rng.random() < 0.05:
            # Frames would be frames, whatever they are.
            return bytes([rng.choice([kind for kind in range(256) if kind != FRAMES])]) + rng.randbytes(rng.randrange(600)), 0
        message, count = bytes([FRAMES]), 0
        while count < 16:
            frame = self.frame()
            if len(message) + 2 + len(frame) > MESSAGE_MAX:
                break
            message += struct.pack("<H", len(frame)) + frame
            count += 1
        return message, count

    def hello(self):
        return bytes([HELLO, VERSION, SLOT]) + bytes(10) + b"\xff\xff" + socket.inet_aton(self.address) + bytes(range(16))

    def ethernet(self):
        """An Ethernet frame for all. What it carries is IP by its head, ARP, or anything."""
        rng = self.rng
        kind = rng.choice((ETH_IPV4, ETH_IPV4, ETH_IPV4, 0x86DD, 0x0806, rng.randrange(1 << 16)))
        body = self.frame() if kind == ETH_IPV4 else rng.randbytes(rng.randrange(1, 1400))
        return b"\xff" * 6 + bytes([2, 0, 0, 0, 0, 9]) + struct.pack("!H", kind) + body


def by_messages(noise, connect, send):
    """Frames and other messages on a connection that is welcome, and strangers who say anything."""
    link = connect()
    send(link, noise.hello())
    link.recv(1 << 16)

    def say():
        message, count = noise.message()
        send(link, message)
        return count, int(not count), 0

    def stranger():
        with connect() as other:
            try:
                other.send(noise.rng.randbytes(noise.rng.randrange(1, 2000)))
            except OSError:
                # It was hung up on.
                pass
        return 0, 0, 1

    return say, stranger


def unix(noise, path):
    def connect():
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.connect(path)
        return link

    return by_messages(noise, connect, lambda link, message: link.send(message))


def tcp(noise, place, token):
    host, port = place.rsplit(":", 1)
    with open(token, "rb") as f:
        known = f.read().strip()

    def send(link, message):
        link.sendall(struct.pack("<H", len(message)) + message)

    def connect():
        link = socket.create_connection((host, int(port)))
        if noise.rng.random() < 0.5 or not connect.welcome:
            connect.welcome = True
            send(link, bytes([TOKEN]) + known)
        return link

    connect.welcome = False
    return by_messages(noise, connect, send)


def machine(noise, path):
    """QEMU's side of a cable. A length that no frame has ends the connection, and the switch comes again: the last one stays."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    for _ in range(3):
        link, _ = listener.accept()
        link.sendall(struct.pack("!I", 0xFFFF_0000 | noise.rng.randrange(1 << 16)) + noise.rng.randbytes(100))
        while True:
            try:
                if not link.recv(1 << 16):
                    break
            except ConnectionResetError:
                break
    link, _ = listener.accept()

    def say():
        frame = noise.ethernet()
        link.sendall(struct.pack("!I", len(frame)) + frame)
        return 1, 0, 0

    return say, lambda: (0, 0, 0)


def interface(noise, name):
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    link.bind((name, 0))

    def say():
        link.send(noise.ethernet()[:1514])
        return 1, 0, 0

    return say, lambda: (0, 0, 0)


def main():
    seed, seconds, address, to, kind, *where = sys.argv[1:]
    noise = Noise(int(seed), address, to.split(","))
    say, stranger = {"unix": unix, "tcp": tcp, "machine": machine, "interface": interface}[kind](noise, *where)
    end = time.monotonic() + float(seconds)
    sums, turns = [0, 0, 0], 0
    while time.monotonic() < end:
        turns += 1
        done = stranger() if turns % STRANGERS_EVERY == 0 else say()
        sums = [before + now for before, now in zip(sums, done)]
    print("sent {} frames, {} other messages, {} connections".format(*sums), flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
