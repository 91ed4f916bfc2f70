"""The pages' Python runs, and prints what the pages show."""

import re

import pytest
from support import ROOT

import hypatia_core as hyp

pytest.importorskip("torch")


def blocks(page, language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    return [text for kind, text in found if kind == language]


@pytest.mark.parametrize("page", ["docs/python.md", "README.md"])
def test_the_page_runs(page, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    hyp.reset_report()
    code = blocks(page, "python")
    assert code
    space: dict[str, object] = {}
    for block in code:
        exec(compile(block, page, "exec"), space)
    printed = capsys.readouterr().out
    if page == "docs/python.md":
        shown = blocks(page, "")
        assert shown[1].strip() in printed, "the report of verify"
        assert "launches           3          1  the steps" in printed, "what explain counts"
        assert shown[3].strip() in printed, "the table of fuse_"
