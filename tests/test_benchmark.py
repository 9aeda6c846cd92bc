"""The benchmark's rules, on numbers that are known: nothing is timed here."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from attnreg import OptionError
from attnreg.benchmark import (
    Limits,
    Machine,
    Measurement,
    Report,
    Settings,
    Started,
    Step,
    Subject,
    Verdict,
)
from attnreg.benchmark.budget import Budget, Probe, continued, foreseen, judged, size
from attnreg.benchmark.growth import crossover, fit, longer_half
from attnreg.benchmark.plot import Point, Series, chart, ticks
from attnreg.benchmark.ratio import compare
from attnreg.benchmark.reading import read_bytes, read_lengths, read_modes
from attnreg.benchmark.tables import UNCHECKED, seconds
from attnreg.benchmark.timing import CALLS, FEWEST, Race, TooSlow, order, quartiles

SETTINGS = Settings(lengths=(64, 128, 256), seconds=2.0, memory=2**20)
BUDGET = Budget.here(SETTINGS)
MACHINE = Machine("0.1", "2", "3", "an <os>", "a <processor>", 4)
LIMITS = Limits(1e9, "8 x 8 x 8", 1e8)


# --- what a person types --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("512:4096", (512, 1024, 2048, 4096)),
        ("500:3000", (500, 1000, 2000, 3000)),
        ("7", (7,)),
        (" 2047, 1000,1000 ", (1000, 2047)),
        ("8:16, 100", (8, 16, 100)),
        ([30, 10], (10, 30)),
    ],
)
def test_lengths(text, lengths):
    assert read_lengths(text) == lengths


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no length; write 512:65536"),
        ("1k", "'1k' is no length"),
        ("1:2:3", "'1:2:3' is no length"),
        ("0:8", "between 1 and 16777216"),
        ("99999999", "between 1 and 16777216"),
        ("8:4", "from the shorter to the longer: 4:8"),
    ],
)
def test_lengths_that_are_none(text, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        read_lengths(text)


def test_modes():
    assert read_modes("backward, forward,backward") == ("backward", "forward")
    with pytest.raises(OptionError, match=r"Did you mean 'forward'.*forward and backward together"):
        read_modes("forwards")


@pytest.mark.parametrize(
    ("text", "count"), [("4GiB", 2**32), ("1.5 m", 3 * 2**19), ("7kb", 7168), ("12", 12)]
)
def test_sizes(text, count):
    assert read_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "4 parsecs"])
def test_sizes_that_are_none(text):
    with pytest.raises(OptionError, match="write 512MiB or 4GiB"):
        read_bytes(text)


def test_quantities_are_written_for_people():
    assert [size(n) for n in (0, 1023, 1024, 3 * 2**29)] == [
        "0 B",
        "1.02e+03 B",
        "1 KiB",
        "1.5 GiB",
    ]
    assert [seconds(s) for s in (2.5, 0.0125, 3.2e-5)] == ["2.5 s", "12.5 ms", "32 µs"]


# --- order, samples -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_each_comes_at_every_place_equally_often(count):
    names = [f"n{i}" for i in range(count)]
    rounds = [order(names, r) for r in range(2 * count)]
    assert all(sorted(one) == names for one in rounds)
    for place in range(count):
        at = [one[place] for one in rounds]
        assert {name: at.count(name) for name in names} == dict.fromkeys(names, 2)


@pytest.mark.parametrize("count", [2, 3, 4, 7, 10])
def test_each_comes_right_behind_every_other_equally_often(count):
    names = list(range(count))
    rounds = [order(names, r) for r in range(2 * count)]
    behind = [pair for one in rounds for pair in pairwise(one)]
    assert {behind.count((a, b)) for a in names for b in names if a != b} == {2}


class Clock:
    """A clock that calls move on."""

    def __init__(self):
        self.now = 0.0
        self.seen = []

    def __call__(self):
        return self.now

    def call(self, name, taken, last=10**6, first=()):
        before = list(first)

        def go():
            self.seen.append(name)
            self.now += before.pop(0) if before else taken
            if self.seen.count(name) > last:
                raise ArithmeticError("worn out")

        return go


def race(clock, calls, **how):
    made = Race(lambda: None, clock=clock, **{"repeat": 6, "seconds": 100.0, **how})
    for name, call in calls.items():
        made.enter(name, call)
    return made, list(made.rounds())


def test_a_race_interleaves_after_two_calls_to_warm_up():
    clock = Clock()
    calls = {name: clock.call(name, taken) for name, taken in (("a", 1.0), ("b", 2.0))}
    made, rounds = race(clock, calls)
    assert rounds == [1, 2, 3, 4, 5, 6]
    assert clock.seen[:4] == ["a", "a", "b", "b"]
    assert clock.seen[4:] == [*"ab", *"ba", *"ba", *"ab", *"ab", *"ba"]  # turned, turned around
    assert made.samples == {"a": [1.0] * 6, "b": [2.0] * 6}


def test_the_slowest_says_how_many_rounds_fit():
    clock = Clock()
    calls = {name: clock.call(name, taken) for name, taken in (("a", 0.1), ("b", 10.0))}
    assert len(race(clock, calls, repeat=50, seconds=90.0)[1]) == 7
    assert len(race(clock, calls, repeat=50, seconds=50.0)[1]) == FEWEST


def test_a_call_that_is_too_slow_twice_is_not_raced():
    clock = Clock()
    with pytest.raises(TooSlow, match=r"a call takes 1.1 s"):
        race(clock, {"a": clock.call("a", 1.2, first=(9.0, 1.1))}, seconds=5.0)
    disturbed = clock.call("a", 0.5, first=(9.0, 9.0))
    assert len(race(clock, {"a": disturbed}, seconds=5.0)[1]) == 6


def test_a_short_call_is_repeated_within_a_sample():
    clock = Clock()
    made, _ = race(clock, {"a": clock.call("a", 2**-9)}, repeat=3)
    assert len(clock.seen) == 2 + 3 * 5
    assert made.samples["a"] == [2**-9] * 3


def test_one_that_falls_leaves_the_others_running():
    clock = Clock()
    made, rounds = race(clock, {"a": clock.call("a", 1.0, last=4), "b": clock.call("b", 1.0)})
    assert len(rounds) == 6
    assert list(made.samples) == ["b"]
    assert len(made.samples["b"]) == 6
    assert str(made.fallen["a"]) == "worn out"


def test_quartiles():
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert quartiles([4.0, 0.0, 1.0, 3.0, 2.0]) == (1.0, 2.0, 3.0)


# --- ratios ---------------------------------------------------------------------------------------


def measured(subject="a", length=64, samples=(1.0, 2.0, 3.0), mode="forward", **more):
    low, middle, high = quartiles(samples)
    return Measurement(
        subject,
        mode,
        length,
        "ok",
        samples=tuple(samples),
        median=middle,
        spread=high - low,
        **more,
    )


def test_ratios_are_of_pairs_and_so_blind_to_what_slows_both():
    noise = (1.0, 5.0, 1.2, 30.0, 1.1)
    other = measured("b", samples=noise, peak_bytes=200)
    one = measured("a", samples=[1.5 * n for n in noise], peak_bytes=100)
    ratio = compare(one, other)
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))
    assert ratio.verdict == "slower"
    assert ratio.memory == 0.5
    assert compare(other, one).verdict == "faster"


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ((1.0, 1.0, 1.0), "inconclusive"),
        ((0.9, 1.05, 1.3), "inconclusive"),
        ((1.4, 1.5, 1.6), "slower"),
        ((0.2, 0.3, 0.35), "faster"),
        ((0.8, 2.0, 3.2), "inconclusive"),  # of so few the extremes count
        ((0.8, *[1.9, 2.0, 2.1] * 3, 3.2), "slower"),
    ],
)
def test_a_difference_smaller_than_the_spread_is_inconclusive_both_ways(pairs, verdict):
    one, other = measured(samples=pairs), measured("b", samples=[1.0] * len(pairs))
    assert compare(one, other).verdict == verdict
    turned = {"faster": "slower", "slower": "faster"}.get(verdict, verdict)
    assert compare(other, one).verdict == turned


def test_without_a_time_there_is_no_ratio():
    assert compare(measured(), Measurement("b", "forward", 64, "memory")) is None


# --- growth and crossover -------------------------------------------------------------------------


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0])
def test_the_exponent_of_a_power_law_is_found(power):
    points = {n: 3e-4 * n**power for n in (100, 230, 512, 1000)}
    found = fit("a", "forward", "time", points, "L^2")
    assert found.exponent == pytest.approx(power, abs=1e-9)
    assert found.lengths == (230, 512, 1000)
    assert found.expected == pytest.approx(2.0)
    assert found.verdict == ("as declared" if power == 2.0 else "below")


def test_two_lengths_give_no_verdict():
    assert fit("a", "forward", "time", {64: 1.0, 128: 9.0}, "L").verdict == ""


def test_overheads_of_short_lengths_do_not_count():
    points = {2**n: 1e-2 + 1e-6 * 4.0**n for n in range(4, 15)}
    found = fit("a", "forward", "time", points, "L")
    assert found.lengths == tuple(2**n for n in range(9, 15))
    assert 1.8 < found.exponent < 2.0
    assert found.verdict == "above"


def test_a_law_with_a_logarithm_is_compared_over_the_lengths_that_were_fitted():
    points = {n: n * math.log(n) for n in (128, 256, 512, 1024)}
    found = fit("a", "forward", "time", points, "L log L")
    assert found.verdict == "as declared"
    assert found.expected == pytest.approx(found.exponent)


def test_memory_holds_the_output_and_so_grows_at_least_as_the_length():
    points = {n: 8.0 * n for n in (64, 128, 256)}
    assert fit("a", "forward", "memory", points, "1").verdict == "as declared"
    assert fit("a", "forward", "time", points, "1").verdict == "above"


def test_what_cannot_be_fitted():
    assert fit("a", "forward", "time", {64: 1.0}, "L") is None
    assert fit("a", "forward", "memory", {64: 0.0, 128: 0.0, 256: 1.0}, "L") is None
    assert fit("a", "forward", "time", {64: 1.0, 128: 2.0}, "what?").verdict == ""


@pytest.mark.parametrize(("count", "kept"), [(2, 2), (3, 3), (4, 3), (5, 3), (8, 4)])
def test_the_longer_half(count, kept):
    points = {2**n: 1.0 for n in range(count)}
    assert [at for at, _ in longer_half(points)] == [2**n for n in range(count - kept, count)]


def test_the_crossover_of_two_power_laws_is_found_exactly():
    ratios = {n: 700.0 / n for n in (128, 256, 512, 1024, 2048)}
    found = crossover("a", "b", "forward", ratios, dict.fromkeys(ratios, True))
    assert found.length == pytest.approx(700.0)
    assert found.text == "faster from about 700 on, between 512 and 1024"
    doubted = crossover("a", "b", "forward", ratios, {n: n != 1024 for n in ratios})
    assert doubted.text.endswith("; some ratios are inconclusive")
    doubted = crossover("a", "b", "forward", {64: 0.9, 128: 0.5}, {64: False, 128: True})
    assert doubted.text == "faster from 64, the shortest, on; some ratios are inconclusive"


def test_the_last_of_several_crossings_counts():
    ratios = {64: 0.5, 128: 2.0, 256: 0.5, 512: 0.4}
    found = crossover("a", "b", "forward", ratios, dict.fromkeys(ratios, True))
    assert found.length == pytest.approx(math.sqrt(128 * 256))


@pytest.mark.parametrize(
    ("ratios", "sure", "text"),
    [
        ({}, True, "no length was measured for both"),
        ({64: 0.5, 128: 0.4}, True, "faster from 64, the shortest, on"),
        ({64: 0.5, 128: 1.4}, True, "not faster at 128, the longest that was measured for both"),
        ({64: 1.5, 128: 0.9}, False, "inconclusive at 128, the longest that was measured for both"),
    ],
)
def test_no_crossover(ratios, sure, text):
    found = crossover("a", "b", "forward", ratios, dict.fromkeys(ratios, sure))
    assert (found.length, found.text) == (None, text)


# --- limits of a call -----------------------------------------------------------------------------


def test_what_a_call_took_is_held_against_the_limits():
    fine = Probe(64, "ok", peak=2**20, seconds=0.4)
    assert CALLS * fine.seconds == SETTINGS.seconds
    assert judged(fine, BUDGET) == fine
    large = judged(fine._replace(peak=2**20 + 1), BUDGET)
    assert (large.status, large.reason) == ("memory", "a call takes 1 MiB, allowed are 1 MiB")
    slow = judged(fine._replace(seconds=0.5), BUDGET)
    assert (slow.status, slow.reason) == ("time", "a call takes 0.5 s, allowed are 0.4 s")
    assert judged(fine._replace(seconds=1.9), Budget.apart(SETTINGS)).status == "ok"


def test_longer_lengths_are_foreseen():
    quadratic = [Probe(n, "ok", peak=n, seconds=1e-6 * n**2) for n in (100, 200)]
    assert continued([(100, 1e-2), (200, 4e-2)], 400) == pytest.approx(0.16)
    assert foreseen(quadratic, 800, BUDGET) is None  # 0.64 s of 0.4 s: not beyond doubt
    spared = foreseen(quadratic, 1000, BUDGET)
    assert spared.status == "time"
    assert spared.reason.endswith("a call takes about 1 s, allowed are 0.4 s")
    assert foreseen(quadratic, 3 * 2**20, BUDGET).status == "time"
    linear = [Probe(n, "ok", peak=1000 * n, seconds=1e-9) for n in (100, 200)]
    assert foreseen(linear, 4000, BUDGET).status == "memory"
    assert foreseen(linear[:1], 10**6, BUDGET) is None  # one length tells nothing
    assert foreseen([], 64, BUDGET) is None


def test_after_a_failure_for_time_or_memory_nothing_longer_is_tried():
    for status in ("time", "memory"):
        first = foreseen([Probe(64, status, "too much")], 128, BUDGET)
        assert (first.status, first.reason) == (status, "not tried: length 64 failed already")
        assert foreseen([first], 256, BUDGET).reason == "not tried: length 64 failed already"
    assert foreseen([Probe(64, "error", "broke")], 128, BUDGET) is None
    assert foreseen([Probe(64, "error", "died", note="ended")], 128, BUDGET).status == "error"


# --- report ---------------------------------------------------------------------------------------


NASTY = "<script>alert('&')</script>"


def events(unchecked=False):
    settings = replace(SETTINGS, unchecked=unchecked, modes=("forward", "backward"))
    subjects = (
        Subject("fast", "fast", options={"note": NASTY}, time="L", memory="L"),
        Subject("base", "base", time="L^2", memory="L"),
        Subject("bad", "bad"),
    )
    yield Started(settings, MACHINE, subjects, "base", 12)
    yield Step("conformance", "fast", 1, 2)
    yield Verdict("fast", "conformant", ok=True)
    yield Verdict("bad", "nonconformant", ok=unchecked, failed=("N-01", NASTY))
    yield LIMITS
    for length in settings.lengths:
        scale = length / 128
        fast = [scale * s for s in (1.0, 1.1, 1.2, 1.3)]
        base = [scale**2 * s for s in (1.0, 1.1, 1.2, 1.3)]
        yield measured("fast", length, fast, flops=1e8 * scale, peak_bytes=length * 2**14, moved=9)
        yield measured("base", length, base, peak_bytes=length * 2**15, moved=10**8)
        yield Measurement("bad", "forward", length, "refused", f"not, timed: {NASTY}")
        yield Measurement("fast", "backward", length, "memory", "a call takes 2 MiB")
        yield measured("base", length, base, mode="backward", peak_note="not measured: no /proc")


def test_a_report_collects_what_follows_from_its_measurements():
    report = Report.of(events())
    assert not report.ok
    assert report.checked
    assert [(r.subject, r.length, round(r.ratio, 6), r.verdict) for r in report.ratios()] == [
        ("fast", 64, 2.0, "slower"),
        ("fast", 128, 1.0, "inconclusive"),
        ("fast", 256, 0.5, "faster"),
    ]
    assert {(g.subject, g.mode, g.quantity): round(g.exponent, 6) for g in report.growths()} == {
        ("fast", "forward", "time"): 1.0,
        ("fast", "forward", "memory"): 1.0,
        ("base", "forward", "time"): 2.0,
        ("base", "forward", "memory"): 1.0,
        ("base", "backward", "time"): 2.0,
    }
    found = {(c.subject, c.mode): c for c in report.crossovers()}
    assert found["fast", "forward"].length == pytest.approx(128.0)
    assert found["bad", "forward"].text == "no length was measured for both"
    share, limit = report.share(report.measurements[0])
    assert (share, limit) == (pytest.approx(0.1 * 0.5 / 0.575), "products")
    assert report.share(report.measurements[1]) is None  # no closed form


def test_a_report_that_is_not_finished_is_whole():
    whole = list(events())
    report = Report.of(whole[:1])
    for event in whole[1:]:
        report.add(event)
        assert Report.from_json(report.to_json()) == report
        assert report.lines()
        assert report.to_html()
    assert report == Report.of(whole)


def test_only_a_run_makes_a_report():
    with pytest.raises(OptionError, match="a run yields Started first"):
        Report.of([LIMITS])


def test_json_is_read_back():
    report = Report.of(events())
    text = report.to_json()
    data = json.loads(text)
    assert data["ratios"][0]["verdict"] == "slower"
    assert data["crossovers"][0]["subject"] == "fast"
    assert data["shares"][0]["limit"] == "products"
    again = Report.from_json(text)
    assert again == report
    assert again.to_json() == text


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1}', '{"format": 99}', '{"format": 1, "started": 3}']
)
def test_json_of_something_else_is_refused(text):
    with pytest.raises(OptionError, match="no report of a benchmark"):
        Report.from_json(text)


def test_csv_has_a_row_per_measurement():
    report = Report.of(events())
    rows = list(csv.DictReader(io.StringIO(report.to_csv())))
    assert len(rows) == len(report.measurements)
    assert rows[0] | {} == {
        **rows[0],
        "subject": "fast",
        "length": "64",
        "status": "ok",
        "against": "base",
        "verdict": "slower",
        "checked": "True",
    }
    assert float(rows[0]["median_seconds"]) == pytest.approx(0.575)
    assert rows[2]["reason"] == f"not, timed: {NASTY}"
    assert rows[2]["median_seconds"] == ""


class Tags(HTMLParser):
    """Which tags a page opens, whether all are closed, and what text it shows."""

    EMPTY = frozenset({"meta", "path", "circle", "polygon"})

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.shown = [], [], []
        self.attributes = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.shown.append(data)


def test_the_fastest_of_each_length_is_told():
    report = Report.of(events())
    told = {(one.mode, one.length): one for one in report.fastest()}
    assert set(told) == {("forward", n) for n in SETTINGS.lengths}  # of two modes one has pairs
    assert told["forward", 256].subject == "fast"
    assert told["forward", 256].next.ratio == pytest.approx(2.0)
    assert told["forward", 64].subject == "base"
    assert "base takes 2 times as long" in "\n".join(report.lines())


def test_the_page_needs_nothing_else_and_escapes_what_others_wrote():
    page = Report.of(events()).to_html()
    tags = Tags(page)
    assert not {"script", "link", "img", "iframe"} & set(tags.seen)
    assert not [name for name, _ in tags.attributes if name in ("src", "href") or name[:2] == "on"]
    assert "url(" not in page
    assert "http" not in page
    shown = "".join(tags.shown)
    assert NASTY in shown  # as text, in options, verdict and reason
    for part in ("a <processor>", "conformant", "L^1.00", "between", "as declared", "float32"):
        assert part in shown
    assert UNCHECKED not in shown
    assert tags.seen.count("figure") == 3  # nothing was measured of the memory of backward
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_what_nobody_checked_says_so_everywhere():
    report = Report.of(events(unchecked=True))
    assert report.ok
    assert report.lines()[0] == UNCHECKED
    assert UNCHECKED in "".join(Tags(report.to_html()).shown)
    assert json.loads(report.to_json())["checked"] is False
    assert ",False,ok," in report.to_csv()


def test_lines_tell_everything_once():
    lines = Report.of(events()).lines()
    text = "\n".join(lines)
    assert "fast from" not in text
    assert "faster from about 128 on, between 128 and 256" in text
    assert [line for line in lines if line.startswith("bad") and "64, 128, 256" in line]
    assert "not measured: no /proc" in text
    assert all(line == line.rstrip() for line in lines)


# --- plots ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "base"),
    [
        (1e-5, 3.0, 10),
        (1.0, 1.0, 10),
        (0.9, 1.2, 10),
        (3e-3, 0.2, 10),
        (2**20, 2**34, 2),
        (5e6, 6e6, 2),
    ],
)
def test_ticks_are_round_and_neither_few_nor_many(low, high, base):
    found = ticks(low, high, base)
    assert 1 <= len(found) <= 8
    assert found == sorted(set(found))
    assert all(low / 1.2 <= tick <= high * 1.2 for tick in found)


def test_a_chart_of_one_point_and_of_many_lines():
    one = Series("a <b>", 0, [Point(64, 1.0, 1.0, 1.0)])
    drawn = chart([one], "a & b", seconds)
    assert "a &lt;b&gt;, length 64: 1 s" in drawn
    assert 'aria-label="a &amp; b"' in drawn
    many = [Series(str(i), i, [Point(n, n, n / 2, n) for n in (64, 100)]) for i in range(20)]
    assert chart(many, "", seconds).count('class="line"') == 20
    assert "nan" not in chart(many, "", seconds)
    assert chart([], "nothing", seconds) == ""
