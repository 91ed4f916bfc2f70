"""What tools/publish.sh runs: checks and publishes the crates of the workspace.

A crate that compiles here may not compile as it is published: a file that it includes may lie
outside of its folder, or be left out of the package. So this compares what the sources include with
what cargo would pack. Only test code may include files of other crates.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

LICENCES = ("LICENSE-APACHE", "LICENSE-MIT")
# Data that crates embed: all of it in a crate's folder must be in its package.
DATA = (".hyp", ".j2", ".pest", ".h")
INCLUDED = re.compile(r'include(?:_str|_bytes)?!\(\s*"([^"]+)"\s*\)')
FROM_ROOT = re.compile(r'concat!\(\s*env!\("CARGO_MANIFEST_DIR"\),\s*"/([^"]+)"')
GRAMMAR = re.compile(r'#\[grammar\s*=\s*"([^"]+)"')
TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([a-z ]+\))? )?mod (\w+)\s*([;{])")


def cargo(*args):
    done = subprocess.run(["cargo", *args], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"cargo {' '.join(args)}:\n{done.stderr}")
    return done.stdout


def in_order(crates):
    """The crates, each after those that it needs. Dev-dependencies do not count: cargo drops those
    without a version."""
    order, problems = [], []

    def visit(name, path):
        if name in path:
            sys.exit(f"the crates depend on each other in a circle: {' -> '.join([*path, name])}")
        if name not in order:
            for d in crates[name]["dependencies"]:
                if d["name"] in crates and d["kind"] != "dev":
                    visit(d["name"], [*path, name])
            order.append(name)

    for name in sorted(crates):
        visit(name, [])
    for name in order:
        for d in crates[name]["dependencies"]:
            later = d["name"] in crates and order.index(d["name"]) >= order.index(name)
            if d["kind"] == "dev" and later and d["req"] != "*":
                what = f"the dev-dependency {d['name']} is published later: give its path without a version"
                problems.append(f"{name}: {what}")
    return order, problems


def modules_of_tests(folder, sources):
    """Files that only tests compile: modules behind `#[cfg(test)]`, and those below them."""
    roots = []
    for source in sources:
        text = (folder / source).read_text()
        own = source.parent if source.name in ("lib.rs", "main.rs", "mod.rs") else source.with_suffix("")
        for m in TEST_MODULE.finditer(text):
            if m.group(2) == ";":
                named = re.findall(r'#\[path\s*=\s*"([^"]+)"', m.group(0))
                roots += [source.parent / n for n in named] or [own / m.group(1)]
    below = lambda s, r: s == r or s == r.with_suffix(".rs") or r in s.parents
    outside = [s for s in sources if s.parts[0] in ("tests", "benches", "examples")]
    return {s for s in sources for r in roots if below(s, r)} | set(outside)


def included(folder, source):
    """The files that a source includes outside of inline test modules, relative to the crate."""
    text = (folder / source).read_text()
    inline = [m.start() for m in TEST_MODULE.finditer(text) if m.group(2) == "{"]
    text = text[: min(inline, default=len(text))]
    text = re.sub(r"^\s*//.*$", "", text, flags=re.M)
    # `cfg(test)` on a single item.
    text = re.sub(r"#\[cfg\(test\)\][^{;]*(?:=[^;]*;|\{.*?\n\s*\}\n)", "", text, flags=re.S)
    beside = [source.parent / p for p in INCLUDED.findall(text)]
    # A derived parser looks for its grammar in `src`.
    grammars = [Path("src") / p for p in GRAMMAR.findall(text)]
    return [Path(os.path.normpath(p)) for p in beside + grammars + [Path(p) for p in FROM_ROOT.findall(text)]]


def nested(folder, crates):
    return [Path(c["manifest_path"]).parent for c in crates if Path(c["manifest_path"]).parent != folder]


def problems_of(crate, packages):
    name, folder = crate["name"], Path(crate["manifest_path"]).parent
    listed = {Path(line) for line in cargo("package", "--list", "--allow-dirty", "-p", name).splitlines()}
    wanted = ("description", "license", "repository", "keywords", "categories", "readme")
    problems = [f"no {key} in Cargo.toml" for key in wanted if not crate[key]]
    if len(crate["keywords"]) > 5:
        problems.append("more than five keywords")
    missing = [f for f in LICENCES if Path(f) not in listed]
    problems += [f"{f} is not in the package: run tools/publish.sh --prepare" for f in missing]
    if crate["readme"]:
        if not (folder / crate["readme"]).is_file():
            problems.append(f"the readme {crate['readme']} does not exist")
        elif Path(crate["readme"]).name not in {p.name for p in listed}:
            problems.append(f"the readme {crate['readme']} is not in the package")
    sources = sorted(p for p in listed if p.suffix == ".rs" and (folder / p).is_file())
    tests = modules_of_tests(folder, sources)
    for source in sources:
        if source not in tests:
            lost = [p for p in included(folder, source) if p not in listed]
            problems += [f"{source} includes {p}, which is not in the package" for p in lost]
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=folder, capture_output=True, text=True).stdout.split("\0")
    others = [p for p in nested(folder, packages) if folder in p.parents]
    for file in map(Path, filter(None, tracked)):
        if file.suffix in DATA and file not in listed and not any(o in (folder / file).parents for o in others):
            problems.append(f"{file} is not in the package")
    for dependency in crate["dependencies"]:
        if dependency.get("path") and dependency["kind"] != "dev" and dependency["req"] == "*":
            problems.append(f"the dependency {dependency['name']} has no version")
    return [f"{name}: {p}" for p in problems], len(listed)


def main(args):
    packages = json.loads(cargo("metadata", "--no-deps", "--format-version", "1"))["packages"]
    crates = {p["name"]: p for p in packages if p["publish"] != []}
    if args[:1] == ["--prepare"]:
        for crate in crates.values():
            folder = Path(crate["manifest_path"]).parent
            for licence in LICENCES:
                if not (folder / licence).exists():
                    (folder / licence).symlink_to(os.path.relpath(licence, folder))
        return
    if args and args[0] not in ("--dry-run", "--execute"):
        sys.exit("usage: tools/publish.sh [--dry-run | --prepare | --execute [CRATE]]")
    order, problems = in_order(crates)
    for name in order:
        found, files = problems_of(crates[name], packages)
        problems += found
        print(f"{name} {crates[name]['version']}: {files} files{', ' + str(len(found)) + ' findings' if found else ''}")
    if problems:
        sys.exit("\n".join(problems))
    if args[:1] != ["--execute"]:
        print("nothing is missing; `tools/publish.sh --execute` publishes in this order")
        return
    begin = order.index(args[1]) if args[1:] else 0
    for name in order[begin:]:
        # cargo waits until the registry has the crate, which the next one may depend on.
        subprocess.run(["cargo", "publish", "-p", name], check=True)


main(sys.argv[1:])
