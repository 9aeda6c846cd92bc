"""The playground in a real browser: every tab used as a person would, in both languages."""

from __future__ import annotations

import csv
import importlib.util
import io
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnreg

from .conftest import EVERYTHING

for needed in ("playwright", "gradio", "attnreg_playground"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed", allow_module_level=True)

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
if not any(map(shutil.which, CHROMIUM)):
    pytest.skip(f"none of {', '.join(CHROMIUM)} is on this machine", allow_module_level=True)

# Third-party: Gradio's server leaves sockets and event loops to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NAMES = attnreg.list_variants()
SOME = NAMES if EVERYTHING else ["linformer", "sparse_window"]
CHINESE = re.compile(r"[\u4e00-\u9fff]")
TABS = ["three", "explore", "compare", "questions", "benchmark", "conformance", "capabilities",
        "models", "plugins"]  # fmt: skip
MODELS = ["minilm", "reaction", "text_line"]
STARTED = ("benchmark", "conformance")


def _cards() -> list[str]:
    from attnreg_playground.questions import CARDS

    every = [card.id for card in CARDS if not card.started]
    return every if EVERYTHING else every[::5]


def test_default_sentence_draws(window, address):
    window.open(address).drawn()
    assert window.page.locator("h1").count() == 1
    assert window.text(".hm-title") == "scaled_dot_product · Head 1"
    assert "Every row sums to 1" in window.text(".at-found-good")
    assert "Random projections, untrained" in window.text(".at-notes")
    assert window.page.locator("[data-head='0'], [data-head='3']").count() == 2
    assert window.coloured() > 10
    assert "not an explanation" in window.text(".at-caution")
    assert window.page.locator(".at-formula math").count() == 1
    window.picture("explore")


def test_every_variant_draws_its_form_and_its_map(window, address):
    window.open(address).drawn()
    for name in NAMES:
        window.choose(name)
        assert window.text(".hm-title").startswith(name)
        assert not window.page.locator(".at-card >> visible=true").count()
        assert window.coloured() > 10
        assert window.page.locator(".at-found-bad").count() == 0
        said = window.text(".at-findings")
        exact = attnreg.get_variant(name).capabilities.normalized
        assert "Every row sums to 1" in said if exact else "row" in said.lower()
        for option in attnreg.get_variant(name).options:
            assert window.tab.locator(f"[data-option={option.name}]").count() == 1
        assert window.text(".at-about-title") == name


@pytest.mark.parametrize("source", ["real", "chance", "digit"] if EVERYTHING else ["real"])
def test_every_source_draws(source, window, address):
    window.open(address, f"?tab=explore&source={source}&variant=cosine").drawn()
    for name in SOME:
        window.choose(name)
        assert window.coloured() > 10
    if source == "digit":
        assert window.coloured(".hm-image") > 10
    if source == "real":
        assert "Real model" in window.text(".at-notes")
        assert window.page.locator(".hm-heads canvas").count() == 12


def test_masks_are_drawn_refused_and_read_out(window, address):
    window.open(address, "?tab=explore&source=chance&length=8&causal=1&border=3").drawn()
    assert "Every masked cell is 0" in window.text(".at-found-good")
    window.choose("linformer")
    assert "linformer refuses this call" in window.text(".at-card")
    box = window.control("causal").locator("input")
    assert box.is_enabled()  # what is ticked can be unticked
    window.after(box.uncheck)
    assert box.is_disabled()
    assert "cannot honour" in window.control("causal").inner_text()
    window.choose("scaled_dot_product")
    assert box.is_enabled()
    window.slide("padding", 1)
    window.page.locator(".hm-map >> visible=true").focus()
    for key in ("ArrowRight", "End"):
        window.page.keyboard.press(key)
    assert "(padding)" in window.text(".hm-readout")


def test_keys_and_pointer_read_the_weights(window, address):
    window.open(address).drawn()
    live, readout = window.page.locator(".hm-live"), window.page.locator(".hm-readout")
    window.page.locator(".hm-map").focus()
    heard: list[str] = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "End", "Home"):
        window.page.keyboard.press(key)
        heard.append(live.inner_text())
    assert heard[0].startswith("query 我, key 我, 0.")
    assert "number 1 of 3 in its row" in heard[0]
    assert heard[1].startswith("query 我, key 爱, 0.")
    assert heard[2].startswith("query 爱, key 爱, 0.")
    assert heard[3].startswith("query 爱, key 你, 0.")
    sums = [live.inner_text().split(", ")[2]]
    for _ in range(2):
        window.page.keyboard.press("ArrowRight")
        sums.append(live.inner_text().split(", ")[2])
    assert sum(map(float, sums)) == pytest.approx(1.0, abs=2e-4)
    box = window.page.locator(".hm-map").bounding_box()
    window.page.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] - 20)
    assert readout.inner_text().startswith("query 你 → key 你: 0.")


