"""The suite's machinery: verdicts, waivers, evidence, containment, reports, its front doors."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import attnreg
from attnreg import Capabilities, Check, OptionError, Variant, conformance, process
from attnreg.cli import app
from attnreg.conformance import Case, Failure, Result
from attnreg.conformance.checks import built_in
from attnreg.conformance.judging import judge, select
from attnreg.conformance.settings import candidates
from tests.hostile import ALLOCATES, DIES, EXITS, HANGS, PRINTS, RAISES
from tests.right_variants import RIGHT

ROOT = Path(__file__).parent.parent
LINEAR = attnreg.get_variant("linear")


class Halved(torch.nn.Module):
    """A wrong attention: half of what it should be."""

    capabilities = Capabilities(cross=True)

    def __init__(self, dims, *, level: float = 1.0):
        super().__init__()

    def forward(self, query, key, value, mask):
        return 0.5 * (query @ key.mT).softmax(-1).to(value.dtype) @ value.to(value.dtype)


def doubled(module, query, key, value, visible, bias, query_position, key_position):
    scores = query @ key.swapaxes(-1, -2)
    weights = torch.from_numpy(scores).softmax(-1).numpy()
    return weights @ value


HALVED = Variant("halved", Halved, summary="half of it", reference=doubled)


def law(case):
    case.holds(case.variant.name == "linear", "this is not linear", measured=2.0)


def _other(value):
    """Something else of the same kind as a setting."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, tuple):
        return (_other(value[0]), *value[1:])
    others = {"highest": "high", "none": "tf32", torch.float32: torch.float64}
    return others[value]


TIDIED = {
    name: state
    for name, state in process.FLAGS.items()
    if state.put is not None
    and name not in ("torch's default device", "NumPy's handling of errors")
}


@pytest.mark.parametrize("name", TIDIED)
def test_a_check_puts_back_what_a_variant_sets(name):
    state = TIDIED[name]
    before = state.look()

    def meddles(case):
        state.put(_other(before))
        case.holds(state.look() != before, "it cannot be set")

    result = judge(Case(LINEAR, full=False), Check("acme-flag", meddles))
    assert (result.status, state.look()) == ("pass", before)


def test_a_check_puts_back_device_draws_and_errors():
    before = process.read({**process.FLAGS, **process.DRAWS})

    def meddles(case):
        torch.set_default_device("meta")
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        np.seterr(all="raise")
        case.holds(
            len(process.changed(before, process.read({**process.FLAGS, **process.DRAWS}))) == 5, ""
        )

    assert judge(Case(LINEAR, full=False), Check("acme-draws", meddles)).status == "pass"
    assert not process.changed(before, process.read({**process.FLAGS, **process.DRAWS}))


# ---------------------------------------------------------------------------------------------
# Verdicts
# ---------------------------------------------------------------------------------------------


def report(*results):
    return conformance.Report("toy", tuple(Result(*one) for one in results))


@pytest.mark.parametrize(
    ("results", "ok", "verdict"),
    [
        ([], False, "not run"),
        ([("N-01", "skip", "required")], False, "not run"),
        ([("N-01", "pass", "claimed")], False, "incomplete"),
        ([("N-01", "pass", "required")], True, "conformant"),
        ([("N-01", "pass", "required"), ("Q-01", "fail", "claimed")], False, "partial"),
        ([("N-01", "pass", "required"), ("Q-01", "error", "claimed")], False, "nonconformant"),
        ([("N-01", "pass", "required"), ("N-02", "fail", "required")], False, "nonconformant"),
        ([("N-01", "pass", "required"), ("G-03", "fail", "quality")], True, "conformant"),
        ([("N-01", "pass", "required"), ("G-03", "error", "quality")], False, "nonconformant"),
        ([("N-01", "pass", "required"), ("N-02", "xfail", "required")], True, "conformant"),
    ],
)
def test_verdicts(results, ok, verdict):
    made = report(*results)
    assert made.ok is ok
    assert made.verdict == verdict


def test_a_check_that_compares_nothing_is_an_error():
    case = Case(LINEAR)
    silent = replace(built_in()["N-01"], law=lambda case: None)
    silent.law.__module__ = "attnreg.conformance.checks.nothing"
    assert judge(case, silent).status == "error"


def test_a_law_may_be_plain_python():
    def plain(case):
        assert case.variant.name == "other", "another was wanted"

    def broken(case):
        raise LookupError("no table")

    case = Case(LINEAR)
    assert judge(case, Check("Y-1", plain)).message.startswith("another was wanted")
    assert judge(case, Check("Y-1", plain)).status == "fail"
    assert judge(case, Check("Y-2", broken)).status == "error"
    assert judge(case, Check("Y-3", law)).status == "pass"
    assert judge(case, Check("Y-3", law, variants=("cosine",))).status == "skip"
    assert judge(case, Check("Y-3", law, needs=("bias",))).message == (
        "capability 'bias' is not declared"
    )
    assert judge(case, Check("Y-3", law, needs=("biass",))).status == "error"
    for wrong in ({"level": "must"}, {"needs": "bias"}, {"variants": "linear"}, {"id": ""}):
        with pytest.raises(OptionError):
            Check(**{"id": "Y-4", "law": law, **wrong})


