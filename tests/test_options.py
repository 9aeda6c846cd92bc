"""Options: read, checked, described and parsed from a constructor's signature."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from annotated_doc import Doc
from annotated_types import Ge, Interval

import attnreg
from attnreg.options import options_of, validate


class Base:
    def __init__(self, dims, *, scale: float | None = None, dropout: float = 0.0):
        pass


class Everything(Base):
    def __init__(
        self,
        dims: UnknownHere,  # noqa: F821  # other annotations need not be importable
        *,
        rate: Annotated[float, Interval(gt=0, le=2), Doc("how fast")] = 1.0,
        count: Annotated[int | None, Ge(1)] = None,
        kind: Annotated[Literal["a", "b"], Doc("which")] = "a",
        flag: bool | None = None,
        label: str = "x",
        places: Annotated[int | tuple[int, ...], Interval(ge=0)] = 0,
        **common: Any,
    ):
        super().__init__(dims, **common)


OPTIONS = {option.name: option for option in options_of(Everything)}


def test_what_is_read():
    assert list(OPTIONS) == ["rate", "count", "kind", "flag", "label", "places"]
    rate = OPTIONS["rate"]
    assert (rate.default, rate.minimum, rate.maximum, rate.open_minimum) == (1.0, 0, 2, True)
    assert rate.doc == "how fast"
    assert rate.allowed == "a number, above 0, at most 2"
    assert OPTIONS["kind"].choices == ("a", "b")
    assert OPTIONS["kind"].allowed == "one of 'a', 'b'"
    assert OPTIONS["places"].allowed == "an integer or a tuple of integers, at least 0"
    assert OPTIONS["flag"].allowed == "True or False or None"


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("rate", 2, 2.0),
        ("rate", np.float32(0.5), 0.5),
        ("count", None, None),
        ("count", np.int64(3), 3),
        ("kind", "b", "b"),
        ("flag", False, False),
        ("flag", None, None),
        ("label", "y", "y"),
        ("places", 3, 3),
        ("places", [1, 2], (1, 2)),
        ("places", (), ()),
    ],
)
def test_what_is_taken(name, value, kept):
    found = OPTIONS[name].check(value)
    assert found == kept
    assert type(found) is type(kept)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rate", 0),
        ("rate", 2.1),
        ("rate", float("nan")),
        ("rate", float("inf")),
        ("rate", True),
        ("rate", 10**400),
        ("kind", np.array(["a", "b"])),
        ("rate", "1"),
        ("rate", None),
        ("count", 0),
        ("count", 1.0),
        ("count", True),
        ("kind", "c"),
        ("kind", None),
        ("flag", 1),
        ("label", 3),
        ("places", -1),
        ("places", (1, -2)),
        ("places", (1.5,)),
        ("places", (True,)),
    ],
)
def test_what_is_refused(name, value):
    with pytest.raises(attnreg.OptionError, match=f"{name} must be"):
        OPTIONS[name].check(value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rate", " 0.5 ", 0.5),
        ("rate", "1e-3", 1e-3),
        ("count", "none", None),
        ("count", "", None),
        ("count", "7", 7),
        ("kind", "b", "b"),
        ("flag", "True", True),
        ("flag", "none", None),
        ("label", "y", "y"),
        ("places", "3", 3),
        ("places", "3,", (3,)),
        ("places", "0, 2", (0, 2)),
    ],
)
def test_what_is_parsed(name, text, value):
    assert OPTIONS[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [("rate", "fast"), ("rate", "3"), ("count", "1.5"), ("kind", "c"), ("places", "a,b")],
)
def test_what_cannot_be_parsed(name, text):
    with pytest.raises(attnreg.OptionError, match=f"{name} must be"):
        OPTIONS[name].parse(text)


def test_unknown_options_name_the_known():
    with pytest.raises(attnreg.OptionError, match=r"thing has no option 'kinds'.*'kind'.*rate, c"):
        validate("thing", options_of(Everything), {"kinds": "a"})
    assert validate("thing", options_of(Everything), {"rate": 1}) == {"rate": 1.0}


def test_options_that_cannot_be_read():
    def no_default(dims, *, size: int):
        pass

    def strange(dims, *, size: dict[str, int] = {}):  # noqa: B006  # refused, never called
        pass

    for factory, message in ((no_default, "has no default"), (strange, "typed dict")):
        with pytest.raises(attnreg.OptionError, match=message):
            attnreg.Variant("x", factory, summary="")


@pytest.mark.parametrize("name", attnreg.list_variants())
def test_every_registered_option_is_documented_and_takes_its_default(name):
    for option in attnreg.get_variant(name).options:
        assert option.doc, option.name
        assert option.allowed
        assert option.check(option.default) == option.default


def test_capabilities_and_errors_have_their_kinds():
    kinds = {
        "ShapeError": ValueError,
        "OptionError": ValueError,
        "LengthError": ValueError,
        "DtypeError": TypeError,
        "MaskTypeError": TypeError,
        "UnknownVariant": LookupError,
        "UnsupportedMask": NotImplementedError,
        "UnsupportedFeature": NotImplementedError,
        "BrokenPlugin": ImportError,
    }
    for name, kind in kinds.items():
        error = getattr(attnreg, name)
        assert issubclass(error, kind)
        assert issubclass(error, attnreg.AttnregError)


def test_strict_types_see_the_public_names(tmp_path):
    source = tmp_path / "user.py"
    source.write_text(
        "import torch\n"
        "import attnreg\n"
        "from attnreg import AttentionLayer, Mask, Variant, create\n"
        "attn = create('linear', num_heads=2, head_dim=4)\n"
        "x: torch.Tensor = attn(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4),\n"
        "    torch.ones(1, 2, 3, 4), Mask(causal=True))\n"
        "layer: torch.nn.Module = AttentionLayer(8, 2, attention='linear')\n"
        "variant: Variant = attnreg.get_variant('linear')\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stdout
