"""The native command that the package carries, and how it is called."""

import os
import signal
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
# A simulation whose process is killed is run again, for its result depends on scenario and seed alone; one that dies
# each time is not.
TRIES = 3


class Failed(RuntimeError):
    """The command refused, or failed: its own words, its exit status, and what it had printed until then."""

    def __init__(self, words, status, printed=""):
        super().__init__(words)
        self.status = status
        self.printed = printed

    def __reduce__(self):
        return (Failed, (self.args[0], self.status, self.printed))


def command():
    """The path of the native command; that of the environment's ADVERB_BIN, if it is set."""
    path = os.environ.get("ADVERB_BIN") or os.path.join(HERE, "bin", "adverb")
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"{path} is not there: install the wheel that `make packages` builds, or set ADVERB_BIN")
    return path


def library():
    """The folder of the package's libibverbs.so.1."""
    return os.path.join(HERE, "bin", "lib")


def version():
    """The version of the package."""
    with open(os.path.join(HERE, "VERSION"), encoding="utf-8") as f:
        return f.read().strip()


def call(*words):
    """What the command prints; Failed if its exit status is not 0. A process that was killed is started again."""
    line = [command(), *map(str, words)]
    for left in reversed(range(TRIES)):
        ended = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            return ended.stdout
        if ended.returncode > 0:
            said = ended.stderr.strip().removeprefix("adverb: ") or ended.stdout.strip()
            said = said or f"adverb {words[0]} ended with status {ended.returncode}"
            raise Failed(said, ended.returncode, ended.stdout)
        if -ended.returncode not in (signal.SIGKILL, signal.SIGTERM) or not left:
            name = signal.Signals(-ended.returncode).name
            raise Failed(f"{' '.join(line[1:])}: the process was ended by {name}, {TRIES - left} times", ended.returncode)
    raise AssertionError("a loop that returns or raises")
