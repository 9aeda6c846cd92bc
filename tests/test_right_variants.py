"""What is right is not accused: variants written independently of the families pass."""

from __future__ import annotations

import pytest

from attnreg import conformance
from tests.right_variants import RIGHT


@pytest.mark.parametrize("variant", RIGHT, ids=lambda variant: variant.name)
@pytest.mark.parametrize("profile", ["fast", "full"])
def test_a_right_variant_is_not_accused(variant, profile):
    report = conformance.run(variant, profile=profile, contain=False)
    assert report.ok, report
    assert not [str(r) for r in report.results if r.status in ("fail", "error")]
