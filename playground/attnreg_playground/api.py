"""The public endpoints, by name, for ``gradio_client`` and plain HTTP. Nothing else is listed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attnreg_playground.pool import Job, Pool, failed
from attnreg_playground.texts import localise

SECONDS = 30.0
LONG_SECONDS = 300.0
MOST_LENGTHS, LONGEST = 12, 16384
CHECKED = {"fast", "full"}


class Endpoints:
    """One method for each endpoint; what it returns is plain data, errors included."""

    def __init__(self, quick: Pool, slow: Pool, names: Mapping[str, Any], heavy: bool) -> None:
        self.quick = quick
        self.slow = slow
        self.names = names
        self.heavy = heavy
        # Nobody may be listening to what a program asked for: the page keeps its turn.
        self._long = threading.BoundedSemaphore(2)

    def variants(self) -> list[dict[str, Any]]:
        """Return every installed variant: name, summary, plugin, version."""
        kept = ("name", "summary", "plugin", "version")
        return [{key: one[key] for key in kept} for one in self.names.values()]

    def describe(self, variant: str) -> dict[str, Any]:
        """Return everything that a variant declares: capabilities, options, formula, paper."""
        return self._run("describe", {"variant": variant}, variant)

    def attend(
        self,
        variant: str = "scaled_dot_product",
        text: str = "我爱你",
        options: dict[str, Any] | None = None,
        heads: int = 4,
        causal: bool = False,
        padding: int = 0,
        window: int = 0,
        border: int = 0,
        seed: int = 0,
        source: str = "text",
        length: int = 64,
        keys: int = 0,
        passage: str = "",
        layer: int = 2,
        digit: int = 3,
    ) -> dict[str, Any]:
        """Return the weights (heads, queries, keys) of a variant, its output, and its Python.

        ``source`` is "text" (a sentence), "chance" (``length`` random tokens), "digit" (an image),
        or "real" (``passage`` as MiniLM's ``layer`` sees it).
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        given["options"] = options or {}
        return self._run("attend", _without_empty(given), variant)

    def compare(
        self,
        variant: str = "scaled_dot_product",
        other: str = "linear",
        text: str = "我爱你",
        options: dict[str, Any] | None = None,
        other_options: dict[str, Any] | None = None,
        heads: int = 4,
        causal: bool = False,
        padding: int = 0,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Return how far two variants are apart: weights, outputs, time, memory."""
        given = {name: value for name, value in locals().items() if name != "self"}
        given |= {"options": options or {}, "other_options": other_options or {}}
        return self._run("compare", given, variant, other)

    def benchmark(
        self,
        variants: list[str],
        lengths: list[int] | None = None,
        modes: list[str] | None = None,
        causal: bool = False,
        heads: int = 4,
        head_dim: int = 32,
        seconds: float = 1.0,
        unchecked: bool = True,
    ) -> Iterator[dict[str, Any]]:
        """Measure variants at growing lengths; yield each cell as it comes, then the report."""
        chosen = [256, 512, 1024] if lengths is None else lengths
        wrong = _wrong_sizes(chosen, heads, head_dim, seconds)
        wrong = _wrong_texts("variants", variants) or _wrong_texts("modes", modes, True) or wrong
        arguments = {
            "variants": variants,
            "lengths": chosen,
            "modes": modes or ["forward"],
            "causal": causal,
            "heads": heads,
            "head_dim": head_dim,
            "seconds": seconds,
            "memory": "2GiB",
            "unchecked": unchecked,
        }
        yield from self._stream("benchmark", arguments, wrong, *([] if wrong else variants))

    def conform(
        self, variant: str, profile: str = "fast", checks: list[str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Run the conformance suite; yield each result as it comes, then the whole report."""
        wrong = "" if profile in CHECKED else f"profile must be fast or full, got {profile!r}"
        wrong = wrong or _wrong_texts("checks", checks, True)
        arguments = {"variant": variant, "profile": profile, "checks": checks}
        yield from self._stream("conform", arguments, wrong, variant)

    def all(self) -> list[Callable[..., Any]]:
        """Return the endpoints."""
        return [
            self.variants, self.describe, self.attend, self.compare, self.benchmark, self.conform,
        ]  # fmt: skip

    def _unknown(self, *names: object) -> str:
        for name in names:
            if not isinstance(name, str) or name not in self.names:
                return f"there is no variant {str(name)[:80]!r}; /variants lists those there are"
        return ""

    def _run(self, task: str, arguments: dict[str, Any], *names: object) -> dict[str, Any]:
        unknown = self._unknown(*names)
        if unknown:
            return {"error": unknown}
        job = self.quick.submit(task, arguments, SECONDS, ", ".join(map(str, names)))
        if not job.wait(SECONDS + 10.0):  # it waited for a worker all that time
            self.quick.cancel(job)
        return _result(job)

    def _stream(
        self, task: str, arguments: dict[str, Any], wrong: str, *names: object
    ) -> Iterator[dict[str, Any]]:
        wrong = wrong or self._unknown(*names)
        if not self.heavy:
            wrong = wrong or "long jobs are switched off here; --heavy allows them"
        if wrong:
            yield {"error": wrong}
            return
        if not self._long.acquire(blocking=False):
            yield {"error": "two long jobs are running already: try again when one has ended"}
            return
        what = ", ".join(map(str, names))
        job, sent = self.slow.submit(task, arguments, LONG_SECONDS, what), 0
        try:
            while True:
                ended = job.wait(1.0, job.news)
                new = job.items[sent:]
                sent += len(new)
                yield from new
                if ended and sent == len(job.items):
                    break
            yield _result(job)
        finally:
            self.slow.cancel(job)
            self._long.release()


def _result(job: Job) -> dict[str, Any]:
    wrong = failed(job.result)
    if wrong is not None:
        told = localise(wrong, "en")
        return {"error": f"{told['title']}: {told['detail']}"}
    found: dict[str, Any] = job.result
    return found


def _without_empty(given: dict[str, Any]) -> dict[str, Any]:
    """Leave out a passage that was not given: the page has one of its own."""
    return {name: value for name, value in given.items() if (name, value) != ("passage", "")}


def _wrong_texts(name: str, given: Any, optional: bool = False) -> str:
    if optional and given is None:
        return ""
    if isinstance(given, list) and given and all(isinstance(one, str) for one in given):
        return ""
    return f"{name} is a list of texts with one or more in it, got {str(given)[:80]!r}"


def _wrong_sizes(lengths: Any, heads: Any, head_dim: Any, seconds: Any) -> str:
    def whole(value: Any, most: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most

    if not isinstance(lengths, list) or not 0 < len(lengths) <= MOST_LENGTHS:
        return f"lengths is a list of 1 to {MOST_LENGTHS} whole numbers"
    if not all(whole(one, LONGEST) for one in lengths):
        return f"each of lengths is a whole number from 1 to {LONGEST}"
    if not whole(heads, 64) or not whole(head_dim, 256):
        return "heads is at most 64, head_dim at most 256, both whole numbers above 0"
    good = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    return "" if good and 0.01 <= seconds <= 30 else "seconds is a number from 0.01 to 30"
