"""The form of a variant: every option read back, wrong values as sentences."""

from __future__ import annotations

import numpy as np
import pytest

import attnreg
from attnreg import OptionError
from attnreg_playground.form import SCALE, allowed, describe, fields_of, help_of, read_form, show
from attnreg_playground.texts import LANGUAGES, localise

NAMES = attnreg.list_variants()


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_read_back(name):
    variant = attnreg.get_variant(name)
    fields = fields_of(variant)
    assert {field.name for field in fields} == {one.name for one in variant.options} | (
        {"scale"} & variant.common
    )
    assert [one["name"] for one in describe(variant)] == [field.name for field in fields]
    assert read_form(variant, {}) == ({}, [])
    for field in fields:
        assert field.read(field.initial) == field.option.default
        assert type(field.read(field.initial)) is type(field.option.default)
        for language in LANGUAGES:
            assert localise(allowed(field.option), language)
            said = localise(help_of(field.option), language)
            assert field.option.choices or said or field.widget == "check"
        for _, value in field.choices:
            field.option.check(field.read(value))
        for bad in ("no such value", "", "nan", "1e999", None, [], {}, -1e300, "--", "1,,x"):
            values, wrong = read_form(variant, {field.name: bad})
            if wrong:
                assert not values
                for language in LANGUAGES:
                    said = localise(wrong[0].detail, language)
                    assert said.startswith(field.name)
            elif values:
                field.option.check(values[field.name])


def test_odd_options_of_a_third_party(fakes, shown):
    registry = fakes.registry()
    fields = {field.name: field for field in fields_of(registry.variant("odd"))}
    assert fields["mode"].read(fakes.HOSTILE) == fakes.HOSTILE
    rungs = [fields["rungs"].read(value) for _, value in fields["rungs"].choices]
    assert [(type(one), one) for one in rungs] == [(int, 1), (str, "1"), (bool, True)]
    assert fields["maybe"].read("None") is None
    flags = [fields["flag"].read(value) for _, value in fields["flag"].choices]
    assert flags == [True, False, None]
    assert fields["share"].widget == "slider"
    assert fields["share"].step == pytest.approx(0.01)
    assert fields["count"].read(3.0) == 3
    assert isinstance(fields["count"].read(3.0), int)
    with pytest.raises(OptionError):
        fields["count"].read(2.5)
    assert fields["places"].initial == "3,"
    assert fields["places"].read("0, 2,5") == (0, 2, 5)
    found = shown("explore", registry, variant="odd", options={"places": "1,2", "bias": "0.5"})
    assert found.arrays["weights"].shape == (4, 3, 3)
    assert np.allclose(found.arrays["weights"], 1 / 3)


def test_scale_is_an_option_where_the_variant_has_one(shown):
    loud = shown("explore", options={"scale": "100"})
    assert loud.arrays["weights"].max() > 0.999
    flat = shown("explore", options={"scale": "0"})
    assert np.allclose(flat.arrays["weights"], 1 / 3)
    assert SCALE not in [field.option for field in fields_of(attnreg.get_variant("linear"))]


def test_values_of_another_variant_are_never_used(shown):
    plain = shown("explore", variant="linear")
    held = shown("explore", variant="linear", options={"temperature": "0.01", "tau": "broken"})
    assert np.array_equal(plain.arrays["weights"], held.arrays["weights"])


def test_show_writes_what_parse_reads():
    assert show((1, 2)) == "1,2"
    assert show((3,)) == "3,"
    assert show(0.1) == "0.1"
    assert show(None) == "None"
