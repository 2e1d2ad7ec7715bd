#!/usr/bin/python3
"""Runs one shell command in the lab's guest: guest_shell.py ADDRESS PORT COMMAND. Passes on what it prints and its exit
status. The guest's end is guest/agent.c; the command is killed there when this process ends."""

import socket
import sys

CONNECT_S = 10


def main():
    address, port, command = sys.argv[1:4]
    out = sys.stdout.buffer
    with socket.create_connection((address, int(port)), CONNECT_S) as agent:
        agent.settimeout(None)
        agent.sendall(command.encode() + b"\0")
        trailer = None
        while data := agent.recv(1 << 16):
            if trailer is not None:
                trailer += data
                continue
            text, nul, rest = data.partition(b"\0")
            out.write(text)
            out.flush()
            if nul:
                trailer = rest
    if not trailer:
        sys.exit("guest_shell: the guest hung up before the command ended")
    sys.exit(int(trailer))


main()
