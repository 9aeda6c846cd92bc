"""The comparison with other libraries: its table is whole, and it judges as it says.

Nothing is timed here, and no peer needs to be installed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnreg.registry import KNOWN_PLUGINS
from tests.benchmarks.peers import report
from tests.benchmarks.peers.adapters import PEERS
from tests.benchmarks.peers.measuring import Spread, Times, difference, interleave, ratio
from tests.benchmarks.peers.ours import OURS, build
from tests.benchmarks.peers.setting import Setting
from tests.benchmarks.peers.table import Wanted
from tests.benchmarks.peers.targets import TARGETS

PINS = Path(__file__).parent / "benchmarks" / "peers.txt"


def test_the_table_covers_every_variant_of_the_project():
    assert {target.variant for target in TARGETS} == set(KNOWN_PLUGINS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.core}-{target.against[0]}")
def test_what_a_target_names_is_there(target):
    assert target.core in OURS
    assert set(target.against + target.beside) <= set(PEERS)
    assert target.against
    assert list(target.lengths) == sorted(set(target.lengths))
    assert min(target.forward, target.backward, target.memory) > 0
    for least, aim in zip((target.forward, target.backward), target.aim, strict=True):
        assert aim is None or aim > least


def test_ours_and_peers_have_names_of_their_own():
    assert not set(OURS) & set(PEERS)


def test_every_adapter_is_used_and_every_peer_is_pinned():
    used = {name for target in TARGETS for name in target.against + target.beside}
    assert used == set(PEERS)
    lines = PINS.read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[a-z-]+==[0-9.]+", pin)] == []
    needed = {adapter.distribution for adapter in PEERS.values()} - {"torch"}
    assert {pin.partition("==")[0] for pin in pins} == needed


@pytest.mark.parametrize("name", OURS)
def test_ours_run(name):
    setting = Setting(length=384, heads=2, head_dim=4)
    inputs = setting.inputs(3)
    output = build(name, setting)(*inputs)
    assert output.shape in (inputs[0].shape, inputs[0][:, :, -1:].shape)


def test_ratios_are_taken_within_a_round():
    seconds = {"slow": [4.0, 80.0, 6.0], "fast": [2.0, 20.0, 1.0]}  # a noisy second round
    times = Times(seconds, elsewhere=0.25)
    assert ratio(times, "slow", "fast") == (4.0, 3.0, 5.0, 0.25)
    assert difference(times, "slow", "fast") == (5.0, 3.5, 32.5, 0.25)


def test_every_round_calls_each_once_in_another_order():
    called = []
    calls = {name: lambda name=name: called.append(name) for name in "abc"}
    times = interleave(calls, seconds=0.0)
    assert {len(rounds) for rounds in times.seconds.values()} == {3}
    assert times.elsewhere >= 0
    firsts = [name for name, last in zip(called, [None, *called], strict=False) if name != last]
    assert "".join(firsts).endswith("bcacababc")


@pytest.mark.parametrize(
    ("median", "verdict"),
    [(2.9, "NOT REACHED"), (3.0, "pass, aim not reached"), (4.0, "pass")],
)
def test_speed_is_judged(median, verdict):
    found = Spread(median, median - 1, median + 1)
    row = report.speed("linear", "L=7", "forward", "a peer", found, 3.0, 4.0)
    assert row.verdict == verdict
    assert report.speed("linear", "L=7", "forward", "a peer", found, None).verdict == ""


@pytest.mark.parametrize(
    ("ours", "other", "least", "verdict"),
    [
        (5.0, 100.0, 20, "pass"),
        (5.1, 100.0, 20, "NOT REACHED"),
        (105.0, 100.0, 1, "pass"),
        (107.0, 100.0, 1, "NOT REACHED"),
        (0.0, 0.0, 1, "pass"),
    ],
)
def test_memory_is_judged(ours, other, least, verdict):
    row = report.memory("linear", "L=7", "memory", "a peer", ours, other, least)
    assert row.verdict == verdict


def test_the_summary_shows_the_worst_of_each_target():
    good, bad = (
        report.speed("linear", case, "forward", "a peer", Spread(x, x, x), 3.0)
        for case, x in (("L=7", 5.0), ("L=9", 2.0))
    )
    lost = report.failed("linear", "L=11", "a peer", "exit status 1")
    noisy = report.speed("linear", "L=8", "step", "itself", Spread(1.0, 1.0, 1.0, 0.5), None)
    text = report.summary([good, bad, lost, noisy])
    assert "L=9" in text
    assert "L=7" not in text
    assert "exit status 1" in text
    assert "1 of 3 targets reached; 1 rows were measured while others used" in text
    assert "50%" in str(noisy)


def test_what_is_asked_for_replaces_the_lengths_of_a_target():
    wanted = Wanted(Setting(0, heads=6))
    assert [one.length for one in wanted.settings((512, 2048))] == [512, 2048]
    assert [one.length for one in wanted._replace(quick=True).settings((512, 2048))] == [512]
    (one,) = wanted._replace(lengths=(100,), dtype="bfloat16").settings((512, 2048), causal=True)
    assert str(one) == "B=1 H=6 D=64, L=100, causal, bfloat16"
