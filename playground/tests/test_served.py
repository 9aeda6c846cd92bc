"""The app as it is served, without a browser: what is listed, the endpoints, sessions, safety."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from attnreg_playground import draw

from .conftest import FAKES

# Third-party: Gradio's server and its client leave sockets and event loops to the collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NAMES = ["/attend", "/benchmark", "/compare", "/conform", "/describe", "/variants"]


@pytest.fixture(scope="module")
def served(fakes):
    import attnreg_playground

    demo = attnreg_playground.launch(open_browser=False, block=False, registry=FAKES)
    yield demo
    demo.close(verbose=False)


@pytest.fixture(scope="module")
def client(served):
    from gradio_client import Client

    return Client(served.local_url, verbose=False)


def fetch(served, path, data=None, **headers):
    """Return status, headers and body."""
    request = urllib.request.Request(served.local_url.rstrip("/") + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def test_the_process_that_serves_imports_no_plugin_and_no_torch():
    program = (
        "import attnreg_playground.app, sys, os\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
        "own = {m.partition('.')[0] for m in sys.modules if m.startswith('attnreg_')}\n"
        "assert own == {'attnreg_playground'}, own\n"
        "assert os.environ['GRADIO_ANALYTICS_ENABLED'] == 'False'\n"
        "assert os.environ['HF_HUB_OFFLINE'] == '1'\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GRADIO", "HF_"))}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120)


def test_six_endpoints_are_listed_and_nothing_else(served, client):
    info = json.loads(fetch(served, "/gradio_api/info")[2])
    assert sorted(info["named_endpoints"]) == NAMES
    assert info["unnamed_endpoints"] == {}
    config = json.loads(fetch(served, "/config")[2])
    assert config["analytics_enabled"] is False
    listed = [one for one in config["dependencies"] if one["api_visibility"] == "public"]
    assert sorted(one["api_name"] for one in listed) == sorted(name[1:] for name in NAMES)
    kinds = {one["type"] for one in config["components"]}
    assert kinds <= {"html", "tabs", "tabitem", "markdown", "api", "column", "row", "state"}


def test_endpoints_answer_a_client(client):
    names = {one["name"] for one in client.predict(api_name="/variants")}
    assert {"odd", "scaled_dot_product"} <= names
    assert "twin" not in names
    told = client.predict("scaled_dot_product", api_name="/describe")
    assert told["capabilities"]["causal"]
    found = client.predict(
        "scaled_dot_product", text="缩放点积", heads=2, causal=True, api_name="/attend"
    )
    weights = draw("explore", text="缩放点积", heads=2, causal=True)["weights"]
    assert np.array_equal(np.array(found["weights"], np.float32), weights)
    assert found["keys"] == list("缩放点积")
    assert "attnreg.create('scaled_dot_product'" in found["python"]
    both = client.predict("odd", "scaled_dot_product", api_name="/compare")
    expected = np.abs(np.array(both["weights_a"]) - np.array(both["weights_b"])).max()
    assert both["max_weight_difference"] == pytest.approx(expected, rel=1e-5)


def test_endpoints_stream(client):
    job = client.submit(
        ["scaled_dot_product"], [16, 32], seconds=0.05, heads=1, head_dim=8, api_name="/benchmark"
    )
    last = job.result(timeout=120)
    cells = [one for one in job.outputs() if "median" in one]
    assert {one["length"] for one in cells} == {16, 32}
    assert {one["subject"] for one in last["measurements"]} >= {"scaled_dot_product"}
    job = client.submit("scaled_dot_product", "fast", ["R-01", "W-02"], api_name="/conform")
    last = job.result(timeout=120)
    assert {one["check"] for one in last["results"]} == {"R-01", "W-02"}
    assert last["verdict"] in ("conformant", "incomplete")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("/describe", {"variant": "os:system"}), ("/describe", {"variant": "../x"}),
        ("/describe", {"variant": None}), ("/describe", {"variant": "twin"}),
        ("/attend", {"variant": "odd", "heads": 10**9}), ("/attend", {"heads": "4"}),
        ("/attend", {"variant": "оdd"}), ("/attend", {"text": "x" * 10_000}),
        ("/attend", {"variant": "raises"}), ("/attend", {"options": {"temperature": []}}),
        ("/attend", {"options": [1]}), ("/attend", {"source": "file:///etc/passwd"}),
        ("/attend", {"seed": -1}), ("/attend", {"length": 10**18, "source": "chance"}),
        ("/compare", {"other": {"path": "/etc/passwd"}}),
        ("/benchmark", {"variants": ["scaled_dot_product"], "lengths": [10**9]}),
        ("/benchmark", {"variants": [], "lengths": [8]}), ("/benchmark", {"variants": "odd"}),
        ("/benchmark", {"variants": ["scaled_dot_product"], "modes": [1]}),
        ("/benchmark", {"variants": ["scaled_dot_product"], "modes": 5}),
        ("/conform", {"variant": "scaled_dot_product", "checks": [1]}),
        ("/conform", {"variant": "scaled_dot_product", "checks": ""}),
        ("/attend", {"source": "chance", "length": 512, "heads": 16}),
        ("/benchmark", {"variants": ["scaled_dot_product"], "heads": True}),
        ("/conform", {"variant": "no_such"}), ("/conform", {"variant": "odd", "profile": "x"}),
    ],
)  # fmt: skip
def test_odd_values_become_errors_in_words(name, given, client):
    if name in ("/describe", "/attend", "/compare"):
        answer = client.predict(api_name=name, **given)
    else:
        answer = client.submit(api_name=name, **given).result(timeout=60)
    assert set(answer) == {"error"}
    assert "Traceback" not in answer["error"]
    assert len(answer["error"]) < 1500


def test_files_and_addresses_in_any_slot_are_never_followed(served):
    from http.server import BaseHTTPRequestHandler, HTTPServer

    seen: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(200)
            self.end_headers()

    listener = HTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{listener.server_port}/x"
    file = {"path": url, "url": url, "meta": {"_type": "gradio.FileData"}}
    for body in (
        {"data": [file], "fn_index": 0, "session_hash": "s1"},
        {"data": [file] * 15, "api_name": "/attend", "fn_index": 0, "session_hash": "s2"},
        {"data": file, "component_id": 2, "fn_name": "call", "session_hash": "s3"},
    ):
        for path in ("/gradio_api/queue/join", "/gradio_api/component_server/",
                     "/gradio_api/call/attend"):  # fmt: skip
            _, _, said = fetch(
                served, path, json.dumps(body).encode(), **{"Content-Type": "application/json"}
            )
            assert b"root:" not in said
    threading.Event().wait(1.0)
    listener.shutdown()
    listener.server_close()
    assert not seen


def test_nothing_but_the_server_function_can_be_called(served):
    config = json.loads(fetch(served, "/config")[2])
    header = next(c["id"] for c in config["components"] if c["props"].get("elem_id") == "at-header")

    def call(name):
        asked = {"do": "draw", "page": "explore", "values": {"variant": "odd"}}
        body = {"data": asked, "component_id": header, "fn_name": name, "session_hash": "s"}
        return fetch(
            served, "/gradio_api/component_server/", json.dumps(body).encode(),
            **{"Content-Type": "application/json"},
        )  # fmt: skip

    assert "result" in json.loads(call("call")[2])
    for name in (
        "__init__",
        "postprocess",
        "preprocess",
        "process_example",
        "select",
        "as_example",
    ):
        assert call(name)[0] == 404, name


def test_headers_and_errors_tell_nothing(served):
    for path in ("/", "/config", "/gradio_api/file=/etc/passwd", "/no-such"):
        _, headers, body = fetch(served, path)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'self'" in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "same-origin"
        assert b"Traceback" not in body
    status, _, body = fetch(
        served, "/gradio_api/component_server/", b'{"broken', **{"Content-Type": "application/json"}
    )
    assert status >= 400
    assert b'File "' not in body
    assert str(Path.home()).encode() not in body


def test_other_sites_get_nothing(served):
    for origin in ("http://evil.example", "null", "http://localhost.evil"):
        status, headers, _ = fetch(
            served, "/gradio_api/queue/join", b"{}",
            **{"Origin": origin, "Content-Type": "application/json"},
        )  # fmt: skip
        assert status == 403
        assert headers["Access-Control-Allow-Origin"] is None
    assert fetch(served, "/", Host="evil.example")[0] == 400
    page = fetch(served, "/", Origin="http://evil.example")
    assert page[1]["Access-Control-Allow-Origin"] in (None, "")


def test_two_users_at_once_each_get_their_own(client):
    expected = {seed: draw("explore", seed=seed)["weights"] for seed in range(6)}

    def one(seed: int) -> bool:
        found = client.predict("scaled_dot_product", seed=seed, api_name="/attend")
        return np.array_equal(np.array(found["weights"], np.float32), expected[seed])

    with ThreadPoolExecutor(4) as users:
        assert all(users.map(one, [*range(6), *range(6)]))


def test_accounts_guard_every_route(fakes, tmp_path):
    import attnreg_playground
    from attnreg_playground import accounts

    path = tmp_path / "accounts"
    path.write_text(accounts.line("ada", "a long password") + "\n", encoding="utf-8")
    demo = attnreg_playground.launch(
        open_browser=False, block=False, registry=FAKES, auth=str(path)
    )
    try:
        for route in ("/config", "/gradio_api/info", "/gradio_api/startup-events"):
            status, _, body = fetch(demo, route)
            assert status == 401 or b"scaled_dot_product" not in body
        for route in ("/gradio_api/component_server/", "/gradio_api/queue/join",
                      "/gradio_api/call/attend"):  # fmt: skip
            body = {"data": [], "component_id": 1, "fn_name": "call", "session_hash": "s",
                    "fn_index": 0}  # fmt: skip
            status, _, _ = fetch(
                demo, route, json.dumps(body).encode(), **{"Content-Type": "application/json"}
            )
            assert status == 401
        assert b"catalogue" not in fetch(demo, "/")[2]
        from gradio_client import Client

        inside = Client(demo.local_url, auth=("ada", "a long password"), verbose=False)
        assert inside.predict(api_name="/variants")
    finally:
        demo.close(verbose=False)


def test_scripts_never_make_markup_of_text():
    from attnreg_playground.app import SCRIPTS, read_asset

    for name in (*SCRIPTS, "header", "tab"):
        script = read_asset(f"{name}.js")
        ways = ("innerHTML", "insertAdjacentHTML", "outerHTML =", "document.write", "eval(",
                "Function(", "setTimeout(\"", "srcdoc")  # fmt: skip
        assert not [way for way in ways if way in script], name
