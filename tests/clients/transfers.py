"""Two processes of a transfer engine from a wheel: one reads half of the other's memory, writes the other half, and
tells it so. Each side compares every byte that came; the patterns are a generator's, from seeds that both know.

    transfers.py nixl target FILE          registers memory, says in FILE how to reach it, waits for the message
    transfers.py nixl initiator FILE       waits for FILE, reads, compares, writes
    transfers.py mooncake ...              the same
"""

import ctypes
import os
import pickle
import random
import sys
import time

PIECE, PIECES = 256 << 10, 16
HALF = PIECE * PIECES
MESSAGE = b"written"


class Nixl:
    """An agent of NIXL's, with UCX beneath it."""

    def __init__(self, name, memory):
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self.agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        if not self.agent.register_memory([(memory, 2 * HALF, 0, "")], mem_type="DRAM"):
            sys.exit("the memory was not registered")

    def reached_by(self):
        return self.agent.get_agent_metadata()

    def meet(self, metadata):
        self.peer = self.agent.add_remote_agent(metadata)

    def move(self, write, mine, theirs):
        lists = [self.agent.get_xfer_descs([(at, PIECE, 0) for at in side], "DRAM") for side in (mine, theirs)]
        message = MESSAGE if write else b""
        handle = self.agent.initialize_xfer("WRITE" if write else "READ", *lists, self.peer, message)
        states = [self.agent.transfer(handle)]

        def ended():
            states.append(self.agent.check_xfer_state(handle))
            return states[-1] != "PROC"

        wait("the end of it", ended)
        if states[-1] != "DONE":
            sys.exit(f"it ended with {states[-1]}")
        self.agent.release_xfer_handle(handle)

    def told(self):
        return [message for messages in self.agent.get_new_notifs().values() for message in messages]


class Mooncake:
    """Mooncake's transfer engine, by rdma. Its peers shake hands over TCP."""

    def __init__(self, name, memory):
        from mooncake import engine

        self.engine, self.module = engine.TransferEngine(), engine
        # No device is named: it has to find it.
        if status := self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", ""):
            sys.exit(f"initialize: {status}")
        if status := self.engine.register_memory(memory, 2 * HALF):
            sys.exit(f"register_memory: {status}")

    def reached_by(self):
        return f"127.0.0.1:{self.engine.get_rpc_port()}"

    def meet(self, segment):
        self.segment = segment

    def move(self, write, mine, theirs):
        opcode = self.module.TransferOpcode
        notify = self.module.TransferNotify("initiator", MESSAGE.decode()) if write else None
        status = self.engine.batch_transfer_sync(self.segment, mine, theirs, [PIECE] * PIECES,
                                                 opcode.Write if write else opcode.Read, notify)
        if status:
            sys.exit(f"batch_transfer_sync: {status}")

    def told(self):
        return [notify.msg.encode() for notify in self.engine.get_notifies()]


def pattern(seed):
    return random.Random(seed).randbytes(HALF)


def pieces(start):
    return [start + i * PIECE for i in range(PIECES)]


def compare(start, seed, what):
    if ctypes.string_at(start, HALF) != pattern(seed):
        sys.exit(f"{what}: other bytes than the peer's")
    print(f"{what}: {HALF} bytes, all right", flush=True)


def wait(what, done):
    """Until done() is true. Whoever started this ends it when it takes too long."""
    print(f"waits for {what}", flush=True)
    while not done():
        time.sleep(0.001)


def target(make, path):
    memory = ctypes.create_string_buffer(pattern(1), 2 * HALF)
    start = ctypes.addressof(memory)
    side = make("target", start)
    with open(path + ".part", "wb") as f:
        pickle.dump((side.reached_by(), start), f)
    os.rename(path + ".part", path)
    wait("the message", lambda: MESSAGE in side.told())
    compare(start + HALF, 2, "written by the peer")


def initiator(make, path):
    memory = ctypes.create_string_buffer(bytes(HALF) + pattern(2), 2 * HALF)
    start = ctypes.addressof(memory)
    side = make("initiator", start)
    wait("the target", lambda: os.path.exists(path))
    with open(path, "rb") as f:
        reached_by, theirs = pickle.load(f)
    side.meet(reached_by)
    side.move(False, pieces(start), pieces(theirs))
    compare(start, 1, "read from the peer")
    side.move(True, pieces(start + HALF), pieces(theirs + HALF))


if __name__ == "__main__":
    {"target": target, "initiator": initiator}[sys.argv[2]]({"nixl": Nixl, "mooncake": Mooncake}[sys.argv[1]], sys.argv[3])
