"""What is right is not accused: variants written independently of the families pass."""

from __future__ import annotations

import os

import pytest

from attnreg import conformance
from tests.right_variants import RIGHT

PROFILE = os.environ.get("ATTNREG_PROFILE", "fast")
"""The full profile takes minutes for all of them: ATTNREG_PROFILE=full asks for it."""


@pytest.mark.parametrize("variant", RIGHT, ids=lambda variant: variant.name)
def test_a_right_variant_is_not_accused(variant):
    report = conformance.run(variant, profile=PROFILE, contain=False)
    assert report.ok, report
    assert not [str(r) for r in report.results if r.status in ("fail", "error")]