def test_heads_views_and_colours(window, address):
    window.open(address).drawn()
    window.after(lambda: window.page.locator("[data-head='2']").click())
    assert window.text(".hm-title") == "scaled_dot_product · Head 3"
    window.after(lambda: window.page.locator("[data-head='-1']").click())
    assert window.text(".hm-title") == "scaled_dot_product · Mean"
    before = len(window.requests)
    window.page.locator(".hm-range-select").select_option("unit")
    assert window.text(".hm-high") == "1"
    window.page.locator("[data-view=table]").click()
    rows = window.page.locator(".at-table tbody tr").all_inner_texts()
    for row in rows:
        assert sum(map(float, row.split()[1:])) == pytest.approx(1.0, abs=3e-4)
    for view, part in (("lines", ".hm-lines line"), ("text", ".hm-text span"),
                       ("bars", ".at-bar-row")):  # fmt: skip
        window.page.locator(f"[data-view={view}]").click()
        assert window.page.locator(part).count() >= 3
    assert window.query()["view"] == "bars"
    window.page.locator("[data-view=map]").click()
    assert len(window.requests) == before  # none of this asks the server


def test_options_are_checked_kept_and_reset(window, address):
    window.open(address).drawn()
    field = window.tab.locator("[data-option=temperature] input")
    window.after(lambda: field.fill("0.01"))
    assert "max 1.0000" in window.text(".hm-legend")
    window.after(lambda: field.fill("zero"))
    assert "temperature must be a number, at least 1e-30; got 'zero'" in window.text(".at-wrong")
    assert "An option does not fit" in window.text(".at-card")
    window.choose("cosine")
    assert not window.page.locator(".at-card >> visible=true").count()
    window.choose("scaled_dot_product")
    assert field.input_value() == "zero"
    window.after(window.tab.locator(".at-reset").click)
    assert field.input_value() == "1"
    assert window.text(".hm-title").startswith("scaled_dot_product")


@pytest.mark.parametrize("name", SOME)
def test_the_address_is_the_state(name, window, address):
    variant = attnreg.get_variant(name)
    window.open(address, f"?tab=explore&variant={name}&source=chance&length=6&seed=7").drawn()
    for option in variant.options:
        field = window.tab.locator(f"[data-option={option.name}] input[type=text]")
        if field.count() and isinstance(option.default, (int, float)) and option.default:
            window.after(lambda field=field: field.fill("2"))
            break
    window.after(lambda: window.page.locator("[data-head='1']").click())
    if variant.capabilities.key_valid:
        window.slide("padding", 2)
    query, shown = window.query(), window.text(".hm-legend")
    assert query["variant" if name != "scaled_dot_product" else "tab"]
    assert query["head"] == "1"
    assert query["seed"] == "7"
    url = window.page.url
    window.open(url).drawn()
    assert window.query() == query
    assert window.page.url == url
    assert window.text(".hm-legend") == shown
    assert window.text(".hm-title") == f"{name} · Head 2"


