"""Reading a capture twice: our own ICRC check, and tshark's InfiniBand dissector."""

import subprocess

import icrc
from harness import Fail, require


# tshark takes a payload that begins with an EtherType and two zero bytes for such a packet, behind headers that it has
# read by then. A byte of 8 and its padding are IPv4 to it.
MALFORMED = '(_ws.malformed || _ws.unreassembled) && !(frame.protocols contains "infiniband:ethertype")'


def tshark(path, *arguments):
    require("tshark")
    done = subprocess.run(["tshark", "-n", "-r", path, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Fail(f"tshark failed on {path}: {done.stderr}")
    return done.stdout.split("\n")[:-1]


def expect_sound(path, least, wrong_allowed=0):
    """At least so many RoCEv2 frames, each with a right ICRC, all decoded by tshark and none malformed.
    Returns how many."""
    right, wrong = icrc.count(path)
    if right < least:
        raise Fail(f"{path} has {right} frames with a right ICRC, not {least}")
    if wrong > wrong_allowed:
        raise Fail(f"{path} has {wrong} frames with a wrong ICRC")
    # An ICMP message, towards a process that ended, quotes the frame it is about.
    decoded = len(tshark(path, "-Y", "infiniband && !icmp", "-T", "fields", "-e", "frame.number"))
    if decoded != right + wrong:
        raise Fail(f"tshark sees {decoded} InfiniBand frames in {path}, of {right + wrong}")
    malformed = tshark(path, "-Y", MALFORMED, "-T", "fields", "-e", "frame.number")
    if malformed:
        raise Fail(f"tshark finds frames {' '.join(malformed[:10])} of {path} malformed")
    return right
