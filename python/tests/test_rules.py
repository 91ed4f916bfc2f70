"""Rules, scalars and their errors."""

import copy
import json
import pickle
import subprocess
import sys

import pytest
from support import ROOT

import hypatia_core as hyp

GATED = ROOT / "examples" / "rules" / "gated.hyp"
WRONG = ROOT / "tests" / "verify" / "wrong" / "bias_after_scale.hyp"


def test_files_and_texts_are_the_same():
    from_file = hyp.Rules.from_file(GATED)
    from_text = hyp.Rules.from_text(GATED.read_text(), "gated.hyp")
    assert from_file.rules == from_text.rules and "mine::both[add]" in from_file.rules
    assert list(from_file.scalars) == ["gate"] and from_file.scalars["gate"].startswith("A gate between")
    assert from_file != from_text and from_file == hyp.Rules.from_file(GATED)


def test_errors_are_the_reports_of_the_command():
    for text, code in [
        ("edition 1;\nuse core::*;\nscalar f(x) = 30 * tanh(y / 30);\n", "H0401"),
        ("edition 1;\nscalar f(x) = ;\n", "H01"),
    ]:
        with pytest.raises(hyp.RulesError) as error:
            hyp.Rules.from_text(text, "mine.hyp")
        report = str(error.value)
        assert f"error[{code}" in report and "mine.hyp:" in report and "1 error" in report
        found = error.value.diagnostics[0]
        assert found["code"].startswith(code) and found["file"] == "mine.hyp"
        again = pickle.loads(pickle.dumps(error.value))
        assert str(again) == report and again.diagnostics == error.value.diagnostics
    with pytest.raises(hyp.FileError, match=r"no\.hyp"):
        hyp.Rules.from_file("no.hyp")
    with pytest.raises(hyp.InputError):
        hyp.Rules.from_file()


def test_use_looks_in_the_folder_of_the_file(tmp_path):
    (tmp_path / "other.hyp").write_text("edition 1;\nuse core::*;\n/// Half.\nscalar half(x) = 0.5 * x;\n")
    (tmp_path / "main.hyp").write_text(
        "edition 1;\nuse core::*;\nuse other::*;\n/// A quarter.\nscalar quarter(x) = half(half(x));\n"
    )
    rules = hyp.Rules.from_file(tmp_path / "main.hyp")
    again = pickle.loads(pickle.dumps(rules))
    assert again == rules and again.scalar("quarter").body == rules.scalar("quarter").body
    assert sorted(n[0] for n in rules.scalar("quarter").body) == ["mul", "mul", "number", "param"]


def test_scalars():
    softcap = hyp.scalar("softcap", "30 * tanh(x / 30)", "Between -30 and 30.")
    assert softcap.rules.scalars == {"softcap": "Between -30 and 30."}
    for again in (pickle.loads(pickle.dumps(softcap)), copy.deepcopy(softcap)):
        assert again == softcap and hash(again) == hash(softcap) and again.body == softcap.body
    assert softcap != hyp.scalar("softcap", "20 * tanh(x / 20)")
    with pytest.raises(hyp.InputError, match="no scalar is called `nothing`"):
        hyp.Rules().scalar("nothing")
    with pytest.raises(hyp.InputError, match="`add` has 2 parameters"):
        hyp.Rules().scalar("add")
    with pytest.raises(hyp.RulesError, match="not a parameter"):
        hyp.scalar("bad", "tanh(z)")


def test_verify_finds_what_is_false_and_says_where():
    good = hyp.verify(hyp.Rules.from_file(GATED), cases=20)
    assert good and good.passed and not good.failures and len(good.entries) == 7
    bad = hyp.verify(hyp.Rules.from_file(WRONG), cases=20)
    assert not bad and bad.data["false"] == 1
    failure = bad.failures[0]
    assert failure.status == "false" and failure.name == "wrong::scale" and "differ" in failure.message
    assert "counterexample" in str(bad) and "<pre>" in bad._repr_html_()
    # The counterexample is a test that fails.
    text = WRONG.read_text() + failure.counterexample
    assert hyp.Rules.from_text(text).rules == hyp.Rules.from_file(WRONG).rules
    assert hyp.verify(hyp.Rules.from_file(WRONG), cases=20, seed=1).data["seed"] == 1
    with pytest.raises(hyp.InputError):
        hyp.verify(hyp.Rules(), cases=0)


def test_without_torch_everything_else_works():
    code = """
import sys
sys.modules["torch"] = None
import hypatia_core as hyp
assert hyp.verify(hyp.scalar("half", "0.5 * x").rules, cases=3)
assert hyp.Model("../tests/models/digits/model.onnx").explain().launches == (11, 4)
assert "nn" in dir(hyp)
for name in ("nn", "fuse_", "report"):
    try:
        getattr(hyp, name)
    except ImportError as error:
        assert "pip install 'hypatia-core[torch]'" in str(error), error
    else:
        raise AssertionError(name)
try:
    hyp.nothing
except AttributeError:
    print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "python", capture_output=True, text=True)
    assert done.stdout.strip() == "fine", done.stderr


def test_importing_does_not_import_torch():
    code = "import sys, hypatia_core; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "python", capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_json_of_a_report_is_that_of_the_command():
    data = hyp.verify(hyp.scalar("half", "0.5 * x").rules, cases=3).data
    assert data["schema"] == 1 and json.dumps(data)


def test_names_of_the_library_s_scalars_are_taken():
    for name in ("relu", "tanh", "gelu"):
        with pytest.raises(hyp.InputError, match=f"the library has a scalar `{name}` too"):
            hyp.scalar(name, "x * 2 + 7")
    with pytest.raises(hyp.InputError, match="declares g besides"):
        hyp.scalar("f", "x; scalar g(y) = y")


def test_what_takes_rules_or_a_model_says_so():
    for wrong in ("x", hyp.scalar("own", "x * 2"), None):
        with pytest.raises(hyp.InputError, match="verify takes Rules"):
            hyp.verify(wrong)
    with pytest.raises(hyp.InputError, match="explain takes a `Model` or a fused layer, not str"):
        hyp.explain("model.onnx")


def test_arguments_of_other_types_are_named():
    rules = hyp.Rules()
    for wrong in ({"cases": "10"}, {"cases": 1.5}, {"cases": 0}, {"cases": True}, {"cases": 2_000_000}):
        with pytest.raises(hyp.InputError, match="verify: cases is a whole number from 1 to 1000000, not"):
            hyp.verify(rules, **wrong)
    for wrong in (-1, "0", 2**64):
        with pytest.raises(hyp.InputError, match="verify: seed is a whole number from 0"):
            rules.verify(seed=wrong)
    with pytest.raises(hyp.InputError, match=r"takes the text of a \.hyp file as a str, not 3"):
        hyp.Rules.from_text(3)
    with pytest.raises(hyp.InputError, match="takes a name as a str, not None"):
        hyp.Rules.from_text("edition 1;", None)
    with pytest.raises(hyp.InputError, match=r"takes each path as an argument, .*, not \['a.hyp'\]"):
        hyp.Rules.from_file(["a.hyp"])
