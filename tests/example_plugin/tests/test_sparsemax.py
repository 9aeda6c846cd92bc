"""The conformance suite, one test per check, and numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

import attnreg
from attnreg.conformance import pytest_suite
from attnreg_sparsemax import VARIANT
from attnreg_sparsemax.module import sparsemax

test_conformance = pytest_suite(VARIANT)


def test_it_is_found_by_its_entry_point():
    registry = attnreg.default_registry()
    assert registry.variant(VARIANT.name).factory is VARIANT.factory
    assert registry.owner(VARIANT.name) == "attnreg-sparsemax"


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([2.0, 1.5, 1.0], [0.75, 0.25, 0.0]),
        ([0.0, 0.0], [0.5, 0.5]),
        ([1.0, 0.0], [1.0, 0.0]),
        ([1e30, -1e30, 1e30], [0.5, 0.0, 0.5]),
        ([7.0], [1.0]),
    ],
)
def test_numbers_worked_out_by_hand(logits, expected):
    assert sparsemax(torch.tensor(logits)).tolist() == expected


def test_hidden_keys_and_rows_that_see_nothing():
    logits = torch.tensor([[9.0, 2.0, 1.5], [1.0, 2.0, 3.0]], requires_grad=True)
    visible = torch.tensor([[False, True, True], [False, False, False]])
    weights = sparsemax(logits, visible)
    assert weights.tolist() == [[0.0, 0.75, 0.25], [0.0, 0.0, 0.0]]
    weights[:, 1].sum().backward()
    assert logits.grad.tolist() == [[0.0, 0.5, -0.5], [0.0, 0.0, 0.0]]


def test_no_keys_and_no_numbers():
    assert sparsemax(torch.zeros(2, 0)).shape == (2, 0)
    weights = sparsemax(torch.tensor([[torch.nan, 1.0], [2.0, 0.0]]))
    assert weights[0].isnan().all()
    assert weights[1].tolist() == [1.0, 0.0]


def test_the_gradient_is_that_of_the_projection():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 9, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(sparsemax, logits)
