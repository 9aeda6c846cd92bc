"""The form of a variant: every option read back, wrong values as sentences."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attnreg
from attnreg import OptionError
from attnreg_playground import heatmap
from attnreg_playground.explore import (
    Controls,
    look,
)
from attnreg_playground.form import SCALE, allowed, fields_of, help_of, read_form
from attnreg_playground.inputs import Problem
from attnreg_playground.texts import LANGUAGES
from attnreg_playground.wording import word, word_problem

REGISTRY = attnreg.default_registry()
NAMES = list(REGISTRY)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_read_back(name):
    variant = attnreg.get_variant(name)
    fields = fields_of(variant)
    assert {field.name for field in fields} == {one.name for one in variant.options} | (
        {"scale"} & variant.common
    )
    assert read_form(variant, {}) == ({}, [])
    for field in fields:
        assert field.read(field.initial) == field.option.default
        assert type(field.read(field.initial)) is type(field.option.default)
        for language in LANGUAGES:
            assert allowed(field.option, language)
            assert (
                field.option.choices or help_of(field.option, language) or field.widget == "check"
            )
        for _, value in field.choices:
            field.option.check(field.read(value))
        for bad in ("no such value", "", "nan", "1e999", None, [], {}, -1e300, "--", "1,,x"):
            values, wrong = read_form(variant, {field.name: bad})
            if wrong:
                assert not values
                for language in LANGUAGES:
                    said = word(wrong[0].detail, language)
                    assert said.startswith(field.name)
                    assert "Traceback" not in said
            elif values:
                field.option.check(values[field.name])


def test_odd_options_of_a_third_party(fakes, picture):
    variant = fakes.registry().variant("odd")
    fields = {field.name: field for field in fields_of(variant)}
    assert fields["mode"].read(fakes.HOSTILE) == fakes.HOSTILE
    rungs = [fields["rungs"].read(value) for _, value in fields["rungs"].choices]
    assert [(type(one), one) for one in rungs] == [(int, 1), (str, "1"), (bool, True)]
    assert fields["maybe"].read("None") is None
    assert [fields["flag"].read(value) for _, value in fields["flag"].choices] == [
        True,
        False,
        None,
    ]
    assert fields["share"].widget == "slider"
    assert fields["share"].step == pytest.approx(0.01)
    assert fields["count"].read(3.0) == 3
    assert isinstance(fields["count"].read(3.0), int)
    with pytest.raises(OptionError):
        fields["count"].read(2.5)
    assert fields["places"].initial == "3,"
    assert fields["places"].read("0, 2,5") == (0, 2, 5)
    shown = picture("odd", fakes.registry(), options={"odd": {"places": "1,2", "bias": "0.5"}})
    assert shown.weights.shape == (4, 3, 3)
    assert np.allclose(shown.weights, 1 / 3)


def test_scale_is_an_option_where_the_variant_has_one(picture):
    loud = picture("scaled_dot_product", options={"scaled_dot_product": {"scale": "100"}})
    assert loud.weights.max() > 0.999
    flat = picture("scaled_dot_product", options={"scaled_dot_product": {"scale": "0"}})
    assert np.allclose(flat.weights, 1 / 3)
    assert SCALE not in [field.option for field in fields_of(attnreg.get_variant("linear"))]


def test_values_of_another_variant_are_never_used(picture):
    plain = picture("linear")
    held = {"scaled_dot_product": {"temperature": "0.01"}, "cosine": {"init_scale": "broken"}}
    assert np.array_equal(picture("linear", options=held).weights, plain.weights)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"options": {"scaled_dot_product": {"temperature": "0"}}}, "at least 1e-30"),
        ({"heads": 0}, "heads"), ({"heads": 10**9}, "heads"), ({"seed": "x"}, "seed"),
        ({"padding": -1}, "padding"), ({"layer": 2.5}, "layer"), ({"heads": float("nan")}, "heads"),
        ({"variant": "no_such"}, "no_such"), ({"variant": None}, "none"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_a_sentence(changes, said, controls):
    given = {"name": "scaled_dot_product"} | changes
    given["variant"] = given.get("variant", "scaled_dot_product")
    given.pop("name")
    shown = look(REGISTRY, Controls(**(vars(controls("x")) | given))).shown
    assert isinstance(shown, Problem)
    assert said in word_problem(shown, "en")["detail"].lower()
    assert "control." not in word_problem(shown, "zh")["detail"]
    json.dumps(heatmap.payload(shown, 0, "zh"), allow_nan=False)
