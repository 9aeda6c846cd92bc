"""The words: every text in both languages, every key that is used, hostile text."""

from __future__ import annotations

import re
import string
from importlib import resources

import pytest

import attnreg
from attnreg_playground import about
from attnreg_playground.formula import ATTRIBUTES, ELEMENTS, tree
from attnreg_playground.pages.index import PAGES
from attnreg_playground.texts import LANGUAGES, TEXTS, choose_language, localise, say, sentence

CHINESE = re.compile(r"[\u4e00-\u9fff，（：]")
NAMES = attnreg.list_variants()
FILES = resources.files("attnreg_playground")


def test_every_text_is_in_both_languages_with_the_same_fields():
    def names(text: str) -> set[str | None]:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name}

    # Symbols, names and what is said alike in both.
    alike = {key for key, (english, chinese) in TEXTS.items() if english == chinese}
    kinds = ("choice.", "control.", "three.", "compare.", "page.", "map.", "allowed.", "can.",
             "benchmark.", "capabilities.", "dependence.", "vision.", "worked.", "formula.",
             "axis.")  # fmt: skip
    assert all(key.startswith(kinds) for key in alike), alike
    assert all(len(TEXTS[key][0]) < 30 for key in alike)
    for key, (english, chinese) in TEXTS.items():
        assert english.strip(), key
        assert names(english) == names(chinese), key
        if key not in alike:
            assert CHINESE.search(chinese), key


def _python_files():
    for folder in ("", "pages", "questions", "real"):
        for file in (FILES / folder).iterdir() if folder else FILES.iterdir():
            if file.name.endswith(".py"):
                yield file.read_text(encoding="utf-8")


def test_every_key_that_the_code_uses_exists_and_every_text_is_used():
    used: set[str] = set()
    open_ended: set[str] = set()
    for text in _python_files():
        used |= set(re.findall(r"(?:sentence|say)\(\s*\"([a-z_0-9.]+)\"", text))
        used |= {f"problem.{key}" for key in re.findall(r"\bproblem\(\s*\"([a-z_]+)\"", text)}
        used |= set(re.findall(r"\"([a-z_]+\.[a-z_]+)\"\s+if ", text))
        used |= set(re.findall(r"\selse \"([a-z_]+\.[a-z_]+)\"", text))
        open_ended |= set(re.findall(r"f\"([a-z_]+\.[a-z_]*)\{", text))
    for name in ("core", "heat", "plots", "numbers", "widgets", "page", "header"):
        script = (FILES / "assets" / f"{name}.js").read_text("utf-8")
        keys = re.findall(r"\"([a-z_]+\.[a-z_]+)\"", script)
        used |= {key for key in keys if key in TEXTS or re.search(rf"word\(\"{key}\"", script)}
        open_ended |= set(re.findall(r"`([a-z_]+\.[a-z_]*)\$\{", script))
    for page in PAGES.values():
        used |= {f"title.{page.id}", *(f"preset.{name}" for name in page.presets)}
        for control in page.controls:
            used |= {control.text, *(f"choice.{one}" for one in control.choices)}
            used |= {f"{control.text}_info"} if control.noted else set()
    used |= {f"{key}_detail" for key in used if key.startswith("problem.")} & set(TEXTS)
    assert not {key for key in used if key not in TEXTS}
    unused = {
        key for key in set(TEXTS) - used
        if not any(key.startswith(start) for start in open_ended)
    }  # fmt: skip
    assert not unused


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


def test_sentences_within_sentences_are_said_in_one_language():
    inner = sentence("allowed.above", one=sentence("allowed.int"), bound="3")
    assert say("problem.option_detail", "zh", name="x",
               allowed=inner, value="2") == "x 应为整数，大于 3；得到 2"  # fmt: skip
    assert localise([{"a": inner}], "en") == [{"a": "an integer, above 3"}]
    with pytest.raises(KeyError):
        sentence("no.such.key")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_variant_is_described(name, language):
    blocks = localise(list(about.details(attnreg.get_variant(name))), language)
    assert blocks[-1]["text"] == say("about.caution", language)
    links = [block["href"] for block in blocks if "href" in block]
    assert links
    assert all(re.fullmatch(r"https://arxiv\.org/abs/\d{4}\.\d{4,5}", link) for link in links)


@pytest.mark.parametrize("name", NAMES)
def test_every_formula_becomes_allowed_elements(name):
    _allowed(tree(attnreg.get_variant(name).formula))


def test_hostile_formulas_stay_text(fakes):
    for latex in (
        fakes.HOSTILE, r"\href{javascript:alert(1)}{x}", r"\class{x}{y}", r"\frac{", "{" * 500,
        r"\begin{matrix}", "\\", "&#x3c;script&#x3e;", r"\style{x}{y}\data{a}{b}", "x" * 10_000,
    ):  # fmt: skip
        _allowed(tree(latex))
    blocks = about.details(fakes.registry().variant("odd"))
    assert all("href" not in block for block in blocks)


def _allowed(trees):
    for tag, attributes, text, children in trees:
        assert tag in ELEMENTS
        assert set(attributes) <= ATTRIBUTES
        assert isinstance(text, str)
        _allowed(children)
