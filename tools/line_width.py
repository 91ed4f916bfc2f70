#!/usr/bin/env python3
"""Reports lines that are too wide: comments and prose over 100 columns, code over 120.

    tools/line_width.py            files that differ from `main`, where this branch left it
    tools/line_width.py COMMIT     files that differ from COMMIT, committed or not
    tools/line_width.py --all      every tracked file

Tables of a page, generated files, expected outputs, templates' lines with placeholders and words
that cannot be broken (addresses) may be wider. Exits with 1 if a line is too wide. Standard library
only.
"""

import re
import subprocess
import sys
from pathlib import Path

PROSE, CODE = 100, 120
C_LIKE = {".rs", ".hyp", ".h", ".pest"}
GENERATED = re.compile(
    r"Cargo\.lock|/snapshots/|\.(expected|stderr|snap|json|svg|npz|onnx|txt)$|/onnx/proto\.rs$"
    r"|proptest-regressions|^docs/(benchmarks|library|onnx-ops)\.md$|^tests/fail/H0108\.hyp$"
)


def git(*args):
    return subprocess.run(["git", *args], check=True, capture_output=True, text=True).stdout


def files(args):
    if args == ["--all"]:
        return git("ls-files", "-z").split("\0")
    if args:
        base = args[0]
    else:
        known = subprocess.run(["git", "merge-base", "HEAD", "main"], capture_output=True, text=True)
        base = known.stdout.strip() or "HEAD~1"
    new = git("ls-files", "-z", "--others", "--exclude-standard")
    return (git("diff", "--name-only", "-z", "--diff-filter=d", base) + new).split("\0")


def unbreakable(line, limit):
    """An address that crosses the limit, with at most two words before it."""
    return " " not in line[limit:] and len(line[:limit].split()) <= 3 and "://" in line


def kinds(path, lines):
    """Each line with its kind: `prose`, `code`, or None for what may be as wide as it is."""
    fenced = docstring = False
    for line in lines:
        text = line.strip()
        if path.suffix == ".md" or path.name.endswith(".md.j2"):
            if text.startswith("```"):
                fenced = not fenced
            templated = path.suffix == ".j2" and ("{{" in line or "{%" in line or "{#" in line)
            stamp = text.startswith("*") and text.endswith(".*")
            yield None if text.startswith("|") or templated or stamp else "code" if fenced else "prose"
        elif path.suffix in C_LIKE:
            yield "prose" if text.startswith("//") else "code"
        elif path.suffix == ".j2":
            # What a placeholder becomes is what is wide.
            templated = "${" in line or "/*%" in line
            yield "prose" if text.startswith(("//#", "// ")) else None if templated else "code"
        elif path.suffix in (".py", ".sh", ".toml") or path.name == "x":
            quotes = text.count('"""') if path.suffix == ".py" else 0
            yield "prose" if docstring or quotes or text.startswith("#") else "code"
            docstring ^= quotes == 1
        else:
            yield None


def main(args):
    found = 0
    for name in filter(None, files(args)):
        path = Path(name)
        if GENERATED.search(name) or path.is_symlink() or not path.is_file():
            continue
        try:
            lines = path.read_text().split("\n")
        except UnicodeDecodeError:
            continue
        for number, (line, kind) in enumerate(zip(lines, kinds(path, lines)), 1):
            limit = {"prose": PROSE, "code": CODE}.get(kind)
            if limit and len(line) > limit and not unbreakable(line, limit):
                found += 1
                print(f"{name}:{number}: {len(line)} columns, {kind} has {limit}")
    if found:
        sys.exit(f"{found} lines are too wide")


if __name__ == "__main__":
    main(sys.argv[1:])
