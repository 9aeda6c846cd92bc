"""The benchmark as it runs: refusals, limits, processes of their own, the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

from attnreg import OptionError, UnknownVariant, Variant, get_variant, list_variants
from attnreg.benchmark import (
    Limits,
    Measurement,
    Report,
    Started,
    Step,
    Verdict,
    conforming,
    limits,
    plan,
    process,
    run,
    running,
)
from attnreg.benchmark.cell import make_call
from attnreg.cli import app
from attnreg.conformance import running as conformance_running
from tests.costly import BREAKS_LATER, FILLS, NO_GRADIENT, SLEEPS, SLEEPS_ONCE
from tests.hostile import ALLOCATES, DIES, EXITS, HANGS, RAISES

needs_plugins = pytest.mark.skipif(
    not {"linear", "linformer", "performer", "scaled_dot_product"} <= set(list_variants()),
    reason="not installed: plugins that are compared",
)
SMALL = {"heads": 1, "head_dim": 8, "seconds": 0.5, "repeat": 3, "against": None}


@pytest.fixture(autouse=True)
def _quick_limits(monkeypatch):
    found = Limits(1e9, "one", 1e9)
    monkeypatch.setattr(limits, "measure", lambda settings: found)


def measured(target, **how):
    """Run without asking for conformance; return the measurements by length."""
    report = Report.of(run(target, **{"unchecked": True, **SMALL, **how}))
    return {m.length: m for m in report.measurements}


def without_a_process(monkeypatch):
    """Let a run find that no process of its own can have the variant: it runs here alone."""

    def probe(*arguments):
        raise process.Uncontained("it is made of nothing")
        yield

    monkeypatch.setattr(running, "probe", probe)


# --- limits ---------------------------------------------------------------------------------------


def test_a_length_that_takes_too_much_memory_is_recorded_and_longer_ones_are_left_out():
    found = measured(FILLS, lengths="5,11,23,47,95", memory="30MiB", seconds=5)
    assert [m.status for m in found.values()] == ["ok", "ok", "ok", "memory", "memory"]
    assert [m.median is None for m in found.values()] == [False, False, False, True, True]
    mib = [m.peak_bytes / 2**20 for m in list(found.values())[:3]]
    assert mib == pytest.approx([5, 11, 23], abs=1.0)  # a MiB per position
    assert found[47].peak_bytes / 2**20 == pytest.approx(47, abs=1.0)
    assert found[47].reason.startswith("a call takes ")
    assert found[47].reason.endswith(" MiB, allowed are 30 MiB")
    assert found[95].reason == "not tried: length 47 failed already"


def test_a_length_that_takes_too_long_is_recorded_and_longer_ones_are_left_out():
    found = measured(SLEEPS, lengths="3,6,60,120")
    assert [m.status for m in found.values()] == ["ok", "ok", "time", "time"]
    assert found[6].median > 6 * 2e-3
    assert "allowed are 0.1 s" in found[60].reason
    assert found[60].peak_bytes is not None  # memory is measured, with more patience
    assert found[120].reason == "not tried: length 60 failed already"


def test_what_happens_once_does_not_count():
    found = measured(SLEEPS_ONCE, lengths="4")
    assert found[4].status == "ok"
    assert found[4].median < 0.4


@pytest.mark.parametrize(
    ("hostile", "status", "reason", "second"),
    [
        (DIES, "error", "its process ended: exit code 7", "not tried: length 8 failed already"),
        (HANGS, "time", "the first call did not end within 1 s", "not tried: length 8"),
        (ALLOCATES, "memory", "a call needs more memory than it may take", "not tried: length 8"),
        (RAISES, "error", "LookupError: no table for this length", "LookupError"),
        (EXITS, "error", "SystemExit: goodbye", "SystemExit: goodbye"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_hostile_variant_is_recorded_and_harms_nobody(
    hostile, status, reason, second, monkeypatch
):
    monkeypatch.setattr(process, "ONCE", 0.5)
    found = measured(hostile, lengths="8,16")
    assert [m.status for m in found.values()] == [status, status]
    assert found[8].reason.startswith(reason)
    assert found[16].reason.startswith(second)


def test_a_variant_that_fails_here_alone_is_recorded(monkeypatch):
    without_a_process(monkeypatch)
    (found,) = measured(BREAKS_LATER, lengths="8").values()
    assert (found.status, found.reason) == ("error", "ArithmeticError: worn out")


def test_what_no_process_can_import_is_timed_here_and_has_no_peak():
    class Local(torch.nn.Module):
        def __init__(self, dims):
            super().__init__()

        def forward(self, query, key, value, mask):
            time.sleep(2e-3 * query.shape[2])
            return value * 1.0

    local = Variant("local", Local, summary="of this test")
    found = measured(local, lengths="4,8,400,800")
    assert [m.status for m in found.values()] == ["ok", "ok", "time", "time"]
    assert found[4].peak_bytes is None
    assert found[4].peak_note.startswith("not measured: the variant cannot be had in a process")
    assert found[800].reason.startswith("not tried: ")


def test_where_proc_is_missing_the_peak_says_so(monkeypatch):
    from attnreg.benchmark import child

    monkeypatch.setattr(child, "STATUS", child.Path("/nowhere/status"))
    peak, note, taken = child.measure_peak(lambda: None, "cpu")
    assert (peak, taken >= 0.0) == (None, True)
    assert note.startswith("not measured:")


# --- what a run does ------------------------------------------------------------------------------


@needs_plugins
def test_a_run_yields_what_is_found_as_it_is_found(monkeypatch):
    without_a_process(monkeypatch)
    told = list(
        run(
            ["linear", "performer:eager"],
            lengths="8,16",
            modes="forward,backward",
            options={"features": 12, "linear.feature_map": "relu"},
            unchecked=True,
            **{**SMALL, "against": "sdpa"},
        )
    )
    assert isinstance(told[0], Started)
    assert [s.label for s in told[0].subjects] == ["linear", "performer:eager", "sdpa"]
    assert [dict(s.options) for s in told[0].subjects] == [
        {"feature_map": "relu"},
        {"features": 12},
        {},
    ]
    assert (told[0].against, told[0].cells) == ("sdpa", 12)
    verdicts = [one for one in told if isinstance(one, Verdict)]
    assert [(v.variant, v.verdict) for v in verdicts] == [
        ("linear", "not checked"),
        ("performer", "not checked"),
    ]
    found = [one for one in told if isinstance(one, Measurement)]
    cells = [(m.mode, m.length, m.subject) for m in found]
    assert cells == [
        (mode, length, name)
        for mode in ("forward", "backward")
        for length in (8, 16)
        for name in ("linear", "performer:eager", "sdpa")
    ]
    assert all(len(m.samples) == 3 for m in found)
    assert found[-1].implementation == "torch"
    assert found[-1].flops == 3.5 * 4 * 16 * 16 * 8
    steps = [one for one in told if isinstance(one, Step) and one.phase == "time"]
    assert steps[-1].done == steps[-1].total == 12
    assert all(json.dumps(vars(one), default=vars) for one in told)


@needs_plugins
def test_a_call_that_a_variant_cannot_do_is_refused_in_its_own_words(monkeypatch):
    found = measured("linformer", lengths="8", causal=True)
    assert found[8].status == "refused"
    assert "linformer cannot honour mask field 'causal'" in found[8].reason
    without_a_process(monkeypatch)
    (found,) = measured(NO_GRADIENT, lengths="8", modes="backward").values()
    assert (found.status, "has no gradient" in found.reason) == ("refused", True)


@needs_plugins
@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_what_is_measured(mode):
    settings = plan.Settings(lengths=(8,), heads=2, head_dim=4)
    (entrant,), _ = plan.entrants(["linformer"], None, [], {"rank": 3})
    module = entrant.target.build(settings, 8)
    inputs = running_inputs(settings, mode)
    found = make_call(module, inputs, settings, mode)()
    if mode == "forward":
        assert found.shape == inputs.query.shape
        assert not found.requires_grad
    else:  # as in training: of query, key, value and both projections
        assert len(found) == 5
        assert all(one.abs().sum() > 0 for one in found)
    assert all(p.grad is None for p in module.parameters())


def running_inputs(settings, mode):
    from attnreg.benchmark.cell import make_inputs

    return make_inputs(settings, mode, 8)


@needs_plugins
def test_torch_draws_what_it_would_have_drawn(monkeypatch):
    without_a_process(monkeypatch)
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    measured("linformer", lengths="8")
    assert torch.equal(torch.rand(3), expected)


# --- conformance ----------------------------------------------------------------------------------


@needs_plugins
def test_what_fails_conformance_is_not_timed():
    wrong = Verdict("linear", "nonconformant", ok=False, failed=("M-01", "N-01"))
    events = list(run("linear", lengths="8,16", checked={"linear": wrong}, **SMALL))
    report = Report.of(events)
    assert not report.ok
    assert report.verdicts == [wrong]
    assert [(m.status, m.median) for m in report.measurements] == [("refused", None)] * 2
    (reason,) = {m.reason for m in report.measurements}
    assert reason.startswith("not timed: linear is nonconformant: M-01, N-01 (attnreg check linear")
    assert "--unchecked" in reason


def test_the_verdict_is_that_of_the_fast_profile_and_asked_for_once(monkeypatch):
    asked = []
    real = conformance_running.stream

    def stream(target, **how):
        asked.append((target, how["profile"]))
        return real(target, checks=["P-01"], **how)

    monkeypatch.setattr(conformance_running, "stream", stream)
    without_a_process(monkeypatch)
    report = Report.of(run([RAISES, RAISES], lengths="8", modes="forward,backward", **SMALL))
    assert asked == [(RAISES, "fast")]
    (verdict,) = report.verdicts
    assert (verdict.variant, verdict.ok) == ("raises", False)
    assert {m.status for m in report.measurements} == {"refused"}


def test_a_refusal_names_a_few_checks():
    failed = tuple(f"X-{n:02}" for n in range(9))
    text = conforming.refusal(Verdict("toy", "nonconformant", ok=False, failed=failed))
    assert "X-00, X-01, X-02, X-03, X-04 and 4 more" in text


# --- an end to it ---------------------------------------------------------------------------------


def test_closing_a_run_ends_its_process_at_once(monkeypatch):
    children = []
    real = subprocess.Popen

    def popen(*arguments, **how):
        children.append(real(*arguments, **how))
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    events = run(HANGS, lengths="8", unchecked=True, **{**SMALL, "seconds": 60.0})
    for event in events:
        if isinstance(event, Step) and "the first call" in event.text:
            break
    (child,) = children
    assert child.poll() is None
    events.close()
    assert child.returncode is not None
    if os.name == "posix":
        assert child.returncode == -signal.SIGKILL  # it did not come to an end of its own
        with pytest.raises(ProcessLookupError):
            os.killpg(child.pid, 0)


# --- what is asked for wrongly --------------------------------------------------------------------


@needs_plugins
@pytest.mark.parametrize(
    ("asked", "how", "message"),
    [
        ([], {}, "name a variant to measure"),
        ([3], {}, "a name or a Variant, got int"),
        ("linear:fussed", {}, "linear has no implementation 'fussed'"),
        ("linear", {"against": "performer:fats"}, "performer has no implementation"),
        ("linear", {"options": {"featuremap": "relu"}}, "Did you mean 'feature_map'"),
        ("linear", {"options": {"performer.features": 3}}, "'performer', which is not measured"),
        ("linear", {"options": {"feature_map": "sine"}}, "linear: feature_map must be"),
        ("linear", {"options": {"linear.rank": 3}}, "linear has no option 'rank'"),
        ("linear", {"repeat": 2}, "repeat must be at least 3"),
        ("linear", {"seconds": 0.0}, "seconds must be positive"),
        ("linear", {"memory": 0}, "memory must be at least 1 MiB"),
        ("linear", {"heads": 0}, "heads must be from 1 to"),
        ("linear", {"batch": 10**21}, "batch must be from 1 to"),
        ("linear", {"seed": 10**21}, "seed must be from 0 to"),
        ("sdpa:fused", {}, "sdpa is torch's own and has no implementation 'fused'"),
        (
            ["linear", replace(get_variant("linear"), summary="mine")],
            {},
            "two variants are called 'linear'",
        ),
        ("linear", {"dtype": "int8"}, "dtype must be among float16"),
        ("linear", {"device": "abacus"}, "there is no device 'abacus'"),
        ("linear", {"device": "meta"}, "device meta computes nothing"),
        ("linear", {"lengths": []}, "no lengths are given"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_anything_runs(asked, how, message):
    with pytest.raises(OptionError, match=message):
        run(asked, **{**SMALL, **how})
    with pytest.raises(UnknownVariant, match="Did you mean 'linear'"):
        run("lienar")


@needs_plugins
def test_who_is_measured():
    def labels(*arguments):
        made, against = plan.entrants(*arguments, {})
        return [one.subject.label for one in made], against

    assert labels(["linear"], "auto", []) == (
        ["linear", "scaled_dot_product"],
        "scaled_dot_product",
    )
    assert labels(["scaled_dot_product", "linear", "linear"], "auto", ["auto"])[0] == [
        "scaled_dot_product",
        "linear",
    ]
    every, against = labels(["scaled_dot_product", "linear:eager"], "sdpa", ["all"])
    assert every == [
        "scaled_dot_product:fused",
        "scaled_dot_product:eager",
        "linear:eager",
        "sdpa",
    ]
    assert against == "sdpa"


# --- the command ----------------------------------------------------------------------------------

QUICK = ("--heads", "1", "--head-dim", "8", "--seconds", "0.5", "--repeat", "3", "--unchecked")


def call(*arguments):
    quiet = dict.fromkeys(("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"))
    return CliRunner(env=quiet).invoke(app, ["bench", *arguments])


@needs_plugins
def test_the_command_writes_what_it_measures(tmp_path, monkeypatch):
    without_a_process(monkeypatch)
    files = {kind: tmp_path / f"report.{kind}" for kind in ("json", "csv", "html")}
    written = [text for kind, path in files.items() for text in (f"--{kind}", str(path))]
    asked = ("performer", "--lengths", "8:32", "--mode", "forward,backward", "--causal")
    told = call(*asked, "--option", "features=12", *QUICK, *written)
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith("Not checked: nothing says that these results are right")
    assert "Growth with the length L" in told.stdout
    report = Report.from_json(files["json"].read_text(encoding="utf-8"))
    assert report.started.settings.lengths == (8, 16, 32)
    assert report.started.settings.causal
    assert {s.label: dict(s.options) for s in report.started.subjects} == {
        "performer": {"features": 12},
        "scaled_dot_product": {},
    }
    assert len(files["csv"].read_text(encoding="utf-8").splitlines()) == 1 + 12
    assert "Not checked" in files["html"].read_text(encoding="utf-8")
    printed = call(*asked, *QUICK, "--against", "none", "--json", "-")
    assert json.loads(printed.stdout)["started"]["against"] is None


@needs_plugins
def test_the_command_fails_where_conformance_does(monkeypatch):
    wrong = Verdict("linear", "nonconformant", ok=False, failed=("N-01",))
    real = run
    monkeypatch.setattr("attnreg.benchmark.run", partial(real, checked={"linear": wrong}))
    told = call("linear", "--lengths", "8", "--against", "none", *QUICK[:-1])
    assert told.exit_code == 1
    assert "not timed: linear is nonconformant: N-01" in told.stdout


@needs_plugins
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a variant, or give --all"),
        (("lienar",), "Did you mean 'linear'"),
        (("linear", "--lengths", "1k"), "write 512:65536 (doubling from first to last)"),
        (("linear", "--mode", "train"), "there is no mode 'train'"),
        (("linear", "--memory", "much"), "write 512MiB or 4GiB"),
        (("linear", "--implementation", "fast"), "linear has no implementation 'fast'"),
        (("linear", "--option", "feature_map"), "'feature_map' is not key=value"),
        (("linear", "--option", "featuremap=relu"), "Did you mean 'feature_map'"),
        (("linear", "--option", "feature_map=sine"), "linear: feature_map must be"),
        (("linear", "--option", "num_heads=3"), "none of"),
        (("linear", "--html", "nowhere/at/all.html"), "there is no folder nowhere/at"),
        (("linear", "--device", "abacus"), "there is no device 'abacus'"),
    ],
)
def test_the_command_teaches(arguments, message):
    told = call(*arguments, "--unchecked")
    assert told.exit_code == 2
    assert message in " ".join(told.stderr.replace("│", " ").split())


def test_help_imports_no_torch():
    program = (
        "import sys\n"
        "from attnreg.cli import app\n"
        "try:\n"
        "    app(['bench', '--help'], prog_name='attnreg')\n"
        "except SystemExit as done:\n"
        "    assert done.code == 0\n"
        "assert not {'torch', 'numpy', 'rich'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "forward and" in done.stdout
    assert "--unchecked" in done.stdout


def test_an_option_of_a_mistyped_variant_is_not_dropped():
    asked = ["bench", "linformer", "--lengths", "8", "--option", "linformer.rank=3"]
    found = CliRunner().invoke(app, [*asked, "--option", "lynformer.rank=4"])
    assert found.exit_code != 0
    assert "'lynformer', which is not measured" in " ".join(found.output.split())
