"""Measure variants beside each other: time, memory, growth, and what the machine could do.

>>> from attnreg import benchmark
>>> report = benchmark.Report.of(benchmark.run("linear", lengths="512:8192"))  # doctest: +SKIP
>>> print("\\n".join(report.lines()))  # doctest: +SKIP

Only what passes the conformance suite is timed. All subjects of a length run in turn, round by
round, so that a busy machine slows all of them alike; a difference smaller than the spread is
called inconclusive. ``run`` and the command ``attnreg bench`` do the same.
"""

from __future__ import annotations

from attnreg.benchmark.growth import Crossover as Crossover
from attnreg.benchmark.growth import Growth as Growth
from attnreg.benchmark.ratio import Fastest as Fastest
from attnreg.benchmark.ratio import Ratio as Ratio
from attnreg.benchmark.records import Event as Event
from attnreg.benchmark.records import Limits as Limits
from attnreg.benchmark.records import Machine as Machine
from attnreg.benchmark.records import Measurement as Measurement
from attnreg.benchmark.records import Settings as Settings
from attnreg.benchmark.records import Started as Started
from attnreg.benchmark.records import Step as Step
from attnreg.benchmark.records import Subject as Subject
from attnreg.benchmark.records import Verdict as Verdict
from attnreg.benchmark.report import Report as Report
from attnreg.benchmark.running import run as run
