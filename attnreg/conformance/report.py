"""What running the laws gives: a ``Result`` per check, a ``Report`` per variant."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from xml.etree import ElementTree

LONGEST = 20_000
"""Characters of one text in a report."""

Status = Literal["pass", "fail", "xfail", "skip", "error"]


@dataclass(frozen=True)
class Result:
    """What one check gave.

    ``status``: "pass"; "fail", the law does not hold; "xfail", it fails as the variant declares in
    ``known_failures``; "skip", it does not apply, and ``evidence["message"]`` says why; "error",
    it could not be run to its end. ``evidence`` holds plain data: ``message``, ``measured`` and
    ``limit``, ``compared`` (how many comparisons were made), and for a failure ``call`` (the
    smallest input that shows it), ``expected``, ``actual`` and ``snippet`` (Python that shows it
    when pasted).
    """

    check: str
    status: Status
    level: str
    summary: str = ""
    seconds: float = 0.0
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bad(self) -> bool:
        """Whether it stands against the variant: a failed or broken check that can block."""
        return self.status == "error" or (self.status == "fail" and self.level != "quality")

    @property
    def message(self) -> str:
        """One sentence on what happened, empty where it passed."""
        return str(self.evidence.get("message", ""))


@dataclass(frozen=True)
class Report:
    """Everything that was checked of one variant, and where."""

    variant: str
    results: tuple[Result, ...]
    profile: str = "full"
    device: str = "cpu"
    contained: bool = False
    """Whether a process of its own ran the checks, under limits of time and memory."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Versions: attnreg, its contract, the plugin's distribution, torch, Python, the platform."""
    capabilities: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """No check failed or broke, and at least one required check passed.

        A failed ``quality`` check is a grade: it is reported and blocks nothing.
        """
        return not any(r.bad for r in self.results) and any(
            r.status == "pass" and r.level == "required" for r in self.results
        )

    @property
    def verdict(self) -> str:
        """Return "conformant", "partial" (only claims fail), "nonconformant", or "not run".

        "incomplete" is a run without a fault in which no required check passed, such as one of
        claimed checks alone.
        """
        if not any(r.status in ("pass", "fail", "xfail") for r in self.results):
            return "not run"
        if self.ok:
            return "conformant"
        bad = [r for r in self.results if r.bad]
        if not bad:
            return "incomplete"
        claims_only = all(r.level == "claimed" and r.status == "fail" for r in bad)
        return "partial" if claims_only else "nonconformant"

    @property
    def counts(self) -> dict[str, int]:
        """How many results have each status."""
        return dict(Counter(r.status for r in self.results))

    def __getitem__(self, check: str) -> Result:
        for result in self.results:
            if result.check == check:
                return result
        raise KeyError(check)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"verdict": self.verdict, "ok": self.ok, "counts": self.counts, **asdict(self)}

    def to_json(self) -> str:
        """Return the report as JSON; not-a-number and infinities are written as text."""
        return json.dumps(plain(self.to_dict()), indent=2, ensure_ascii=False, allow_nan=False)

    def to_junit(self) -> str:
        """Return the report as JUnit XML, as build servers read it: one test case per check."""
        return junit([self])

    def to_markdown(self) -> str:
        """Return the report as Markdown: a table of checks, then what each failure shows."""
        lines = [
            f"# {self.variant}: {self.verdict}",
            "",
            f"{self.profile} profile on {self.device}, "
            + ", ".join(f"{n} {s}" for s, n in sorted(self.counts.items())),
            "",
            "| check | level | status | law | what was seen |",
            "|---|---|---|---|---|",
        ]
        for r in self.results:
            cells = (r.check, r.level, r.status, r.summary, r.message)
            lines.append(f"| {' | '.join(' '.join(c.split()).replace('|', '/') for c in cells)} |")
        for r in self.results:
            if r.status in ("fail", "error") and r.evidence.get("snippet"):
                lines += ["", f"## {r.check}", "", "```python", r.evidence["snippet"], "```"]
        return "\n".join([*lines, ""])

    def __str__(self) -> str:
        bad = [f"  {r.check} {r.status}: {r.message}" for r in self.results if r.bad]
        return "\n".join([f"{self.variant}: {self.verdict}, {self.counts}", *bad])


def junit(reports: Iterable[Report]) -> str:
    """Return several reports as one JUnit XML document: one test suite per variant."""
    root = ElementTree.Element("testsuites")
    for report in reports:
        kinds = Counter(_junit_kind(r) for r in report.results)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=f"attnreg.{report.variant}",
            tests=str(len(report.results)),
            failures=str(kinds["failure"]),
            errors=str(kinds["error"]),
            skipped=str(kinds["skipped"]),
            time=f"{sum(r.seconds for r in report.results):.3f}",
        )
        for result in report.results:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                name=_printable(result.check),
                classname=f"attnreg.{report.variant}.{result.level}",
                time=f"{result.seconds:.3f}",
            )
            kind = _junit_kind(result)
            if kind is not None:
                note = ElementTree.SubElement(case, kind, message=_printable(result.message))
                note.text = _printable(str(result.evidence.get("snippet", "")))
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _junit_kind(result: Result) -> str | None:
    if result.status == "error":
        return "error"
    if result.bad:
        return "failure"
    return None if result.status == "pass" else "skipped"


def _printable(text: str) -> str:
    """Leave out the control characters that XML cannot hold."""
    return "".join(sign for sign in text if sign in "\n\t" or sign.isprintable())


def plain(value: Any) -> Any:
    """Return data that JSON can hold: tensors and arrays as lists, odd floats as text."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return str(value)
    if isinstance(value, (int, float)) or value is None:
        return value
    text = str(value).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