# ---------------------------------------------------------------------------------------------
# Known failures
# ---------------------------------------------------------------------------------------------


def test_known_failures_are_strict():
    known = {"G-01": "the gradient is an estimate"}
    fails = Check("G-01", lambda case: case.holds(False, "no"))
    passes = Check("G-01", lambda case: case.holds(True, "yes"))
    absent = Check("G-01", law, needs=("bias",))
    case = Case(LINEAR)
    assert judge(case, fails, known).status == "xfail"
    assert judge(case, fails, known).evidence["reason"] == known["G-01"]
    assert judge(case, passes, known).status == "fail"
    assert "remove it" in judge(case, passes, known).message
    assert judge(case, absent, known).status == "skip"  # no such device, say
    graded = Check("G-01", passes.law, level="quality")
    assert judge(case, graded, known).status == "error"  # a failed grade would block nothing


def test_some_checks_can_never_be_waived():
    assert set(built_in()) >= conformance.NEVER_WAIVED
    wrong = replace(HALVED, known_failures={"N-01": "it is only half"})
    made = conformance.run(wrong, checks=["N-01"], contain=False)
    assert made["N-01"].status == "fail"
    assert "never be waived" in made["N-01"].message
    right = conformance.run("linear", checks=["N-01"], known_failures={"N-01": "?"}, contain=False)
    assert not right.ok


def test_a_waiver_of_no_check_is_an_error():
    made = conformance.run(
        "linear", checks=["N-01"], known_failures={"NN-01": "typo"}, contain=False
    )
    assert made["NN-01"].status == "error"
    assert "Did you mean 'N-01'" in made["NN-01"].message
    assert not made.ok


# ---------------------------------------------------------------------------------------------
# Evidence
# ---------------------------------------------------------------------------------------------


def test_a_failure_shows_the_smallest_call_and_code_that_reproduces_it():
    made = conformance.run(HALVED, checks=["N-01"], contain=False)
    evidence = made["N-01"].evidence
    call = evidence["call"]
    assert (call["batch"], call["heads"], call["keys"], call["head_dim"]) == (1, 1, 1, 1)
    assert call["options"] == {}
    # The values were rounded; with one key the output is half the value.
    assert evidence["actual"][0][0][0][0] == evidence["expected"][0][0][0][0] / 2
    printed = run_code(evidence["snippet"])
    largest = float(printed.split("largest difference")[1].split("(")[1].split(",")[0])
    assert largest == abs(evidence["actual"][0][0][0][0])


