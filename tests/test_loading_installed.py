"""Discovery: what is installed is known without importing it, and the variables choose."""

from __future__ import annotations

import os
import random
import shutil
import site as python_site
import subprocess
import sys
import threading
from importlib import metadata

import pytest

import attnreg
from attnreg.discovery import installed
from tests.throwaway import good, install, isolated


@pytest.fixture
def site(tmp_path, monkeypatch):
    with isolated(tmp_path / "site", monkeypatch) as made:
        yield made


@pytest.fixture
def three(site):
    for name in ("acme-a", "acme-b", "acme-c"):
        site.add(name, good(name.replace("-", "_")))
    return site


def states(registry):
    return {plugin.name: plugin.state for plugin in registry.plugins}


# --- metadata alone -----------------------------------------------------------------------------


def test_two_hundred_distributions_are_listed_and_none_is_imported(site):
    for number in range(200):
        site.add(f"acme-{number:03}", "raise AssertionError('imported')")
    found = installed()
    assert [plugin.name for plugin in found.plugins] == [f"acme_{n:03}" for n in range(200)]
    assert {plugin.state for plugin in found.plugins} == {"discovered"}
    assert {plugin.version for plugin in found.plugins} == {"1.0"}
    assert found.warnings == ()
    assert not [name for name in sys.modules if name.startswith("acme")]


