#!/usr/bin/python3
"""Writes what passes an interface to a pcap file until it is told to end (SIGTERM): capture.py INTERFACE FILE.
Prints `capturing` once nothing can be missed any more."""

import signal
import socket
import struct
import sys
import time

ETH_P_ALL = 0x0003
SNAPLEN = 65536
RECEIVE_BUFFER = 64 << 20
SO_RCVBUFFORCE = 33


def main():
    interface, path = sys.argv[1:3]
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    port.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
    port.bind((interface, ETH_P_ALL))
    port.settimeout(0.1)
    running = True

    def end(_signum, _frame):
        nonlocal running
        running = False

    signal.signal(signal.SIGTERM, end)
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, SNAPLEN, 1))
        print("capturing", flush=True)
        # What has arrived by the time of the signal is still read: the loop ends at the first silence after it.
        while True:
            try:
                frame = port.recv(SNAPLEN)
            except TimeoutError:
                if running:
                    continue
                return
            now = time.time()
            out.write(struct.pack("<IIII", int(now), int(now % 1 * 1e6), len(frame), len(frame)) + frame)


main()