def run_code(code):
    """Run a snippet as pasted into a fresh interpreter; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_snippet_spells_out_parameters_masks_and_odd_values():
    case = Case(attnreg.get_variant("additive"))

    def probe(trial):
        _, key, _ = trial.inputs
        trial.close(trial.run(key=key.masked_fill(key > 9, torch.nan)), trial.reference() + 1)

    with pytest.raises(Failure) as caught:
        case.each(probe, case.samples(masks=["causal-padding", "bias-causal"]))
    snippet = caught.value.evidence["snippet"]
    assert "load_state_dict" in snippet
    assert "largest difference tensor(1." in run_code(snippet)


def test_evidence_is_plain_data_of_limited_size():
    def wide(case):
        found = torch.full((1000,), torch.nan)
        case.close(found, torch.zeros(1000), 0.1, "wide")

    found = judge(Case(LINEAR), Check("Y-5", wide)).evidence
    assert found["actual_shape"] == [1000]
    assert len(found["actual"]) == 64
    json.dumps(dict(found), allow_nan=False)


# ---------------------------------------------------------------------------------------------
# Settings
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", attnreg.list_variants())
def test_every_option_moves_and_reaches_its_bounds(name):
    variant = attnreg.get_variant(name)
    settings = Case(variant, full=True).settings
    assert settings.stuck == ()
    assert settings.all[0].options == {}
    for option in variant.options:
        seen = [s.options[option.name] for s in settings.all if option.name in s.options]
        assert seen, option.name
        assert all(value != option.default or type(value) is bool for value in seen)
        if option.choices:
            assert set(seen) | {option.default} == set(option.choices)
        low = option.minimum
        if low is not None and not option.open_minimum and low != option.default:
            assert low in seen, option.name


def test_candidates_follow_the_type():
    table = {one.name: [v for v, _ in candidates(one)] for one in RIGHT[5].options}
    assert table["power"] == [3, 1]
    assert 1 not in table["groups"]
    assert 8 in table["groups"]


# ---------------------------------------------------------------------------------------------
# Containment
# ---------------------------------------------------------------------------------------------


def test_a_crash_a_hang_and_a_huge_allocation_are_contained():
    for variant, words in ((DIES, "exit code 7"), (EXITS, "SystemExit"), (ALLOCATES, "memory")):
        made = conformance.run(variant, checks=["N-01"])
        assert made.contained
        assert made["N-01"].status == "error", made
        assert words in made["N-01"].message.lower() or words in made["N-01"].message
    assert conformance.run(RAISES, checks=["N-01"])["N-01"].status == "fail"


def test_a_hang_is_stopped_and_what_is_left_is_not_tried():
    started = time.monotonic()
    made = conformance.run(HANGS, checks=["N", "M"], seconds=1.0)
    assert time.monotonic() - started < 60
    assert {r.status for r in made.results} <= {"error", "skip"}
    assert "did not end within 1 s" in str(made)
    assert "not tried" in str(made)


def test_what_a_plugin_prints_is_not_taken_for_an_answer():
    made = conformance.run(PRINTS, checks=["N-01"])
    assert made.contained
    assert made["N-01"].status == "pass"


def test_a_variant_that_no_process_can_import_runs_here():
    class Local(Halved):
        pass

    made = conformance.run(Variant("local", Local, summary="local"), checks=["N-01"])
    assert made.contained is False
    assert made["N-01"].status == "skip"


def test_a_replaced_variant_is_carried_to_the_other_process():
    moved = replace(HALVED, name="other", known_failures={"Q-01": "no"})
    made = conformance.run(moved, checks=["N-01"])
    assert made.contained
    assert made["N-01"].status == "fail"


# ---------------------------------------------------------------------------------------------
# Front doors
# ---------------------------------------------------------------------------------------------


def test_a_stream_yields_results_as_they_come():
    results = conformance.stream("linear", checks=["N-01", "R-00"], contain=False)
    assert results.total == 2
    assert [r.check for r in results] == ["N-01", "R-00"]


def test_a_stream_that_is_left_stops_its_process():
    results = iter(conformance.stream("linear", profile="fast"))
    assert next(results).status == "pass"
    results.close()


def test_what_run_refuses():
    for arguments, message in (
        ({"checks": ["N-1"]}, "there is no check 'N-1'"),
        ({"checks": "N-01"}, "must be a list"),
        ({"profile": "slow"}, "'full' or 'fast'"),
    ):
        with pytest.raises(OptionError, match=message):
            conformance.run("linear", **arguments)
    with pytest.raises(attnreg.DtypeError, match="dtypes must be among"):
        conformance.run("linear", dtypes=["int8"])
    with pytest.raises(attnreg.UnknownVariant):
        conformance.run("nothing")
    assert [c.id for c in select(built_in(), ["N-01"], True)] == ["N-01"]
    none = conformance.run(RIGHT[1], dtypes=["float64"], contain=False)
    assert not none.ok
    assert none.verdict == "not run"


def test_reports_in_every_form():
    made = conformance.run(HALVED, checks=["N-01", "R-00"], contain=False)
    data = json.loads(made.to_json())
    assert data["verdict"] == "nonconformant"
    assert data["environment"]["torch"] == torch.__version__
    assert {r["check"] for r in data["results"]} == {"N-01", "R-00"}
    suite = ElementTree.fromstring(made.to_junit())[0]
    assert suite.attrib["tests"] == "2"
    assert suite.attrib["failures"] == "1"
    assert "load" not in suite[0].attrib["name"]
    markdown = made.to_markdown()
    assert "| N-01 | required | fail |" in markdown
    assert "```python" in markdown
    assert "halved: nonconformant" in str(made)


def test_the_command(tmp_path):
    files = [tmp_path / name for name in ("r.json", "r.xml", "r.md")]
    flags = [*zip(("--json", "--junit", "--markdown"), map(str, files), strict=True)]
    arguments = ["check", "linear", "cosine", "--only", "N-01", "--profile", "fast"]
    done = CliRunner().invoke(app, [*arguments, *(x for pair in flags for x in pair)])
    assert done.exit_code == 0, done.output
    assert "linear: conformant (1 pass" in done.output
    assert [r["variant"] for r in json.loads(files[0].read_text())] == ["linear", "cosine"]
    assert len(ElementTree.fromstring(files[1].read_text())) == 2
    assert files[2].read_text().count("# ") >= 2
    listed = CliRunner().invoke(app, ["check", "--laws"])
    assert all(name in listed.output for name in built_in())
    for wrong in ([], ["nothing"], ["linear", "--only", "Z"], ["linear", "--device", "abacus"]):
        assert CliRunner().invoke(app, ["check", *wrong]).exit_code == 2


def test_the_command_fails_where_a_check_fails(monkeypatch):
    variant = replace(HALVED, name="linear")
    monkeypatch.setattr("attnreg.conformance.running.get_variant", lambda name: variant)
    monkeypatch.setattr("attnreg.conformance.running.pack", lambda variant: None)
    made = conformance.run(variant, checks=["N-01"], contain=False)
    assert not made.ok


def test_in_pytest(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "from attnreg.conformance import pytest_suite\n"
        "from tests.test_conformance import HALVED\n"
        "test_conformance = pytest_suite(HALVED)\n"
        "test_linear = pytest_suite('linear')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "N-01", "-p", "no:cacheprovider", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "load_state_dict" in done.stdout or "attnreg.create" in done.stdout
