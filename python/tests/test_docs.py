"""The pages' Python runs, and prints what the pages show."""

import re

import pytest
from support import ROOT

import hypatia_core as hyp

torch = pytest.importorskip("torch")
from hypatia_core.backend import backend  # noqa: E402


def blocks(page, language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    return [text for kind, text in found if kind == language]


@pytest.mark.parametrize("page", ["docs/python.md", "docs/pytorch.md", "README.md"])
def test_the_page_runs(page, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    hyp.reset_report()
    code = blocks(page, "python")
    assert code
    # The name is registered where the package is installed.
    space: dict[str, object] = {}
    if "hypatia" not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(backend, "hypatia")
    for block in code:
        exec(compile(block, page, "exec"), space)
    printed = capsys.readouterr().out
    if page == "docs/pytorch.md":
        shown = blocks(page, "")
        assert shown[1].strip() in printed, "the report of verify"
        assert "launches           3          1  the steps" in printed, "what explain counts"
        assert shown[3].strip() in printed, "the table of fuse_"
        # Times differ, and with them which side computes.
        head, row, *_ = shown[4].splitlines()
        assert head in printed, "the head of the report of calls"
        assert row[: row.index("hypatia")] in printed, "its rows"
