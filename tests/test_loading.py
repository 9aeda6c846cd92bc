"""Loading: whatever a plugin does, it does to itself, and the reason is on record."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

import attnreg
from attnreg import BrokenPlugin, Registry
from tests.throwaway import EVERYTHING, good, install, isolated


@pytest.fixture
def site(tmp_path, monkeypatch):
    with isolated(tmp_path / "site", monkeypatch) as made:
        yield made


def only(registry):
    """The one plugin of a registry."""
    (plugin,) = registry.plugins
    return plugin


def contract(text):
    return good("acme_bad").replace("ATTNREG_CONTRACT = 1", text)


FAULTS = {
    "import error": ("import acme_missing", "failed", "No module named 'acme_missing'"),
    "any error": ("1 / 0", "failed", "ZeroDivisionError: division by zero"),
    "syntax error": ("def", "failed", "SyntaxError: invalid syntax"),
    "sys.exit": ("import sys; sys.exit(3)", "failed", "SystemExit: 3"),
    "no Exception": ("class E(BaseException): pass\nraise E('x')", "failed", "E: x"),
    "older contract": (contract("ATTNREG_CONTRACT = 0"), "incompatible", "newer version of the"),
    "newer contract": (contract("ATTNREG_CONTRACT = 2"), "incompatible", "install a newer attnreg"),
    "no contract": (contract(""), "incompatible", "is a module without ATTNREG_CONTRACT"),
    "contract a string": (contract("ATTNREG_CONTRACT = '1'"), "incompatible", "contract '1'"),
    "contract a bool": (contract("ATTNREG_CONTRACT = True"), "incompatible", "a plain int"),
    "unknown hook": (
        good("acme_bad").replace("register_variants", "register_varients"),
        "failed",
        "unknown hook 'attnreg_register_varients'",
    ),
    "wrong hook argument": (
        good("acme_bad")
        .replace("register", "registrar")
        .replace("attnreg_registrar", "attnreg_register"),
        "failed",
        "registrar",
    ),
    "hook raises": (
        good("acme_bad") + EVERYTHING.format(name="acme_bad") + "    raise ValueError('late')",
        "failed",
        "ValueError: late",
    ),
    "wrong type": (
        good("acme_bad").replace("register(attnreg.Variant(", "register(dict("),
        "failed",
        "register takes Variant, got dict",
    ),
    "a variant twice": (good("acme_bad", "acme_bad"), "failed", "'acme_bad' is registered twice"),
    "a check twice": (
        good("acme_bad")
        + EVERYTHING.format(name="acme_bad")
        + "    pass\n\n\n@attnreg.hookimpl\ndef attnreg_register_checks(register):\n"
        "    for _ in range(2):\n        register(attnreg.Check('acme.law', print))\n",
        "failed",
        "the check 'acme.law' is registered twice",
    ),
    "an id that is no string": (
        good("acme_bad") + "\n\n@attnreg.hookimpl\ndef attnreg_register_positions(register):\n"
        "    register(attnreg.Position(['acme'], Toy, ''))\n",
        "failed",
        "register takes str, got list",
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_the_plugins_own(what, site, monkeypatch):
    """It leaves nothing behind, and its neighbours on both sides are loaded."""
    source, state, reason = FAULTS[what]
    site.add("acme-bad", source)
    for name in ("acme_after", "acme_zebra"):
        site.add(name, good(name))
    registry = site.discover()
    assert list(registry) == ["acme_after", "acme_zebra"]
    (plugin,) = registry.broken.values()
    assert (plugin.name, plugin.state) == ("acme_bad", state)
    assert reason in plugin.reason
    assert "\n" not in plugin.reason
    assert not {*registry.checks, *registry.positions, *registry.panels}
    with pytest.raises(BrokenPlugin) as caught:
        registry.variant("acme_bad")
    assert plugin.reason in str(caught.value)
    assert caught.value.__cause__ is plugin.error
    with pytest.raises(BrokenPlugin):
        site.discover(strict=True)
    monkeypatch.setenv("ATTNREG_STRICT", "1")
    with pytest.raises(BrokenPlugin):
        site.discover(strict=None)


@pytest.mark.parametrize(
    ("entry", "state", "reason"),
    [
        ("bad = acme_bad:nothing", "failed", "has no attribute 'nothing'"),
        ("bad = acme_bad:VALUE", "incompatible", "of type int without ATTNREG_CONTRACT"),
        ("bad = json", "incompatible", "must name a module that sets ATTNREG_CONTRACT = 1"),
        ("bad = acme_bad:a:b", "failed", "must be written as module or module:attribute"),
        ("bad = acme_gone", "failed", "its distribution is installed: install it again"),
        ("bad = acme_gone.inner", "failed", "its distribution is installed: install it again"),
    ],
)
def test_an_entry_point_that_leads_nowhere(entry, state, reason, site):
    site.add("acme-bad", good("acme_bad") + "\nVALUE = 5\n", entries=[entry])
    plugin = only(site.discover())
    assert plugin.state == state
    assert reason in plugin.reason


def test_an_object_may_be_a_plugin(site):
    source = good("acme_toy").replace("\ndef ", "\ndef _").replace("@attnreg.hookimpl", "")
    source += """

