"""What arrives from a browser is never trusted: every control takes its own values alone."""

from __future__ import annotations

import base64
import time

import pytest

from attnreg_playground.controls import Control, Wrong, read_all
from attnreg_playground.pages.index import PAGES
from attnreg_playground.texts import LANGUAGES, Problem, localise

NASTY = [
    None, "", "x", "1e6", -1, 0.5, 10**9, 10**18, 10**400, float("nan"), float("inf"), True, [], {},
    [[]], [["x"]], {"a": {}}, "../x", "os:system", "a\x00b", [None] * 5, "\ud800",
    "九" * 100_000,
]  # fmt: skip
EVERY = [(page.id, one) for page in PAGES.values() for one in page.controls]


@pytest.mark.parametrize(("page", "control"), EVERY, ids=lambda one: getattr(one, "name", one))
def test_a_control_takes_its_default_and_refuses_the_rest_in_a_sentence(page, control):
    assert control.read(control.default) == control.default
    for raw in NASTY:
        begun = time.perf_counter()
        found = _read(control, raw)
        assert time.perf_counter() - begun < 0.1
        if not isinstance(found, Problem):
            assert type(found) in {type(control.default), int, float, str}
            continue
        assert found.control == control.name
        for language in LANGUAGES:
            told = localise(found, language)
            assert told["title"]
            assert len(told["detail"]) < 600


def _read(control, raw):
    try:
        return control.read(raw)
    except Wrong as error:
        return error.problem


def test_whole_numbers_stay_whole_and_bounds_hold():
    heads = Control("heads", "slider", 4, low=1, high=16)
    assert heads.read(3.0) == 3
    assert isinstance(heads.read(3.0), int)
    for raw in (0, 17, 2.5, float("nan"), True, "3", None):
        with pytest.raises(Wrong):
            heads.read(raw)
    warm = Control("t", "slider", 1.0, low=0.05, high=5.0, step=0.05)
    assert warm.read(2) == 2.0
    assert isinstance(warm.read(2), float)


def test_matrices_have_their_shape():
    cells = Control("x", "matrix", [[1.0]], low=-2, high=2, shape=(1, 2))
    assert cells.read([[1, 2]]) == [[1.0, 2.0]]
    for raw in ([[1]], [[1, 2], [1, 2]], [[1, 3]], [[1, float("nan")]], [[True, 1]], "1,2", [1, 2]):
        with pytest.raises(Wrong):
            cells.read(raw)


def test_pixels_are_as_many_as_the_image_has():
    image = Control("pixels", "pixels", "", shape=(2, 3))
    good = base64.b64encode(bytes(6)).decode()
    assert image.read(good) == good
    for raw in (base64.b64encode(bytes(7)).decode(), "%%%", 3, None):
        with pytest.raises(Wrong):
            image.read(raw)


def test_a_state_that_is_none_is_refused():
    for raw in (None, [], "x", 3):
        with pytest.raises(Wrong):
            read_all(PAGES["explore"].controls, raw)
    assert read_all(PAGES["explore"].controls, {"unknown": 1})["heads"] == 4
