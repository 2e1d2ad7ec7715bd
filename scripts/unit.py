#!/usr/bin/env python3
"""Runs `cargo test` of the workspace with its programs of tests in two lanes, beside each other.

    scripts/unit.py

Most of these programs are one long test each and leave a processor idle; cargo runs them one after the other. One lane
has the crates that touch nothing of the host (protocol code, the simulator, figures), the other those whose tests have
sockets, memory and processes of the host in common, one program at a time. A program's output is printed when it has
ended, as cargo prints it; doc tests are cargo's. The exit status is 1 on any failure.
"""

import json
import os
import subprocess
import sys
import threading

# Everything they do happens within their own process.
ALONE = {"adverb-wire", "adverb-nic", "adverb-switch", "adverb-rdma", "adverb-program", "adverb-sim", "adverb-fuzz", "adverb-lab"}
PRINTING = threading.Lock()


def built():
    """(package, its folder, target, program) of every program of tests, in cargo's order."""
    argv = ["cargo", "test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as cargo:
        found = []
        for row in cargo.stdout:
            message = json.loads(row)
            if message["reason"] != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
                continue
            folder = os.path.dirname(message["manifest_path"])
            with open(message["manifest_path"]) as f:
                package = next(line.split('"')[1] for line in f if line.startswith("name"))
            found.append((package, folder, message["target"]["src_path"], message["executable"]))
    if cargo.returncode != 0:
        sys.exit(cargo.returncode)
    # The order in which cargo built them is another each time.
    return sorted(found)


def run(lane, failed):
    for package, folder, source, program in lane:
        ended = subprocess.run([program], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
                               env=dict(os.environ, CARGO_MANIFEST_DIR=folder))
        with PRINTING:
            print(f"     Running {package}: {os.path.relpath(source, folder)} ({os.path.relpath(program)})")
            print(ended.stdout, flush=True)
            if ended.returncode != 0:
                # As many as its line of result counts; one if it did not come to that.
                if "test result: " not in ended.stdout:
                    print(f"FAIL {program} ended with {ended.returncode}\n0 passed, 1 failed, 0 skipped", flush=True)
                failed.append(program)


def main():
    programs = built()
    failed = []
    lanes = [[p for p in programs if (p[0] in ALONE) == alone] for alone in (True, False)]
    threads = [threading.Thread(target=run, args=(lane, failed)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    docs = subprocess.run(["cargo", "test", "--workspace", "--locked", "--no-fail-fast", "--doc"], check=False)
    return 1 if failed or docs.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
