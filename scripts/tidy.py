#!/usr/bin/env python3
"""Checks what rustfmt and clippy do not: the shape and the words of the tree. Prints a line for each fault; exits 1 if
there is any. There is no list of old faults: the tree is clean, or the check fails.

    scripts/tidy.py                  everything that git tracks
    scripts/tidy.py crates/nic docs  these files and folders only
    scripts/tidy.py --count          how many faults of each kind, and where
"""

import argparse
import collections
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

RUST_WIDTH = 110
# Markdown's prose; tables and code stay as wide as they must be.
PROSE_WIDTH = 100
SCRIPT_WIDTH = 130
FILE_LINES = 600
FUNCTION_LINES = 70
# Tests tell a story; they may take longer.
TEST_LINES = 100
# A function or a file that is longer says why: before the function, or in the file's first lines.
EXCUSE = re.compile(r"// Long: \w")
EXCUSE_LINES = 40

# Words that say nothing, or that say it to those who were there when it was written.
BANNED = (
    (re.compile(r"[Ss]ee the (top|head) of th(is|e) file"), "a doc comment stands alone"),
    (re.compile(r"^\s*///\s*(Does|Ends|Makes|Gives|Takes|Sets|Gets) (it|one|them|that)\.?\s*$"), "says nothing"),
    (re.compile(r"^\s*///\s*(After|Before|Of|With|For) (one|it|that|them)\.?\s*$"), "says nothing"),
    (re.compile(r"For who (does|do|knows|wants)\b"), "knotted"),
    (re.compile(r"//.*\d (us|ns|ms|µs|%|percent) (less|more|faster|slower|better|worse)\b"), "a laboratory note"),
    (re.compile(r"\b(TODO|FIXME|XXX)\b"), "unfinished work is an issue or is done"),
)
# Places of one machine.
MACHINE = re.compile(r"(?<![\w.}~-])/(work|root|home)/(?!\.\.\.)\w")
# How the first lines of a file say what it is for.
FIRST = {
    ".rs": re.compile(r"\A(//!|/\*!)"),
    ".py": re.compile(r'\A(#!.*\n)?"""\S'),
    ".sh": re.compile(r"\A(#!.*\n)?# \S"),
    ".c": re.compile(r"\A/\* \S"),
    ".h": re.compile(r"\A/\* \S"),
    ".lua": re.compile(r"\A-- \S"),
    ".md": re.compile(r"\A# \S"),
}
TOML_FOLDERS = ("crates/sim/examples/", "lab/")
# Crates that a crate must not be built with: a program loads the verbs library, and no TLS with it.
APART = {"verbs": {"tls", "grants", "rma"}, "mlx5": {"nic", "io"}}
FUNCTION = re.compile(r"(\s*)(?:pub(?:\([^)]*\))? )?(?:(?:const|async|unsafe|extern \"[^\"]*\") )*fn (\w+)")
# What begins the tests of a file: a module, or at the file's end one in a file of its own.
TEST_ONLY = ("#[cfg(test)]", "#[cfg(loom)]")
TEST_MODULE = re.compile(r"mod \w+ \{")
TEST_MODULE_OR_FILE = re.compile(r"mod \w+( \{|;)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
# A source file that a document names, with or without its crate; `crates/` and `src/` may be left out.
NAMED = re.compile(r"`([\w/-]+\.rs)`")
MENTION = re.compile(r"(?<![\w/.-])((?:docs|bench|scripts)/[\w/-]+\.(?:md|py|sh|lua))")


class Tidy:
    """The faults found so far."""

    def __init__(self):
        self.faults = []
        self.anchors = {}
        self.sources = {short(path) for path in tracked(["*.rs"])}

    def fault(self, path, line, kind, text):
        self.faults.append((path, line, kind, text))

    def file(self, path):
        try:
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                text = f.read()
        except UnicodeDecodeError:
            return
        kind = kind_of(path, text)
        if kind is None:
            return
        lines = text.split("\n")
        self.first_lines(path, kind, text)
        self.words(path, kind, lines)
        if kind == ".md":
            self.prose(path, lines)
            self.links(path, lines)
            self.sources_named(path, lines)
        elif kind != ".toml":
            self.width(path, lines, RUST_WIDTH if kind == ".rs" else SCRIPT_WIDTH)
        if kind == ".rs":
            self.lengths(path, lines)
        self.mentions(path, lines)

    def first_lines(self, path, kind, text):
        if kind == ".toml":
            tells = text.startswith(("#", "title =", "citation ="))
            if path.startswith(TOML_FOLDERS) and not path.endswith("Cargo.toml") and not tells:
                self.fault(path, 1, "first-line", "the first line does not say what the file is for")
        elif not FIRST[kind].match(text):
            self.fault(path, 1, "first-line", "the first line does not say what the file is for")

    def words(self, path, kind, lines):
        if path == "scripts/tidy.py":
            return
        for number, line in enumerate(lines, 1):
            for pattern, why in BANNED:
                if found := pattern.search(line):
                    self.fault(path, number, "words", f"{found.group(0).strip()!r}: {why}")
            if found := MACHINE.search(line):
                self.fault(path, number, "machine", f"{found.group(0)!r}: a place of one machine")

    def width(self, path, lines, most):
        for number, line in enumerate(lines, 1):
            if len(line.expandtabs(8)) > most:
                self.fault(path, number, "width", f"{len(line)} columns, not {most}")

    def prose(self, path, lines):
        in_code = False
        for number, line in enumerate(lines, 1):
            if line.lstrip().startswith("```"):
                in_code = not in_code
            elif in_code or line.startswith("    ") or line.lstrip().startswith("|"):
                continue
            elif len(line) > PROSE_WIDTH and " " in line.strip():
                self.fault(path, number, "width", f"{len(line)} columns, not {PROSE_WIDTH}")

    def links(self, path, lines):
        for number, line in enumerate(lines, 1):
            for target in LINK.findall(line):
                if re.match(r"\w+:", target):
                    continue
                name, _, anchor = target.partition("#")
                at = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
                if not os.path.exists(os.path.join(ROOT, at)):
                    self.fault(path, number, "link", f"{target} leads nowhere")
                elif anchor and at.endswith(".md") and anchor not in self.anchors_of(at):
                    self.fault(path, number, "link", f"{at} has no heading #{anchor}")

    def mentions(self, path, lines):
        for number, line in enumerate(lines, 1):
            for name in MENTION.findall(line):
                beside = os.path.join(os.path.dirname(path), name)
                if not os.path.exists(os.path.join(ROOT, name)) and not os.path.exists(os.path.join(ROOT, beside)):
                    self.fault(path, number, "link", f"there is no {name}")

    def sources_named(self, path, lines):
        for number, line in enumerate(lines, 1):
            for name in NAMED.findall(line):
                wanted = short(name)
                if not any(source == wanted or source.endswith("/" + wanted) for source in self.sources):
                    self.fault(path, number, "link", f"there is no {name}")

    def anchors_of(self, path):
        if path not in self.anchors:
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                titles = re.findall(r"^#+ +(.*)$", f.read(), re.M)
            self.anchors[path] = {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}
        return self.anchors[path]

    def lengths(self, path, lines):
        """Of the file before its tests, and of each function: rustfmt closes it where it began."""
        in_tests = is_test(path)
        before_tests = len(lines) - 1
        begun = None
        for number, line in enumerate(lines, 1):
            opens = TEST_MODULE if number < len(lines) - 12 else TEST_MODULE_OR_FILE
            if line in TEST_ONLY and not in_tests and opens.match(next_code(lines, number)):
                before_tests = number - 1
                break
        for number, line in enumerate(lines, 1):
            if found := FUNCTION.match(line):
                begun = (found.group(1), found.group(2), number)
                if line.rstrip().endswith(("}", ";")):
                    begun = None
            elif begun and line == begun[0] + "}":
                most = TEST_LINES if in_tests or begun[2] > before_tests else FUNCTION_LINES
                excused = any(EXCUSE.search(line) for line in lines[max(0, begun[2] - 8) : begun[2]])
                if number - begun[2] + 1 > most and not excused:
                    text = f"fn {begun[1]} has {number - begun[2] + 1} lines, not {most}"
                    self.fault(path, begun[2], "function", text)
                begun = None
        excused = any(EXCUSE.search(line) for line in lines[:EXCUSE_LINES])
        if before_tests > FILE_LINES and not in_tests and not excused:
            self.fault(path, 1, "file", f"{before_tests} lines before its tests, not {FILE_LINES}")


def short(path):
    """A source's path as documents name it."""
    return re.sub(r"(^|/)(crates|src)/", r"\1", path).removeprefix("src/")


def next_code(lines, number):
    return next((line for line in lines[number:] if line and not line.startswith("#[")), "")


def is_test(path):
    parts = path.split("/")
    return "tests" in parts[:-1] or parts[-1] == "tests.rs"


def kind_of(path, text):
    """The kind of a file by its ending, or by its first line where it has none; None for what is not checked."""
    ending = os.path.splitext(path)[1]
    if ending in FIRST or ending == ".toml":
        return ending
    if not ending and text.startswith("#!"):
        return ".py" if "python" in text.split("\n", 1)[0] else ".sh"
    return None


def tracked(places):
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *places],
                            cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(p for p in set(listed.stdout.split("\0")) if p and os.path.isfile(os.path.join(ROOT, p)))


