"""``PAGES``: everything that can be drawn, by id, in the order of the tabs. A page is one file."""

from __future__ import annotations

from collections.abc import Mapping

from attnreg_playground.drawing import Page
from attnreg_playground.pages import (
    benchmark,
    capabilities,
    compare,
    conformance,
    digits,
    explore,
    minilm,
    plugins,
    reaction,
    recall,
    text_line,
    three_tokens,
)
from attnreg_playground.questions import CARDS

PAGES: Mapping[str, Page] = {
    page.id: page
    for page in (
        three_tokens.PAGE,
        explore.PAGE,
        compare.PAGE,
        *CARDS,
        benchmark.PAGE,
        conformance.PAGE,
        capabilities.PAGE,
        minilm.PAGE,
        text_line.PAGE,
        reaction.PAGE,
        digits.PAGE,
        recall.PAGE,
        plugins.PAGE,
    )
}