BACK = [
    ("?tab=three&step=6&row=third&temperature=0.5&x=1,2,0,0;0,1,0,0;1,1,1,1", ".at-said", "你"),
    ("?tab=questions&show=q_roles&part=value&token=2", ".at-said", "says something else"),
    ("?tab=models&show=reaction&layer=3&variant=linear", ".at-said", "layer 3"),
    ("?tab=compare&variant=cosine&other=euclidean&options.init_scale=3", ".at-facts", "ms"),
    ("?tab=benchmark&variants=linear,cosine&mode=backward", ".at-start", "Start"),
    ("?tab=conformance&variant=additive&family=W", ".at-start", "Start"),
    ("?tab=capabilities&need=decode", ".at-table", "recurrent"),
    ("?tab=plugins", ".at-table", "attnreg-linear"),
]


@pytest.mark.parametrize(("query", "part", "said"), BACK if EVERYTHING else BACK[:3])
def test_every_tab_comes_back_from_its_address(query, part, said, window, address):
    window.open(address, query)
    if not any(f"tab={name}" in query for name in STARTED):
        window.drawn()
    window.page.wait_for_function(
        "([part, said]) => [...document.querySelectorAll(part)].some((one) => one.offsetParent && "
        "one.innerText.includes(said))",
        arg=[part, said],
    )
    kept = window.query()
    asked = dict(pair.split("=") for pair in query[1:].split("&"))
    assert kept == asked
    window.open(address, query)
    assert window.query() == kept


BROKEN = [
    "?tab=explore&heads=1e9",
    "?tab=explore&variant=os:system",
    "?tab=three&x=1,2",
    "?tab=explore&options.temperature=%22%3E%3Cimg%20src=x%3E",
    "?tab=panel-%3Cscript%3E",
    "?tab=explore&text=%24%7Bwindow.__hacked%3D1%7D",
    "?tab=explore&heads=NaN",
    "?tab=nowhere",
    "?tab=explore&source=%3Cscript%3E",
    "?lang=%3Cscript%3E",
    "?tab=questions&show=../x",
]


@pytest.mark.parametrize("query", BROKEN if EVERYTHING else BROKEN[:6])
def test_broken_addresses_become_sentences(query, window, address):
    window.open(address, query).drawn()
    refused = any(
        part in query for part in ("heads=1e9", "os:system", "x=1,2", "temperature", "source=")
    )
    assert bool(window.text(".at-card")) == refused
    assert refused or window.coloured() > 5
    assert window.page.evaluate("window.__hacked") is None
    assert window.page.locator("img[src=x]").count() == 0


def test_three_tokens_by_hand(window, address):
    window.open(address, "?tab=three").drawn()
    weights = window.tab.locator(".at-matrix", has_text="softmax")
    before = weights.inner_text()
    cell = window.tab.get_by_label("X 爱 1")
    window.after(lambda: cell.fill("5"))
    assert weights.inner_text() != before
    assert cell.evaluate("(one) => one === document.activeElement")  # it keeps the focus
    window.slide("step", 3)
    assert "meets every key by a dot product" in window.text(".at-said")
    assert window.tab.locator(".at-mixing").count() == 0
    window.after(lambda: window.tab.get_by_role("button", name="Play").click())
    window.page.wait_for_function(
        "document.querySelector('[data-name=step] input').value === '7'", timeout=15_000
    )
    assert window.tab.locator(".at-mixing path").count() == 3
    window.after(lambda: window.control("hide").get_by_text("我").click())
    assert "−∞" in window.tab.locator(".at-matrix", has_text="masked").inner_text()
    assert "−∞" not in weights.inner_text()
    window.picture("three")