def needs(crate, seen=None):
    """The crates of this workspace that a crate is built with, itself among them, tests aside."""
    seen = seen if seen is not None else set()
    if crate not in seen:
        seen.add(crate)
        with open(os.path.join(ROOT, "crates", crate, "Cargo.toml")) as f:
            text = f.read()
        for table in re.findall(r"^\[(?:target\..*\.)?dependencies\]\n((?:(?!\[).*\n?)*)", text, re.M):
            for name in re.findall(r"^adverb-([\w-]+)", table, re.M):
                needs(name, seen)
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", metavar="PLACE")
    parser.add_argument("--count", action="store_true", help="sums instead of lines")
    options = parser.parse_args()
    tidy = Tidy()
    for path in tracked(options.places):
        tidy.file(path)
    for crate, others in APART.items():
        for other in sorted(others & needs(crate)):
            tidy.fault(f"crates/{crate}/Cargo.toml", 1, "direction", f"is built with {other}, which it must not know")
    if options.count:
        sums = collections.Counter((kind, "/".join(path.split("/")[:2])) for path, _, kind, _ in tidy.faults)
        for (kind, place), n in sorted(sums.items()):
            print(f"{n:5} {kind:10} {place}")
    else:
        for path, line, kind, text in tidy.faults:
            print(f"{path}:{line}: {kind}: {text}")
    print(f"tidy: {len(tidy.faults)} faults")
    return 1 if tidy.faults else 0


if __name__ == "__main__":
    sys.exit(main())
