"""Rules for every test.

With ``ATTNREG_NO_SKIPS=1`` a skipped test is an error: what a machine cannot run, it says. And a
test leaves the process as it was: one that turns a kernel off fails another one, elsewhere.
"""

from __future__ import annotations

import os

import pytest

from attnreg import process

NO_SKIPS = os.environ.get("ATTNREG_NO_SKIPS") == "1"


@pytest.fixture(autouse=True)
def _leaves_the_process_alone():
    before = process.read(process.FLAGS)
    yield
    left = process.changed(before, process.read(process.FLAGS))
    assert not left, f"the test left this changed: {', '.join(left)}"


def skipped(config: pytest.Config) -> list[tuple[str, str]]:
    """Name and reason of each skipped test or module; a worker of pytest-xdist has none."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter is not None else []
    return [(report.nodeid, report.longrepr[2]) for report in reports]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if NO_SKIPS and session.exitstatus == pytest.ExitCode.OK and skipped(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if NO_SKIPS and (tests := skipped(config)):
        terminalreporter.section("skipped, and ATTNREG_NO_SKIPS=1", red=True)
        for name, reason in tests:
            terminalreporter.line(f"{name}: {reason}")
