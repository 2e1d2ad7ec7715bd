#!/usr/bin/python3
"""Writes what passes an interface to a pcap file until it is told to end (SIGTERM): capture.py INTERFACE FILE.
Prints `capturing` once nothing can be missed any more. What had passed by the time of the signal is still written: it
ends at the first silence after it, or with what passes a second later, where somebody is never silent."""

import signal
import socket
import struct
import sys
import time

ETH_P_ALL = 0x0003
SNAPLEN = 65536
RECEIVE_BUFFER = 64 << 20
SO_RCVBUFFORCE = 33
SO_TIMESTAMPNS = 35
TIMESPEC = struct.Struct("@ll")
SILENCE_S = 0.1
LAST_NS = 1_000_000_000


def passed_ns(ancillary):
    """When the kernel had the frame."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, ns = TIMESPEC.unpack_from(data)
            return seconds * 1_000_000_000 + ns
    raise OSError("a frame without a time")


def main():
    interface, path = sys.argv[1:3]
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    port.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
    port.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    port.bind((interface, ETH_P_ALL))
    port.settimeout(SILENCE_S)
    end_ns = None

    def end(_signum, _frame):
        nonlocal end_ns
        end_ns = time.time_ns() + LAST_NS

    signal.signal(signal.SIGTERM, end)
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, SNAPLEN, 1))
        print("capturing", flush=True)
        while True:
            try:
                frame, ancillary, _flags, _address = port.recvmsg(SNAPLEN, socket.CMSG_SPACE(TIMESPEC.size))
            except TimeoutError:
                if end_ns is None:
                    continue
                return
            passed = passed_ns(ancillary)
            if end_ns is not None and passed > end_ns:
                return
            seconds, ns = divmod(passed, 1_000_000_000)
            out.write(struct.pack("<IIII", seconds, ns // 1000, len(frame), len(frame)) + frame)


main()