def test_compare_links_its_maps(window, address):
    window.open(address, "?tab=compare&text=注意力让字看见字").drawn()
    maps = window.tab.locator(".hm-map")
    assert maps.count() == 3
    maps.nth(0).focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        window.page.keyboard.press(key)
    said = window.tab.locator(".hm-readout").all_inner_texts()
    assert len({one.rpartition(":")[0] for one in said}) == 1
    one, other, apart = (float(text.rpartition(":")[2]) for text in said)
    assert apart == pytest.approx(one - other, abs=2e-4)
    assert "x)" in window.text(".at-facts")
    window.choose("scaled_dot_product", "other")
    assert "compute the same" in window.text(".at-said")
    legend = window.tab.locator(".hm-legend").nth(2).inner_text()
    assert legend == "min 0.0000 · max 0.0000"
    window.picture("compare")


@pytest.mark.parametrize("card", _cards())
def test_cards_draw_and_answer_their_control(card, window, address):
    window.open(address, f"?tab=questions&show={card}&lang=zh").drawn()
    assert CHINESE.search(window.text(".at-title"))
    assert CHINESE.search(window.text(".at-said"))
    assert window.tab.locator(".at-figure").count() > 0
    assert window.tab.locator(".at-formula math").count() > 0
    assert not window.page.locator(".at-card >> visible=true").count()
    seed = window.control("seed").locator("input[type=number]")
    before = window.tab.inner_text()
    if seed.count():
        window.slide("seed", 3)
        assert window.tab.inner_text() != before
    window.picture(card)


def test_vectors_are_dragged_and_moved_by_keys(window, address):
    window.open(address, "?tab=questions&show=q_similarity").drawn()
    before = window.text(".at-bars")
    point = window.tab.locator("[data-point='2']")
    box = point.bounding_box()
    window.page.mouse.move(box["x"] + 8, box["y"] + 8)
    window.page.mouse.down()
    window.page.mouse.move(box["x"] - 120, box["y"] - 60, steps=4)
    window.page.mouse.up()
    window.page.wait_for_function(
        "(before) => document.querySelector('.at-bars').innerText !== before", arg=before
    )
    moved = window.text(".at-bars")
    point.focus()
    window.after(lambda: window.page.keyboard.press("ArrowUp"))
    assert window.text(".at-bars") != moved
    assert "points" in window.query()


def test_a_benchmark_runs_stops_and_keeps_what_it_found(window, address):
    window.open(address, "?tab=benchmark&variants=linear&seconds=4&heads=8&lengths=long")
    window.tab.locator(".at-start").click()
    window.page.wait_for_selector(".at-stop")
    window.page.wait_for_selector(".at-curves circle >> visible=true")
    window.after(window.tab.locator(".at-stop").click)
    assert "Stopped" in window.text(".at-status")
    assert window.tab.locator(".at-curves circle").count()  # what was found stays
    window.control("lengths").get_by_text("128 … 1024").click()
    quick = window.control("seconds").locator("input[type=number]")
    quick.fill("1.5")
    quick.press("Enter")
    assert "Changed since the last run" in window.text(".at-status")
    window.after(window.tab.locator(".at-start").click, 90)  # the queue is free again
    assert window.tab.locator(".at-curves").count() == 2
    assert window.tab.locator(".at-curves circle").count() >= 4
    assert "slope" in window.text(".at-legend")
    assert "Not verified" in window.text(".at-notes")
    assert window.tab.locator(".at-table tbody tr").count() == 4
    with window.page.expect_download() as got:
        window.tab.locator("[data-figure=cells] [data-form=csv]").click()
    cells = list(csv.reader(io.StringIO(Path(got.value.path()).read_text("utf-8-sig"))))
    assert len(cells) == 5
    window.picture("benchmark")


def test_conformance_fills_tiles(window, address):
    window.open(address, "?tab=conformance&variant=linear&family=W")
    window.after(window.tab.locator(".at-start").click, 120)
    assert window.tab.locator(".at-status-pass").count() >= 4
    assert window.tab.locator(".at-status-waiting").count() == 0
    assert "a verdict needs all laws" in window.text(".at-found-plain")
    window.tab.locator(".at-tile").first.click()
    assert "W-01" in window.text(".at-tile-detail")
    window.picture("conformance")