class Plugin:
    ATTNREG_CONTRACT = 1

    @attnreg.hookimpl
    def attnreg_register_variants(self, register):
        _attnreg_register_variants(register)


plugin = Plugin()
"""
    site.add("acme-toy", source, entries=["toy = acme_toy:plugin"])
    registry = site.discover(strict=True)
    assert list(registry) == ["acme_toy"]
    assert only(registry).warnings == ()


def test_ctrl_c_passes_and_the_next_attempt_loads(site):
    path = site.folder / "acme_toy.py"
    site.add("acme-toy", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        attnreg.default_registry()
    path.write_text(good("acme_toy"), encoding="utf-8")
    os.utime(path, (1, 1))
    assert attnreg.list_variants() == ["acme_toy"]


def test_a_plugin_that_ends_the_process_can_be_disabled(site):
    """Nothing can be done inside the process; the variables are the way out."""
    site.add("acme-fatal", "import os; os._exit(7)")
    environment = {**os.environ, "PYTHONPATH": str(site.folder)}
    command = [sys.executable, "-m", "attnreg", "list", "--json"]
    assert subprocess.run(command, env=environment, check=False).returncode == 7
    environment["ATTNREG_DISABLE"] = "acme-fatal"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    (disabled,) = json.loads(done.stdout)["disabled"]
    assert disabled["name"] == "acme_fatal"
    assert disabled["reason"] == "ATTNREG_DISABLE names it"


def test_what_is_printed_at_import_goes_to_stderr(site, capfd):
    site.add("acme-loud", "print('hello')\n" + good("acme_loud"))
    assert list(site.discover()) == ["acme_loud"]
    assert capfd.readouterr() == ("", "hello\n")
    environment = {**os.environ, "PYTHONPATH": str(site.folder)}
    command = [sys.executable, "-m", "attnreg", "list", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "acme_loud" in [one["name"] for one in json.loads(done.stdout)["variants"]]
    assert "hello" in done.stderr


def test_a_slow_import_is_shown(site, monkeypatch):
    monkeypatch.setattr("attnreg.loading.SLOW_IMPORT", 1.0)
    ticks = iter([0.0, 2.0, 2.0, 2.5])
    monkeypatch.setattr("attnreg.loading.perf_counter", lambda: next(ticks))
    for name in ("acme_a", "acme_b"):
        site.add(name, good(name))
    slow, quick = site.discover(strict=True).plugins  # being slow is no fault
    assert (slow.state, slow.seconds) == ("loaded", 2.0)
    assert slow.warnings == ("its import took 2.0 s: import what is large when used",)
    assert (quick.seconds, quick.warnings) == (0.5, ())


def test_a_hook_that_nobody_calls_is_shown(site):
    site.add("acme-unmarked", good("acme_toy").replace("@attnreg.hookimpl", ""))
    site.add("acme-void", "ATTNREG_CONTRACT = 1")
    unmarked, void = site.discover(strict=True).plugins
    assert "attnreg_register_variants is not marked with @attnreg.hookimpl" in unmarked.warnings[0]
    assert void.warnings == ("it registers nothing",)


# --- names that several claim -------------------------------------------------------------------


def test_two_distributions_with_one_entry_point_name(site):
    site.add("acme-one", good("acme_one"), entries=["same = acme_one"])
    site.add("acme-two", good("acme_two"), entries=["same = acme_two"])
    registry = site.discover(strict=True)
    assert list(registry) == ["acme_one", "acme_two"]
    assert [plugin.name for plugin in registry.plugins] == ["same", "same"]


def test_two_broken_plugins_with_one_name_are_both_listed(site):
    for name in ("acme-one", "acme-two"):
        site.add(name, "1 / 0", entries=[f"same = {name.replace('-', '_')}"])
    assert set(site.discover().broken) == {"same", "acme-two/same"}


def test_one_distribution_names_one_module_twice(site):
    site.add("acme-twice", good("acme_toy"), entries=["a = acme_twice", "b = acme_twice"])
    registry = site.discover()
    assert list(registry) == ["acme_toy"]
    first, second = registry.plugins
    assert (first.state, second.state) == ("loaded", "failed")
    assert "acme-twice registers the variant 'acme_toy' twice" in second.reason


def test_two_plugins_register_one_variant(site):
    for name in ("acme-one", "acme-two"):
        site.add(name, good("acme_toy"))
    registry = site.discover(strict=True)
    assert list(registry) == []
    assert registry.duplicates == {"acme_toy": ("acme-one", "acme-two")}
    with pytest.raises(attnreg.OptionError, match="acme-one/acme_toy or acme-two/acme_toy"):
        registry.variant("acme_toy")
    assert registry.owner("Acme_Two/acme_toy") == "acme-two"


def test_one_id_of_two_plugins_is_the_firsts(site):
    for name in ("acme-one", "acme-two"):
        module = name.replace("-", "_")
        site.add(
            name, good(module) + EVERYTHING.format(name=module).replace(f'"{module}.law"', '"law"')
        )
    registry = site.discover()
    assert set(registry.positions) == set(registry.panels) == {"acme_one"}
    assert "the check 'law' is already registered" in registry.broken["acme_two"].reason
    assert list(registry) == ["acme_one"]
    names = [one.name for one in registry["acme_one"].implementations]
    assert "fast" in names


def test_a_share_is_taken_back_whole_and_in_rounds(site):
    """The middle one's variant goes with its fault, and so does what the last one has for it."""
    site.add("acme-a", good("acme_a") + EVERYTHING.format(name="acme_b"))
    site.add("acme-b", good("acme_b") + EVERYTHING.format(name="acme_nowhere"))
    site.add("acme-c", good("acme_c"))
    registry = site.discover()
    assert list(registry) == ["acme_c"]
    assert "is for 'acme_nowhere', which nobody registers" in registry.broken["acme_b"].reason
    assert "is for 'acme_b', which nobody registers" in registry.broken["acme_a"].reason
    assert not {*registry.checks, *registry.positions, *registry.panels}


