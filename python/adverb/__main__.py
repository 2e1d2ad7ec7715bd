"""`python -m adverb` and the command `adverb`: becomes the native command, which the package carries."""

import os
import sys

from ._command import command


def main():
    """Replaces this process: signals, terminal and exit status are the native command's own."""
    path = command()
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