def test_capabilities_are_filtered(window, address):
    window.open(address, "?tab=capabilities").drawn()
    assert window.tab.locator(".at-table tbody tr").count() == len(NAMES)
    window.choose("decode", "need")
    able = [name for name in NAMES if attnreg.get_variant(name).capabilities.decode != "none"]
    assert window.tab.locator(".at-table tbody th").all_inner_texts() == able
    window.picture("capabilities")
    if EVERYTHING:
        window.after(window.control("verify").locator("input").check, 280)
        assert window.tab.locator(".at-tone-good").count() > 100
        assert window.tab.locator(".at-tone-bad").count() == 0


@pytest.mark.parametrize("model", MODELS if EVERYTHING else ["text_line"])
def test_real_models_change_with_their_attention(model, window, address):
    window.open(address, f"?tab=models&show={model}&lang=en").drawn()
    assert window.tab.locator(".hm-map").count() == 2
    assert window.coloured() > 10
    window.choose("linear")
    if model == "text_line":
        assert "我爱你" in window.text(".at-facts")
        assert window.coloured(".hm-image") > 10
        line = window.control("line").locator("input")
        window.after(lambda: line.fill("你好"))
        assert "你好" in window.text(".at-facts")
        pad = window.control("pixels").locator("canvas").bounding_box()
        window.page.mouse.move(pad["x"] + 150, pad["y"] + 20)
        window.page.mouse.down()
        window.page.mouse.move(pad["x"] + 220, pad["y"] + 20, steps=3)
        window.after(window.page.mouse.up)
        assert window.query()["strokes"]
    assert "linear" in window.text(".at-title, .hm-title")
    window.picture(model)


@pytest.mark.parametrize("model", ["digits", "recall"] if EVERYTHING else ["digits"])
def test_training_shows_heads_that_form(model, window, address):
    window.open(address, f"?tab=models&show={model}&rounds=60")
    window.tab.locator(".at-start").click()
    window.page.wait_for_selector(".at-progress progress[value] >> visible=true")
    window.page.wait_for_selector(".at-curves circle >> visible=true", timeout=60_000)
    window.page.wait_for_selector(".at-page[data-state=idle] >> visible=true", timeout=90_000)
    assert window.coloured() > 10
    if model == "digits":
        before, after = re.search(r"([\d.]+) → ([\d.]+)", window.text(".at-facts")).groups()
        assert float(after) < float(before)  # the heads are sharper
    window.picture(model)


def test_plugins_say_where_they_come_from(window, address):
    window.open(address, "?tab=plugins").drawn()
    said = window.text(".at-table")
    for name in NAMES:
        assert f"attnreg-{name.replace('_', '-')}" in said
    assert "attnreg_register_variants" in window.text(".at-code")
    assert "trust" in window.text(".at-notes")
    window.picture("plugins")


def _raw_keys(text: str) -> list[str]:
    from attnreg_playground.texts import TEXTS

    return [key for key in TEXTS if key in text] + re.findall(
        r"__i18n__|undefined|\{[a-z]+\}", text
    )