def test_listing_needs_neither_torch_nor_pluggy():
    code = (
        "import sys; from attnreg.discovery import installed; print(len(installed().plugins)); "
        "assert not {'torch', 'numpy', 'pluggy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True)


def test_an_empty_folder_of_an_upgrade_hides_nothing(site):
    (site.folder / "acme_toy-0.9.dist-info").mkdir()
    (site.folder / "acme_other-0.9.dist-info").mkdir()
    site.add("acme-toy", good("acme_toy"))
    registry = site.discover(strict=True)
    assert list(registry) == ["acme_toy"]
    assert registry.plugins[0].version == "1.0"
    assert registry.warnings == ()


def test_a_distribution_without_metadata_still_works_and_is_named(site):
    site.add("acme-bare", good("acme_bare"), facts="")
    site.add("acme-more", good("acme_more"), facts="")
    registry = site.discover(strict=True)
    assert list(registry) == ["acme_bare", "acme_more"]
    assert {(one.distribution, one.version) for one in registry.plugins} == {("unknown", "")}
    assert len(registry.warnings) == 2
    assert "acme_bare (module acme_bare): its distribution has no name" in registry.warnings[0]


@pytest.mark.parametrize("name", ["METADATA", "entry_points.txt"])
def test_metadata_that_is_no_text_costs_only_its_own(name, site):
    info = site.add("acme-bad", good("acme_bad"))
    (info / name).write_bytes(b"\xff\xfe[attnreg]\x00")
    site.add("acme-toy", good("acme_toy"))
    registry = site.discover(strict=True)
    assert list(registry) == ["acme_toy"]
    (text,) = registry.warnings
    assert "cannot be read (UnicodeDecodeError" in text
    assert "install it again, or remove it" in text
    assert ("acme-bad" in text) == (name != "METADATA")


def test_entry_points_that_cannot_be_parsed(site):
    info = site.add("acme-bad", good("acme_bad"))
    (info / "entry_points.txt").write_text("attnreg\n= =\n[attnreg\n]\n", encoding="utf-8")
    site.add("acme-toy", good("acme_toy"))
    assert list(site.discover(strict=True)) == ["acme_toy"]


def test_a_finder_that_fails_ends_the_list_and_nothing_else(three, monkeypatch):
    distributions = metadata.distributions

    def failing():
        yield from distributions()
        raise OSError("no disk")

    monkeypatch.setattr(metadata, "distributions", failing)
    registry = three.discover(strict=True)
    assert len(registry) == 3
    assert registry.warnings == ("the list of what is installed ends early: OSError: no disk",)


def test_a_name_in_any_script(site):
    site.add("acme-größe", good("acme_groesse"), entries=["größe = acme_größe"])
    site.add("acme-注意", good("acme_zhuyi"))
    registry = site.discover(strict=True)
    assert list(registry) == ["acme_groesse", "acme_zhuyi"]
    assert registry.owner("ACME_GRÖSSE/acme_groesse") == "acme-größe"
    assert {one.name for one in registry.plugins} == {"größe", "acme_注意"}


def test_of_one_distribution_twice_on_the_path_the_first_counts(site, monkeypatch):
    other = site.folder.parent / "other"
    install(other, "ACME.toy", good("acme_old"), version="0.5", module="acme_toy")
    site.add("acme-toy", good("acme_toy"))
    site.paths.append(str(other))
    monkeypatch.setattr(sys, "path", [*sys.path, str(other)])
    registry = site.discover(strict=True)
    assert list(registry) == ["acme_toy"]
    assert [one.version for one in registry.plugins] == ["1.0"]


def test_an_editable_install(site, tmp_path):
    """The folder of metadata is on the path, and a .pth names where the source lies."""
    source = tmp_path / "checkout" / "src"
    install(source, "acme-toy", good("acme_toy"))
    shutil.move(source / "acme_toy-1.0.dist-info", site.folder)
    (site.folder / "acme.pth").write_text(f"{source}\n", encoding="utf-8")
    assert "ModuleNotFoundError" in site.discover().broken["acme_toy"].reason
    python_site.addsitedir(str(site.folder))
    assert list(site.discover(strict=True)) == ["acme_toy"]


def test_a_namespace_package(site, monkeypatch):
    other = site.folder.parent / "other"
    site.add("acme-one", good("acme_one"), module="acme_space.one")
    install(other, "acme-two", good("acme_two"), module="acme_space.two")
    site.paths.append(str(other))
    monkeypatch.setattr(sys, "path", [*sys.path, str(other)])
    registry = site.discover(strict=True)
    assert [one.module for one in registry.plugins] == ["acme_space.one", "acme_space.two"]
    assert list(registry) == ["acme_one", "acme_two"]


def test_a_zip_on_the_path(site, monkeypatch):
    site.add("acme-toy", good("acme_toy"))
    archive = shutil.make_archive(str(site.folder.parent / "acme"), "zip", site.folder)
    shutil.rmtree(site.folder)
    site.paths[:] = [archive]
    monkeypatch.setattr(sys, "path", [archive, *sys.path])
    registry = site.discover(strict=True)
    assert list(registry) == ["acme_toy"]
    assert sys.modules["acme_toy"].__file__.startswith(archive)


# --- the variables ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["acme_a", "acme-a", "ACME.A", " acme-a ,", "dist-of-a"])
def test_disable_takes_a_plugin_or_a_distribution_in_any_spelling(name, site, monkeypatch):
    site.add("dist-of-a", "raise AssertionError", module="acme_a", entries=["acme_a = acme_a"])
    site.add("acme-b", good("acme_b"))
    monkeypatch.setenv("ATTNREG_DISABLE", name)
    registry = site.discover(strict=True)
    assert states(registry) == {"acme_a": "disabled", "acme_b": "loaded"}
    assert registry.plugins[0].reason == "ATTNREG_DISABLE names it"
    assert registry.warnings == ()
    assert not registry.broken
    for asked in ("acme_a", "dist-of-a/acme_a"):
        with pytest.raises(attnreg.UnknownVariant, match=r"disabled \(ATTNREG_DISABLE names it"):
            registry.variant(asked)
    with pytest.raises(attnreg.UnknownVariant, match=r"Disabled by .*: acme_a"):
        registry.variant("something")  # which may be what a disabled plugin registers


@pytest.mark.parametrize(
    ("plugins", "disable", "loaded"),
    [
        ("", "", "abc"),
        ("acme_a", "", "a"),
        ("acme_a, acme-c", "", "ac"),
        ("acme_a,acme_b", "acme_b", "a"),
        ("none", "", ""),
    ],
)
def test_what_the_variables_leave(plugins, disable, loaded, three, monkeypatch):
    monkeypatch.setenv("ATTNREG_PLUGINS", plugins)
    monkeypatch.setenv("ATTNREG_DISABLE", disable)
    registry = three.discover(strict=True)
    assert list(registry) == [f"acme_{letter}" for letter in loaded]
    assert {name for name in sys.modules if name.startswith("acme")} == set(registry)
    assert registry.warnings == ()
    others = {one.reason for one in registry.plugins if one.state == "disabled"}
    assert others <= {
        "ATTNREG_DISABLE names it",
        "ATTNREG_PLUGINS does not name it",
        "ATTNREG_PLUGINS=none loads nothing",
    }
    assert registry.discover(strict=True).plugins == registry.plugins


@pytest.mark.parametrize("variable", ["ATTNREG_PLUGINS", "ATTNREG_DISABLE"])
def test_a_name_that_is_nobodys_is_shown(variable, three, monkeypatch):
    monkeypatch.setenv(variable, "acme_a,acme_bb")
    text = f"{variable} names 'acme_bb', which no plugin is called. Did you mean 'acme_b'?"
    assert three.discover(strict=True).warnings == (text,)


def test_an_implementation_for_a_disabled_variant_is_no_fault(three, monkeypatch):
    extra = (
        "\n\n@attnreg.hookimpl\ndef attnreg_register_implementations(register):\n"
        "    register('acme_a', attnreg.Implementation('fast', print))\n"
    )
    three.add("acme-fast", good("acme_fast") + extra)
    monkeypatch.setenv("ATTNREG_DISABLE", "acme_a")
    assert list(three.discover(strict=True)) == ["acme_b", "acme_c", "acme_fast"]


# --- order, threads, processes ------------------------------------------------------------------


def test_the_order_on_disk_does_not_matter(site, monkeypatch):
    law = "\n\n@attnreg.hookimpl\ndef attnreg_register_checks(register):\n"
    law += "    register(attnreg.Check('acme.law', print))\n"
    for name in ("acme_a", "acme_b", "acme_c"):
        site.add(name, good(name) + law)  # of three that claim one id, one has it
    for name in ("acme_d", "acme_e"):
        site.add(name, good("acme_both"), entries=[f"same = {name}"])
    site.add("acme-broken", "1 / 0")

    def seen():
        registry = site.discover()
        plugins = [(one.name, one.distribution, one.state, one.reason) for one in registry.plugins]
        return list(registry), registry.duplicates, list(registry.checks), plugins

    expected = seen()
    assert expected[:3] == (["acme_a"], {"acme_both": ("acme_d", "acme_e")}, ["acme.law"])
    distributions = list(metadata.distributions())
    for seed in range(10):
        shuffled = random.Random(seed).sample(distributions, len(distributions))
        monkeypatch.setattr(metadata, "distributions", lambda found=shuffled: iter(found))
        assert seen() == expected


def test_eight_threads_load_once(site):
    log = site.folder / "log.txt"
    note = f"with open({str(log)!r}, 'a') as log: log.write('{{}} ')\n"
    source = good("acme_toy").replace("    for", f"    {note.format('hook')}    for")
    site.add("acme-toy", f"{note.format('imported')}import time\ntime.sleep(0.2)\n{source}")
    barrier, found = threading.Barrier(8), []

    def ask():
        barrier.wait()
        found.append((attnreg.get_variant("acme_toy").name, id(attnreg.default_registry())))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [("acme_toy", id(attnreg.default_registry()))] * 8
    assert log.read_text(encoding="utf-8") == "imported hook "


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
def test_a_fork_after_loading_has_the_registry(site):
    site.add("acme-toy", good("acme_toy"))
    code = """
import os, sys, torch, attnreg
assert "acme_toy" in attnreg.list_variants()
child = os.fork()
if child == 0:
    x = torch.ones(1, 1, 2, 2)
    ok = attnreg.create("acme_toy", num_heads=1, head_dim=2)(x, x, x).shape == x.shape
    os._exit(0 if ok else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    environment = {**os.environ, "PYTHONPATH": str(site.folder), "ATTNREG_PLUGINS": "acme-toy"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
