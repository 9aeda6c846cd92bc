"""The words: every text in both languages, the description of a variant, hostile text."""

from __future__ import annotations

import re
import string

import pytest
import torch

import attnreg
from attnreg import Mask
from attnreg_playground import about
from attnreg_playground.form import show
from attnreg_playground.texts import LANGUAGES, TEXTS, choose_language, say, several

REGISTRY = attnreg.default_registry()
NAMES = list(REGISTRY)


def test_every_text_is_in_both_languages_with_the_same_fields():
    def names(text: str) -> set[str | None]:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name}

    for key, (english, chinese) in TEXTS.items():
        assert english.strip()
        assert chinese.strip()
        assert names(english) == names(chinese), key
        assert not re.search(r"[\u4e00-\u9fff]", english) or key == "page.title", key
        same = {"can.dropout", "allowed.none", "allowed.bool"}
        assert re.search(r"[\u4e00-\u9fff，]", chinese) or key in same, key


def test_every_key_that_the_code_uses_exists():
    from importlib import resources

    used: set[str] = set()
    prefixes = {key.partition(".")[0] for key in TEXTS}
    for folder in ("", "tabs"):
        for file in (resources.files("attnreg_playground") / folder).iterdir():
            if file.name.endswith(".py") and file.name != "texts.py":
                found = re.findall(r"[\"']([a-z]+\.[a-z_]+)[\"']", file.read_text(encoding="utf-8"))
                used |= {key for key in found if key.partition(".")[0] in prefixes}
    assert used
    assert used <= set(TEXTS), used - set(TEXTS)
    # Those under these prefixes are reached by a name that is only known when it runs.
    rest = {key for key in set(TEXTS) - used if not key.startswith(("allowed.", "can.", "map."))}
    assert rest <= {"tab.explore"}, rest
    script = (resources.files("attnreg_playground") / "assets" / "heatmap.js").read_text("utf-8")
    for name in re.findall(r"words\.([a-z_]+)", script):
        assert f"map.{name}" in TEXTS, name


@pytest.mark.parametrize(
    ("asked", "accepted", "language"),
    [
        ("zh", "en", "zh"), ("zh-CN", None, "zh"), ("fr", "zh-TW,en;q=0.5", "zh"),
        (None, "en;q=0.4, zh-CN", "zh"), (None, "fr,de", "en"), (None, None, "en"),
        (None, "zh;q=oops,en", "en"), ("<script>", "", "en"),
    ],
)  # fmt: skip
def test_language_comes_from_the_address_then_the_browser(asked, accepted, language):
    assert choose_language(asked, accepted) == language


def test_several_texts_by_their_prefix():
    assert several("map", "zh")["query"] == "查询" == say("map.query", "zh")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_variant_is_described(name, language):
    variant = attnreg.get_variant(name)
    top = about.heading(variant, REGISTRY.owner(name), language)["blocks"]
    assert [top[0]["text"], top[1]["text"]] == [name, variant.summary]
    rest = about.details(variant, language)["blocks"]
    assert rest[-1]["text"] == say("about.caution", language)
    links = [block["href"] for block in rest if "href" in block]
    assert links
    assert all(re.fullmatch(r"https://arxiv\.org/abs/\d{4}\.\d{4,5}", link) for link in links)
    assert about.formula(variant, language).startswith("$$\n")


def test_hostile_text_stays_text(fakes):
    variant = fakes.registry().variant("odd")
    blocks = about.heading(variant, "p", "en")["blocks"] + about.details(variant, "en")["blocks"]
    assert fakes.HOSTILE in [block["text"] for block in blocks]
    assert all("href" not in block for block in blocks)
    formula = about.formula(variant, "en")
    assert "<" not in formula.replace(r"\lt", "")
    assert formula.count("$$") == 2
    notice = about.notice(fakes.registry(), [], "zh")["blocks"]
    assert any("broken-distribution" in block["text"] for block in notice)
    assert any("twin-a, twin-b" in block["text"] for block in notice)


def test_nothing_broken_nothing_said():
    assert about.notice(attnreg.Registry(), [], "en") == {"blocks": []}


def test_show_writes_what_parse_reads():
    assert show((1, 2)) == "1,2"
    assert show((3,)) == "3,"
    assert show(0.1) == "0.1"
    assert show(None) == "None"


def test_masks_of_the_gates_are_what_the_core_takes():
    assert Mask(key_valid=torch.ones(1, 1, dtype=torch.bool)).used() == ("key_valid",)
