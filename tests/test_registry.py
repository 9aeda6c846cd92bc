"""Discovery and registration: one plugin's fault is its own."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest
import torch

import attnreg
from attnreg import Capabilities, Implementation, Position, Registry, Variant, hookimpl
from attnreg.discovery import Installed
from attnreg.hookspecs import Check, Panel


class Mean(torch.nn.Module):
    """Every query gets the mean of the values."""

    capabilities = Capabilities(weights="implied", normalized=True)

    def __init__(self, dims):
        super().__init__()

    def forward(self, query, key, value, mask):
        return value.mean(dim=2, keepdim=True).expand(*query.shape[:3], value.shape[3])


def plugin(*registrations, contract=1, **hooks):
    """A module that registers these variants, and implements these other hooks."""
    module = ModuleType("fake")
    module.ATTNREG_CONTRACT = contract

    @hookimpl
    def attnreg_register_variants(register):
        for one in registrations:
            register(one)

    module.attnreg_register_variants = attnreg_register_variants
    for name, function in hooks.items():
        setattr(module, name, hookimpl(function))
    return module


def mean(name="mean"):
    return Variant(name, Mean, summary="the mean of the values")


def test_a_registry_is_a_read_only_mapping():
    registry = Registry()
    assert len(registry) == 0
    registry.add_plugin(plugin(mean(), mean("average")), name="fake", distribution="fake-dist")
    assert list(registry) == ["average", "mean"]
    assert registry["mean"].summary == "the mean of the values"
    assert registry.owner("mean") == "fake-dist"
    assert "median" not in registry
    with pytest.raises(TypeError):
        registry["mean"] = mean()
    attn = registry.create("mean", num_heads=2, head_dim=3)
    query, value = torch.randn(1, 2, 4, 3), torch.randn(1, 2, 4, 3)
    torch.testing.assert_close(attn(query, query, value)[0, 0, 0], value[0, 0].mean(0))
    torch.testing.assert_close(attn.weights(query, query), torch.full((1, 2, 4, 4), 0.25))


def test_every_installed_plugin_is_loaded():
    registry = attnreg.default_registry()
    assert attnreg.list_variants() == sorted(registry)
    assert not registry.broken
    assert set(attnreg.registry.KNOWN_PLUGINS) <= set(registry)
    assert {registry.owner(name) for name in registry} >= {"attnreg-linear"}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda: (_ for _ in ()).throw(RuntimeError("boom")), "RuntimeError: boom"),
        (lambda: sys.exit(3), "SystemExit: 3"),
        (plugin(contract=2), "built for contract 2, this attnreg has 1"),
        (plugin(contract=None), "built for contract None"),
        (plugin(attnreg_register_varients=lambda register: None), "unknown hook"),
        (plugin(mean(), mean()), "registered twice"),
        (plugin("not a variant"), "register takes Variant, got str"),
        (
            plugin(mean(), attnreg_register_checks=lambda register: 1 / 0),
            "ZeroDivisionError",
        ),
    ],
)
def test_a_faulty_plugin_leaves_nothing_behind(broken, message, monkeypatch):
    monkeypatch.delenv("ATTNREG_STRICT", raising=False)
    registry = Registry()
    registry.add_plugin(broken, name="bad", distribution="bad-dist")
    registry.add_plugin(plugin(mean("good")), name="good", distribution="good-dist")
    assert list(registry) == ["good"]
    assert (
        message in f"{type(registry.broken['bad'].error).__name__}: {registry.broken['bad'].error}"
    )
    with pytest.raises(attnreg.BrokenPlugin, match="'bad' of bad-dist") as caught:
        registry.create("bad", num_heads=1, head_dim=1)
    assert isinstance(caught.value, ImportError)
    assert caught.value.__cause__ is registry.broken["bad"].error
    monkeypatch.setenv("ATTNREG_STRICT", "1")
    with pytest.raises(attnreg.BrokenPlugin):
        Registry().add_plugin(broken, name="bad", distribution="bad-dist")
    Registry().add_plugin(broken, name="bad", strict=False)


def test_two_distributions_claim_one_name():
    registry = Registry()
    registry.add_plugin(plugin(mean()), name="one", distribution="one-dist")
    other = Variant("mean", Mean, summary="the other")
    registry.add_plugin(plugin(other), name="two", distribution="two_dist")
    assert list(registry) == []
    assert registry.duplicates == {"mean": ("one-dist", "two_dist")}
    with pytest.raises(attnreg.OptionError, match="one-dist/mean or two_dist/mean"):
        registry.create("mean", num_heads=1, head_dim=1)
    assert registry.variant("two-dist/mean").summary == "the other"
    assert registry.variant("one-dist/mean").summary == "the mean of the values"
    assert registry.owner("two-dist/mean") == "two_dist"
    attn = registry.create("one-dist/mean", num_heads=1, head_dim=1)
    assert attn.variant.name == "mean"


def test_unknown_names():
    registry = Registry()
    with pytest.raises(attnreg.UnknownVariant, match="pip install attnreg-sparse-window") as caught:
        registry.variant("sparse_window")
    assert isinstance(caught.value, LookupError)
    assert not str(caught.value).startswith("'")
    with pytest.raises(attnreg.UnknownVariant) as caught:
        registry.variant("sparse_windw")
    assert "pip install" not in str(caught.value)  # a name is suggested only from the table
    registry.add_plugin(plugin(mean()), name="fake")
    with pytest.raises(attnreg.UnknownVariant, match="Did you mean 'mean'"):
        registry.variant("maen")


def test_implementations_for_somebody_elses_variant():
    def fast(module, query, key, value, mask):
        return torch.zeros_like(query)

    extra = Implementation("zero", fast, rank=50)
    registry = Registry()
    registry.add_plugin(
        plugin(attnreg_register_implementations=lambda register: register("mean", extra)),
        name="fast",
    )
    registry.add_plugin(plugin(mean()), name="fake")
    assert [one.name for one in registry.variant("mean").implementations] == ["zero", "eager"]
    assert [one.name for one in registry["mean"].implementations] == ["zero", "eager"]
    attn = registry.create("mean", num_heads=1, head_dim=2)
    ones = torch.ones(1, 1, 3, 2)
    assert not attn(ones, ones, ones).any()
    assert attn.explain(ones, ones, ones).chosen == "zero"
    named = registry.create("mean", num_heads=1, head_dim=2, implementation="eager")
    assert named(ones, ones, ones).all()


def test_an_implementation_that_can_never_run_is_its_own_plugins_fault(monkeypatch):
    """It neither breaks the variant nor passes in silence."""
    monkeypatch.setattr("attnreg.registry.installed", lambda: Installed((), ()))

    def rival(target, name):
        one = Implementation(name, print, rank=50)
        return plugin(attnreg_register_implementations=lambda register: register(target, one))

    for target, name, message in (
        ("mean", "eager", "'eager' of rival-dist exists already"),
        ("median", "fast", "for 'median', which nobody registers"),
    ):
        registry = Registry()
        registry.add_plugin(rival(target, name), name="rival", distribution="rival-dist")
        registry.add_plugin(plugin(mean()), name="fake", distribution="fake-dist")
        assert [one.name for one in registry["mean"].implementations] == ["eager"]
        registry.discover(strict=False)
        assert message in str(registry.broken["rival"].error)
        assert list(registry.broken) == ["rival"]
        with pytest.raises(attnreg.BrokenPlugin, match=message):
            registry.discover(strict=True)


def test_discovering_twice_changes_nothing():
    registry = Registry().discover()
    names, plugins = list(registry), registry.plugins
    assert list(registry.discover()) == names
    assert registry.plugins == plugins
    assert not registry.broken


def test_optional_hooks_and_taken_ids():
    module = plugin(mean())
    module.attnreg_future_hook = hookimpl(optionalhook=True)(lambda register: None)
    registry = Registry()
    registry.add_plugin(module, name="ahead")
    assert list(registry) == ["mean"]
    for name in ("one", "two"):
        registry.add_plugin(
            plugin(attnreg_register_panels=lambda register: register(Panel("maps", {}, "a:b"))),
            name=name,
        )
    assert "the panel 'maps' is already registered" in str(registry.broken["two"].error)


def test_other_hooks():
    registry = Registry()
    registry.add_plugin(
        plugin(
            attnreg_register_checks=lambda register: register(Check("x.law", print)),
            attnreg_register_positions=lambda register: register(Position("none", Mean, "")),
            attnreg_register_panels=lambda register: register(
                Panel("maps", {"en": "Maps", "zh": "图"}, "package:build")
            ),
        ),
        name="fake",
    )
    assert not registry.broken
    assert set(registry.checks) == {"x.law"}
    assert set(registry.positions) == {"none"}
    assert registry.panels["maps"].title["zh"] == "图"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "Bad-Name"}, "lower-case"),
        ({"factory": 5}, "factory must be a class or a function"),
        ({"capabilities": {"causal": True}}, "must be a Capabilities"),
        ({"implementations": (5,)}, "must be Implementation values"),
        ({"implementations": (Implementation("a", print), Implementation("a", print))}, "one name"),
    ],
)
def test_variants_that_cannot_be(arguments, message):
    with pytest.raises(attnreg.OptionError, match=message):
        Variant(**{"name": "x", "factory": Mean, "summary": "", **arguments})


def test_values_that_cannot_be():
    for arguments in ((5, print), ("a", 5)):
        with pytest.raises(attnreg.OptionError, match="a name and two functions"):
            Implementation(*arguments)
    with pytest.raises(attnreg.OptionError, match="rank must be an integer"):
        Implementation("a", print, rank="high")
    for field in ("decode", "weights", "dtypes"):
        with pytest.raises(attnreg.OptionError, match=f"{field} must be"):
            Capabilities(**{field: "foo"})
    for wrong in (None, 5, b"linear"):
        with pytest.raises(attnreg.UnknownVariant, match="by its name"):
            attnreg.get_variant(wrong)
    for wrong in (torch.int32, torch.complex64, "float32"):
        with pytest.raises(attnreg.DtypeError, match=r"a floating torch\.dtype"):
            attnreg.create("linear", num_heads=1, head_dim=2, dtype=wrong)


def test_an_error_that_cannot_be_printed():
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError

    def broken():
        raise Unprintable

    registry = Registry()
    registry.add_plugin(broken, name="bad", strict=False)
    with pytest.raises(attnreg.BrokenPlugin, match="Unprintable"):
        registry.variant("bad")


def test_everything_public_is_there_and_importing_is_light():
    code = (
        "import attnreg, sys; assert 'torch' not in sys.modules; "
        "[getattr(attnreg, name) for name in dir(attnreg)]; assert 'torch' in sys.modules; "
        "assert 'attnreg_linear' not in sys.modules, 'plugins load at the first use'"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    for name in ("Attention", "Mask", "Dims", "Variant", "create", "AttentionLayer", "hookimpl"):
        assert name in dir(attnreg)
    with pytest.raises(AttributeError, match="nothing"):
        _ = attnreg.nothing
