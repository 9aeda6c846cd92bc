"""Side effects: what importing a plugin changes for everybody else is on record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings

import pytest
import torch
from torch.nn import functional

from attnreg import BrokenPlugin, process
from tests.throwaway import good, isolated


@pytest.fixture
def site(tmp_path, monkeypatch):
    with isolated(tmp_path / "site", monkeypatch) as made:
        yield made


def only(registry):
    """The one plugin of a registry."""
    (plugin,) = registry.plugins
    return plugin


@pytest.fixture
def _restored(monkeypatch):
    """Put back what the sources below change."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    kept = [
        (owner, name, getattr(owner, name))
        for owner, name in (
            (functional, "softmax"),
            (functional, "scaled_dot_product_attention"),
            (torch, "softmax"),
        )
    ]
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(functional, "acme", None, raising=False)
    monkeypatch.delattr(functional, "acme")
    monkeypatch.setenv("ACME_PRESENT", "1")
    for name in ("ACME_NEW", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    with process.restored(), warnings.catch_warnings():
        yield
    for owner, name, value in kept:
        setattr(owner, name, value)
    for number, handler in handlers.items():
        signal.signal(number, handler)


SIDE_EFFECTS = [
    ("torch.set_default_dtype(torch.float64)", "torch's default dtype"),
    ("torch.set_default_device('meta')", "torch's default device"),
    ("torch.manual_seed(1234)", "torch's random state"),
    ("torch.nn.Linear(2, 2)", "torch's random state"),
    ("torch.set_grad_enabled(False)", "torch's grad mode"),
    ("torch.set_num_threads(torch.get_num_threads() + 1)", "torch's number of threads"),
    ("torch.use_deterministic_algorithms(True)", "torch's deterministic algorithms"),
    ("torch.backends.cudnn.benchmark ^= True", "torch.backends.cudnn.benchmark"),
    ("torch.backends.cudnn.deterministic ^= True", "torch.backends.cudnn.deterministic"),
    ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", "torch.backends.cuda.matmul"),
    ("torch.backends.cuda.enable_flash_sdp(False)", "the kernels that torch's"),
    ("F.softmax = lambda *a, **k: None", "torch.nn.functional.softmax"),
    ("F.scaled_dot_product_attention = print", "functional.scaled_dot_product_attention"),
    ("del F.softmax", "torch.nn.functional.softmax"),
    ("torch.softmax = print", "torch.softmax"),
    ("warnings.simplefilter('ignore')", "warnings.filters"),
    ("warnings.resetwarnings()", "warnings.filters"),
    ("warnings.simplefilter('ignore', DeprecationWarning)", "warnings.filters"),
    ("sys.path.insert(0, 'acme')", "sys.path"),
    ("sys.path.pop()", "sys.path"),
    ("logging.root.setLevel(5)", "logging.root"),
    ("logging.root.addHandler(logging.NullHandler())", "logging.root"),
    ("os.environ['ACME_NEW'] = 'secret'", "os.environ['ACME_NEW']"),
    ("del os.environ['ACME_PRESENT']", "os.environ['ACME_PRESENT']"),
    ("signal.signal(signal.SIGINT, print)", "the handler of SIGINT"),
    ("signal.signal(signal.SIGTERM, print)", "the handler of SIGTERM"),
    ("random.random()", "the state of random"),
    ("np.random.rand()", "the state of numpy.random"),
]
IMPORTS = """
import logging, os, random, signal, sys, warnings
import numpy as np
import torch
import torch.nn.functional as F
"""


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(("line", "what"), SIDE_EFFECTS, ids=[line for line, _ in SIDE_EFFECTS])
def test_a_side_effect_is_reported(line, what, site):
    site.add("acme-toy", f"{IMPORTS}\n{line}\n{good('acme_toy')}")
    registry = site.discover()
    (text,) = only(registry).warnings
    assert text.startswith("its import changed ")
    assert what in text
    assert "secret" not in text
    assert list(registry) == ["acme_toy"]


@pytest.mark.usefixtures("_restored")
def test_a_side_effect_is_a_fault_where_that_is_asked_for(site):
    site.add("acme-toy", f"{IMPORTS}\ntorch.manual_seed(1234)\n{good('acme_toy')}")
    with pytest.raises(BrokenPlugin, match="its import changed torch's random state"):
        site.discover(strict=True)


@pytest.mark.usefixtures("_restored")
def test_a_failed_import_that_changed_something_says_both(site):
    site.add("acme-bad", f"{IMPORTS}\ntorch.set_default_dtype(torch.float64)\n1 / 0")
    plugin = only(site.discover())
    assert plugin.reason == "ZeroDivisionError: division by zero"
    assert "torch's default dtype" in plugin.warnings[0]


@pytest.mark.usefixtures("_restored")
def test_a_hook_is_watched_too(site):
    source = good("acme_toy").replace("    for", "    __import__('torch').manual_seed(7)\n    for")
    site.add("acme-toy", source)
    assert "torch's random state" in only(site.discover()).warnings[0]


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(
    "line",
    [
        "sys.path.append('acme')",
        "warnings.filterwarnings('ignore', message='acme')",
        "warnings.filterwarnings('ignore', module='acme')",
        "warnings.simplefilter('ignore', type('AcmeWarning', (Warning,), {}))",
        "torch.Generator().manual_seed(3)",
        "torch.nn.Linear(2, 2, device='meta')",
        "random.Random(0).random()",
        "np.random.default_rng(0).random()",
        "logging.getLogger('acme').setLevel(5)",
        "os.environ['TORCHINDUCTOR_CACHE_DIR'] = 'acme'",
        "with torch.no_grad(): pass",
        "F.acme = print",
    ],
)
def test_what_harms_nobody_is_not_reported(line, site):
    site.add("acme-toy", f"{IMPORTS}\n{line}\n{good('acme_toy')}")
    assert only(site.discover(strict=True)).warnings == ()


def test_the_plugins_of_this_project_have_no_side_effect():
    """In a process of its own, where nothing has been imported yet."""
    code = "import attnreg; attnreg.Registry().discover(strict=True); print('loaded')"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ATTNREG_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