@pytest.mark.parametrize("tab", TABS if EVERYTHING else ["explore", "benchmark", "models"])
def test_both_languages_on_every_tab(tab, window, address):
    window.open(address, f"?tab={tab}")
    if tab not in STARTED:
        window.drawn()
    english = window.text("body")
    assert not _raw_keys(english)
    foreign = set(CHINESE.findall(english)) - set("我爱你中文，。也")
    assert not foreign, foreign
    window.page.locator("#at-language").select_option("zh")
    window.page.wait_for_timeout(300)
    window.page.wait_for_selector(".at-page[data-state=idle] >> visible=true")
    window.page.wait_for_function(
        "[...document.querySelectorAll('button[role=tab]')].some((one) => one.innerText === '探索')"
    )
    chinese = window.text("body")
    assert not _raw_keys(chinese)
    assert window.page.evaluate("document.documentElement.lang") == "zh-CN"
    for selector in (".at-title", "h1", ".at-tools", "button[role=tab]"):
        assert CHINESE.search(window.text(selector)), selector
    from attnreg_playground.texts import TEXTS

    kinds = ("control.", "page.", "title.", "map.view", "tab.", "preset.")
    words = {pair[0] for key, pair in TEXTS.items() if key.startswith(kinds) and pair[0] != pair[1]}
    labels = window.page.locator("label, legend, button, summary, h2, h3").all_inner_texts()
    left = {text for text in labels if text in words}
    assert not left, left
    assert window.query()["lang"] == "zh"
    window.picture(f"{tab}-zh")


def test_language_comes_from_address_or_browser(open_window, address):
    for query, locale, expected in (
        ("?lang=zh", "en-US", "头 1"), ("", "zh-CN", "头 1"), ("?lang=en", "zh-CN", "Head 1"),
    ):  # fmt: skip
        opened = open_window(locale=locale).open(address, query).drawn()
        assert opened.text(".hm-title").endswith(expected)
        opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"] if EVERYTHING else ["dark"])
def test_narrow_screens_have_no_overflow(open_window, address, scheme):
    opened = open_window(width=390, color_scheme=scheme)
    for tab in TABS:
        opened.open(address, f"?tab={tab}&lang=zh")
        if tab not in STARTED:
            opened.drawn()
        assert opened.wide() <= 390, tab
        opened.picture(f"{tab}-390-{scheme}")
    opened.close()


@pytest.mark.parametrize("tab", TABS if EVERYTHING else ["explore"])
def test_dark_has_no_white_panel(open_window, address, tab):
    opened = open_window(color_scheme="dark").open(address, f"?tab={tab}")
    if tab not in STARTED:
        opened.drawn()
    light = opened.page.evaluate(
        """() => [...document.querySelectorAll("body, body *")].filter((one) => {
        const box = one.getBoundingClientRect();
        const paint = getComputedStyle(one).backgroundColor.match(/[\\d.]+/g) || [];
        const [r, g, b, a] = paint.map(Number);
        return box.width * box.height > 2000 && (a === undefined || a > 0.5) && r + g + b > 600;
        }).map((one) => one.tagName + one.className + one.outerHTML.slice(0, 90))"""
    )
    assert not light
    opened.picture(f"{tab}-dark")
    opened.close()


