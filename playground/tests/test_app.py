"""The app as Gradio sees it, without a browser: what is registered, listed and refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("gradio")

# Third-party: Gradio's server leaves sockets and event loops to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_gradio_is_imported_late_and_without_telemetry():
    program = (
        "import sys, attnreg_playground, attnreg_playground.explore\n"
        "assert 'gradio' not in sys.modules and 'transformers' not in sys.modules\n"
        "import attnreg_playground.app, os\n"
        "assert os.environ['GRADIO_ANALYTICS_ENABLED'] == 'False'\n"
        "assert os.environ['HF_HUB_OFFLINE'] == '1'\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GRADIO", "HF_"))}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120)


def test_no_listener_is_public_and_no_component_takes_files(fakes):
    import attnreg_playground

    demo = attnreg_playground.build(fakes.registry())
    config = demo.get_config_file()
    assert config["analytics_enabled"] is False
    assert {one["api_visibility"] for one in config["dependencies"]} <= {"private", "undocumented"}
    kinds = {one["type"] for one in config["components"]}
    assert not kinds & {"file", "uploadbutton", "image", "audio", "video", "gallery"}
    assert demo.get_api_info() == {"named_endpoints": {}, "unnamed_endpoints": {}}
    demo.close(verbose=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org", ""])
def test_a_host_that_others_reach_must_be_asked_for(host):
    import attnreg_playground

    with pytest.raises(ValueError, match="expose=True"):
        attnreg_playground.launch(host, open_browser=False, block=False)


def test_templates_hold_no_placeholders():
    from attnreg_playground.shell import read_asset

    for name in ("heatmap.html", "heatmap.css"):
        text = read_asset(name)
        assert not [mark for mark in ("${", "{{", "`", "\\", "@children") if mark in text]
    for name in ("heatmap.js", "blocks.js"):
        script = read_asset(name)
        assert not [way for way in ("innerHTML", "insertAdjacentHTML", "eval(") if way in script]


def test_help_texts_cannot_link():
    from attnreg_playground.shell import plain

    assert plain("max_length (an integer)") == "max_length (an integer)"
    assert "](" not in plain("[y](java\nscript:alert(1))")
    assert plain("a\x01b\n c") == "a b c"


def test_the_command_line_says_what_is_wrong():
    found = subprocess.run(
        [sys.executable, "-m", "attnreg_playground", "--host", "0.0.0.0", "--no-browser"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 2
    assert "--expose" in found.stderr
    assert "Traceback" not in found.stderr