# --- what a plugin may not reach ----------------------------------------------------------------


def test_registration_is_closed_after_the_hook(site):
    keeps = "\n\nkept = []\n\n\n@attnreg.hookimpl\ndef attnreg_register_checks(register):\n"
    site.add("acme-toy", good("acme_toy") + keeps + "    kept.append(register)\n")
    registry = site.discover(strict=True)
    (register,) = sys.modules["acme_toy"].kept
    with pytest.raises(attnreg.AttnregError, match="registration is closed"):
        register(attnreg.Check("acme.late", print))
    register.__self__.variants.clear()  # all that it reaches is what it registered itself
    assert list(registry) == ["acme_toy"]
    assert not registry.checks


def test_the_tables_cannot_be_changed(site):
    site.add("acme-toy", good("acme_toy") + EVERYTHING.format(name="acme_toy"))
    registry = site.discover(strict=True)
    for table in (registry, registry.checks, registry.positions, registry.panels):
        assert len(table) == 1
        with pytest.raises(TypeError):
            table["acme"] = None
        with pytest.raises(TypeError):
            del table[next(iter(table))]
    with pytest.raises(AttributeError):
        registry.checks = {}
    registry.broken["x"] = registry.duplicates["x"] = None  # copies
    assert not registry.broken
    assert not registry.duplicates


def test_a_plugin_cannot_ask_for_variants_while_it_is_loaded(site):
    site.add("acme-early", "import attnreg\nattnreg.list_variants()\n" + good("acme_early"))
    site.add("acme-toy", good("acme_toy"))
    registry = attnreg.default_registry()
    assert list(registry) == ["acme_toy"]
    assert "asks for variants while it is loaded" in registry.broken["acme_early"].reason


# --- installations that change meanwhile --------------------------------------------------------


@pytest.mark.parametrize("loads", [True, False])
def test_removed_between_discovery_and_load(loads, site):
    info = site.add("acme-b", good("acme_b"))
    remover = f"import os, shutil\nshutil.rmtree({str(info)!r})\n"
    if not loads:
        remover += f"os.remove({str(site.folder / 'acme_b.py')!r})\n"
    site.add("acme-a", remover + good("acme_a"))
    registry = site.discover()
    assert list(registry) == ["acme_a"]
    plugin = registry.broken["acme_b"]
    assert "acme-b 1.0 was removed or replaced while it was loaded" in plugin.reason
    assert "start Python again" in plugin.reason
    assert (plugin.error.__cause__ is None) == loads


def test_upgraded_in_place(site):
    info = site.add("acme-b", good("acme_b"))
    new = install(site.folder / "new", "acme-b", version="2.0")
    mover = "import os, shutil\n"
    mover += (
        f"shutil.rmtree({str(info)!r})\nos.rename({str(new)!r}, {str(site.folder / new.name)!r})\n"
    )
    site.add("acme-a", mover + good("acme_a"))
    registry = site.discover()
    assert list(registry) == ["acme_a"]
    assert "acme-b 1.0 was removed or replaced" in registry.broken["acme_b"].reason
    again = site.discover(strict=True)  # as after a start: the new one is the one that is there
    assert {one.name: one.version for one in again.plugins} == {"acme_a": "1.0", "acme_b": "2.0"}
    assert list(again) == ["acme_a", "acme_b"]


def test_a_registry_keeps_what_it_loaded(site):
    info = site.add("acme-toy", good("acme_toy"))
    registry = site.discover(strict=True)
    shutil.rmtree(info)
    assert list(registry.discover(strict=True)) == ["acme_toy"]
    assert len(registry.plugins) == 1
    assert list(Registry().discover()) == []