def test_everything_has_a_name_and_the_keyboard_reaches_it(window, address):
    window.open(address).drawn()
    nameless = window.page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, [role]")]
        .filter((one) => one.matches("button, input, select, textarea, [role=application]"))
        .filter((one) => one.offsetParent && !one.getAttribute("aria-label") && !one.innerText
            && !(one.labels && one.labels.length && one.labels[0].innerText))
        .map((one) => one.outerHTML.slice(0, 120))"""
    )
    assert not nameless
    seen = set()
    for _ in range(60):
        window.page.keyboard.press("Tab")
        seen.add(
            window.page.evaluate("document.activeElement.className + document.activeElement.id")
        )
    assert any("hm-map" in one for one in seen)
    assert any("at-language" in one for one in seen)


def test_no_motion_where_none_is_wanted(open_window, address):
    opened = open_window(reduced_motion="reduce").open(address, "?tab=three").drawn()
    assert opened.tab.get_by_role("button", name="Play").count() == 0
    moving = opened.page.evaluate(
        """() => [...document.querySelectorAll(".at-page *")].filter((one) =>
        parseFloat(getComputedStyle(one).transitionDuration) > 0
        && one.className.toString().startsWith("at-")).length"""
    )
    assert moving == 0
    opened.close()


def test_history_presets_and_links(window, address):
    window.open(address).drawn()
    window.after(window.tab.locator("[data-preset=signed]").click)
    assert window.text(".hm-title").startswith("performer")
    assert window.query()["variant"] == "performer"
    window.choose("cosine")
    window.query()
    window.page.locator("#at-history summary").click()
    entries = window.page.locator(".at-menu button")
    entries.first.wait_for()
    assert entries.count() >= 2
    window.after(entries.filter(has_text="performer").first.click)
    assert window.text(".hm-title").startswith("performer")
    window.page.locator("#at-link").click()
    assert window.page.evaluate("window.attnreg.copied") == window.page.url
    window.page.locator("#at-theme").click()
    assert window.page.evaluate("document.body.classList.contains('dark')")


def test_exports_hold_what_is_shown(window, address):
    from attnreg_playground import draw

    window.open(address, "?tab=explore&variant=cosine&head=1").drawn()
    weights = draw("explore", variant="cosine")["weights"]

    def saved(act: Any) -> Path:
        with window.page.expect_download() as got:
            act()
        return Path(got.value.path())

    held = np.load(saved(window.tab.locator(".at-npz").click), allow_pickle=False)
    assert np.array_equal(held["weights"], weights)
    tools = window.tab.locator("[data-figure=weights] .at-tool")
    rows = list(csv.reader(io.StringIO(saved(tools.nth(2).click).read_text("utf-8-sig"))))
    cells = np.array([row[1:] for row in rows[1:]], float)
    assert np.allclose(cells, weights[1], atol=1e-7)
    assert rows[0][1:] == ["我", "爱", "你"]
    assert saved(tools.nth(0).click).read_bytes()[:4] == b"\x89PNG"
    drawn = saved(tools.nth(1).click).read_text("utf-8")
    assert drawn.startswith("<svg")
    assert drawn.count("<rect") == 9
    assert "我" in drawn
    window.tab.locator("#at-python-explore").click()
    space: dict[str, Any] = {}
    exec(window.page.evaluate("window.attnreg.copied").replace("print(", "str("), space)
    assert np.array_equal(space["weights"][0].numpy(), weights)


def test_hostile_sentence_stays_text(window, address):
    window.open(address).drawn()
    hostile = '"><img src=x onerror="window.__hacked=1"> ${window.__hacked=2} {{value}}'
    window.after(lambda: window.control("text").locator("textarea").fill(hostile))
    for view in ("lines", "text", "bars", "table"):
        window.page.locator(f"[data-view={view}]").click()
    assert window.page.evaluate("window.__hacked") is None
    assert window.page.locator("img[src=x]").count() == 0


def test_failing_plugins_leave_the_rest_working(open_window, hostile_address, fakes):
    opened = open_window().open(hostile_address, "?tab=explore&variant=odd").drawn()
    opened.page.locator("#at-faults summary").click()
    notice = opened.text("#at-faults")
    assert "broken-distribution" in notice
    assert "twin-a, twin-b" in notice
    assert "The panel bad could not be built" in notice
    tabs = opened.page.locator("button[role=tab]").all_inner_texts()
    assert "Good" in tabs
    assert "Bad" not in tabs
    for name in ("raises", "raises_in_weights", "quits", "wrong_output", "wrong_weights"):
        opened.choose(name)
        assert "The plugin fakes-distribution failed" in opened.text(".at-card")
        assert "Traceback" not in opened.text("body")
    opened.choose("crashes")
    assert "The process that ran it ended" in opened.text(".at-card")
    for name in ("odd", "not_numbers", "causal_only", "prints"):
        opened.choose(name)
        assert opened.text(".hm-title").startswith(name)
    opened.choose("causal_only")
    assert opened.control("causal").locator("input").is_checked()
    assert opened.control("causal").locator("input").is_disabled()
    opened.choose("silent")
    assert "No weights to show" in opened.text(".at-card")
    field = opened.control("variant").locator("select")
    field.select_option("hangs")
    opened.page.wait_for_selector(".at-stop >> visible=true")
    opened.after(opened.page.locator(".at-stop >> visible=true").click)
    opened.choose("odd")
    opened.after(
        lambda: opened.tab.locator("[data-option=mode] select").select_option(fakes.HOSTILE)
    )
    opened.page.locator("#at-language").select_option("zh")
    opened.page.wait_for_timeout(500)
    opened.page.get_by_role("tab", name="好").click()
    opened.page.wait_for_selector("text=A panel of a plugin")
    assert opened.query()["tab"] == "panel-good"
    for tab in ("capabilities", "plugins"):
        opened.open(hostile_address, f"?tab={tab}").drawn()
    assert opened.page.evaluate("window.__hacked") is None
    assert opened.page.locator("img[src=x], .at-page a[href^=java]").count() == 0
    opened.close()


def test_a_plugin_that_was_installed_after_the_fact_appears(open_window, tmp_path, monkeypatch):
    import attnreg_playground
    from tests.throwaway import install

    source = '''
from typing import Annotated

import torch
from annotated_doc import Doc
from annotated_types import Interval

import attnreg

ATTNREG_CONTRACT = 1


class Laplacian(attnreg.ScoreAttention):
    """score(q, k) = -|q - k|_1 / tau"""

    def __init__(self, dims, *, tau: Annotated[float, Interval(gt=0, le=100), Doc("warmth")] = 8.0,
                 **common):
        super().__init__(dims, **common)
        self.tau = tau

    def score(self, query, key):
        return -torch.cdist(query, key, p=1) / self.tau


@attnreg.hookimpl
def attnreg_register_variants(register):
    register(attnreg.Variant("laplacian", Laplacian, summary="L1 distance scores"))
'''
    install(tmp_path, "attnreg-laplacian", source, version="3.2")
    monkeypatch.syspath_prepend(tmp_path)  # worker processes are given our path
    demo = attnreg_playground.launch(open_browser=False, block=False)
    try:
        opened = open_window().open(demo.local_url, "?tab=explore&variant=laplacian").drawn()
        assert opened.text(".hm-title") == "laplacian · Head 1"
        assert "Every row sums to 1" in opened.text(".at-found-good")
        assert "from attnreg-laplacian 3.2" in opened.text(".at-sheet")
        field = opened.tab.locator("[data-option=tau]")
        assert "warmth (a number, above 0, at most 100)" in field.inner_text()
        before = opened.text(".hm-legend")
        box = field.locator("input[type=text], input[type=number]")
        box.fill("0.5")
        opened.after(lambda: box.press("Enter"))
        assert opened.text(".hm-legend") != before
        opened.open(demo.local_url, "?tab=compare&variant=laplacian&other=euclidean").drawn()
        assert opened.coloured() > 10
        opened.close()
    finally:
        demo.close(verbose=False)


def test_a_burst_ends_with_the_newest_picture(window, address):
    window.open(address, "?tab=explore&source=chance&length=16").drawn()
    slider = window.control("seed").locator("input[type=range]")
    slider.evaluate(
        """async (one) => { for (let value = 1; value < 40; value++) {
        one.value = value; one.dispatchEvent(new Event("input"));
        await new Promise((done) => setTimeout(done, 5)); } }"""
    )
    window.page.wait_for_selector(".at-page[data-state=idle] >> visible=true")
    window.page.wait_for_timeout(300)
    from attnreg_playground import draw

    shown = window.page.evaluate(
        "Array.from(window.attnreg.tabs.get('explore').figures.get('heat-weights').exact)"
    )
    expected = draw("explore", source="chance", length=16, seed=39)["weights"][0]
    assert np.allclose(np.array(shown, np.float32), expected.ravel(), atol=1e-7)
    asked = sum("component_server" in url for url in window.requests)
    assert asked < 30
