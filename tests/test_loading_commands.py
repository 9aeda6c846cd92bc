"""The commands beside plugins that are broken, disabled or slow: they show it, and go on."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from attnreg.cli import app
from tests.throwaway import good, install, isolated


@pytest.fixture
def site(tmp_path, monkeypatch):
    with isolated(tmp_path / "site", monkeypatch) as made:
        yield made


def call(*arguments, **env):
    quiet = dict.fromkeys(("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"))
    return CliRunner(env={**quiet, **env}).invoke(app, list(arguments))


@pytest.fixture
def all_broken(site, monkeypatch):
    """Three plugins: one raises what cannot be printed, one is too old, one is disabled."""
    site.add("acme-bad", "class E(Exception):\n    __str__ = None\nraise E")
    site.add("acme-off", "raise AssertionError")
    site.add("acme-old", "import os\nos.environ['ACME_NEW'] = '1'\nATTNREG_CONTRACT = 0")
    monkeypatch.setenv("ACME_NEW", "")
    monkeypatch.delenv("ACME_NEW")
    monkeypatch.setenv("ATTNREG_DISABLE", "acme-off")


CHANGED = "its import changed os.environ['ACME_NEW']: a plugin must only register"


@pytest.mark.usefixtures("all_broken")
def test_list_works_with_every_plugin_broken():
    shown = call("list")
    assert shown.exit_code == 0, shown.stderr
    assert "No variant is registered.\n" in shown.stdout
    assert "acme_old (acme-old 1.0, module acme_old): AttnregError: plugin" in shown.stdout
    assert "acme_off (acme-off 1.0, module acme_off): ATTNREG_DISABLE names it" in shown.stdout
    assert f"acme_old: {CHANGED}" in shown.stdout
    data = json.loads(call("list", "--json").stdout)
    assert data["variants"] == []
    assert [(one["name"], one["state"], one["reason"]) for one in data["broken"]] == [
        ("acme_bad", "failed", "E"),
        (
            "acme_old",
            "incompatible",
            "AttnregError: plugin 'acme_old' was built for contract 0, this attnreg has 1; install "
            "a newer version of the plugin, or an older attnreg",
        ),
    ]
    assert [one["name"] for one in data["disabled"]] == ["acme_off"]
    assert data["warnings"] == [f"acme_old: {CHANGED}"]
    assert "\nDisabled plugins:\n\n- acme_off" in call("list", "--markdown").stdout


@pytest.mark.usefixtures("all_broken")
@pytest.mark.parametrize("strict", ["", "1"])
def test_doctor_works_with_every_plugin_broken(strict, monkeypatch):
    monkeypatch.setattr("attnreg.loading.SLOW_IMPORT", 1.0)
    ticks = itertools.count(0.0, 2.0)
    monkeypatch.setattr("attnreg.loading.perf_counter", lambda: next(ticks))
    result = call("doctor", "--json", ATTNREG_STRICT=strict)
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    bad, off, old = data["plugins"]
    assert [bad["state"], off["state"], old["state"]] == ["failed", "disabled", "incompatible"]
    assert (bad["reason"], off["reason"]) == ("E", "ATTNREG_DISABLE names it")
    slow = "its import took 2.0 s: import what is large when used"
    assert [one["warnings"] for one in data["plugins"]] == [[slow], [], [slow, CHANGED]]
    assert [one["seconds"] for one in data["plugins"]] == [2.0, 0.0, 2.0]
    assert data["environment"] == {
        "ATTNREG_STRICT": strict,
        "ATTNREG_PLUGINS": None,
        "ATTNREG_DISABLE": "acme-off",
    }


@pytest.mark.usefixtures("all_broken")
def test_doctor_prints_states_and_reasons():
    text = call("doctor").stdout
    for row in ("acme_bad  failed", "acme_off  disabled", "acme_old  incompatible"):
        assert row in text
    assert f"acme_old: warning: {CHANGED}" in text
    assert "acme_off: module acme_off: ATTNREG_DISABLE names it" in text
    assert "ATTNREG_PLUGINS not set" in text
    assert "ATTNREG_DISABLE 'acme-off'" in text
    assert "Something is broken." in text


def test_with_nothing_loaded_the_commands_work(site):
    for name in ("acme_a", "acme_b", "acme_c"):
        site.add(name, good(name))
    env = {"ATTNREG_PLUGINS": "none"}
    shown = call("list", **env)
    assert shown.exit_code == 0
    assert shown.stdout.startswith("No variant is registered.\n")
    result = call("doctor", **env)
    assert result.exit_code == 0
    assert result.stdout.count("ATTNREG_PLUGINS=none loads nothing") == 3
    refused = call("info", "acme_a", **env)
    assert refused.exit_code == 2
    assert "is disabled (ATTNREG_PLUGINS=none loads nothing)" in refused.stderr


def test_doctor_without_torch_lists_what_it_can(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch is missing')\n", encoding="utf-8")
    install(tmp_path, "acme-toy", good("acme_toy"))
    install(tmp_path, "acme-off", good("acme_off"))
    done = subprocess.run(
        [sys.executable, "-m", "attnreg", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "ATTNREG_DISABLE": "acme-off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    plugins = {one["name"]: one for one in json.loads(done.stdout)["plugins"]}
    assert plugins["acme_toy"]["state"] == "discovered"
    assert plugins["acme_toy"]["reason"] == "not loaded: torch cannot be imported"
    assert plugins["acme_off"]["state"] == "disabled"
    assert plugins["acme_off"]["reason"] == "ATTNREG_DISABLE names it"


def test_a_variable_that_names_nobody_is_shown(site):
    site.add("acme-toy", good("acme_toy"))
    for command in ("list", "doctor"):
        result = call(command, ATTNREG_DISABLE="acme_tog")
        assert result.exit_code == 0
        text = "ATTNREG_DISABLE names 'acme_tog', which no plugin is called. Did you mean"
        assert f"{text} 'acme_toy'?" in result.stdout


def test_a_name_in_any_script_is_listed(site):
    site.add("acme-größe", good("acme_groesse"), entries=["größe = acme_größe"])
    data = json.loads(call("list", "--json").stdout)
    assert [one["distribution"] for one in data["variants"]] == ["acme-größe"]
