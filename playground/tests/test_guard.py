"""What stands before Gradio: hosts, origins, routes, sizes, headers, accounts."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from attnreg_playground import accounts, serving
from attnreg_playground.guard import HEADERS, LARGEST, Guard

from .conftest import run_alone


async def _inner(scope, receive, send):
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] == "http.disconnect":
            return
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"server", b"x")]})
    await send({"type": "http.response.body", "body": body})


def ask(path, method="GET", host="127.0.0.1:7860", headers=(), chunks=(b"",)):
    """Return status and headers of a request."""
    sent, left = [], list(chunks)

    async def receive():
        if not left:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    given = [(b"host", host.encode("latin-1")), *headers]
    scope = {"type": "http", "method": method, "path": path, "headers": given}
    guard = Guard(_inner, serving.hosts_of("127.0.0.1", ["play.example.org"]))
    run_alone(guard(scope, receive, send))
    if not sent:
        return 0, {}
    return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.parametrize(
    "path",
    [
        "/", "/config", "/assets/index-x.js", "/static/img/logo.svg", "/theme.css",
        "/gradio_api/info", "/gradio_api/startup-events", "/gradio_api/queue/data",
        "/gradio_api/heartbeat/abc123", "/gradio_api/call/attend/abc", "/login_check",
    ],
)  # fmt: skip
def test_what_the_page_needs_is_let_in(path):
    status, headers = ask(path)
    assert status == 200
    for name, value in HEADERS:
        assert headers[name] == value


@pytest.mark.parametrize("path", ["/gradio_api/component_server/", "/gradio_api/queue/join",
                                  "/gradio_api/call/attend", "/login"])  # fmt: skip
def test_what_the_page_sends_is_let_in(path):
    assert ask(path, "POST")[0] == 200


ROUTES = [
    "/gradio_api/upload", "/gradio_api/file=/etc/passwd", "/gradio_api/file/etc/passwd",
    "/gradio_api/file=../../etc/passwd", "/gradio_api/proxy=http://127.0.0.1:1/x",
    "/gradio_api/stream/x/y/z/playlist.m3u8", "/monitoring", "/monitoring/summary",
    "/gradio_api/run/predict", "/gradio_api/api/attend", "/gradio_api/openapi.json",
    "/gradio_api/upload_progress", "/gradio_api/process_recording", "/gradio_api/vibe-code",
    "/gradio_api/runs", "/gradio_api/run-history/records", "/gradio_api/deep_link", "/pwa_icon",
    "/gradio_api/custom_component/1/client/component/x.js", "/docs", "/openapi.json", "/redoc",
    "/gradio_api/mcp/sse", "/static/../app.py", "/assets/%2e%2e/../x", "/gradio_api/dev/reload",
    "//evil/x", "/gradio_api/queue/status", "/file=C:\\x", "/\x00", "/gradio_api/call/../file",
]  # fmt: skip


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "X"])
def test_everything_else_is_not_found(path, method):
    status, headers = ask(path, method)
    assert status == 404
    assert headers[b"x-content-type-options"] == b"nosniff"


def test_two_thousand_odd_paths_find_no_file():
    draw = random.Random(0)
    parts = ["..", "%2e%2e", "....//", "etc", "passwd", "file=", "C:", "\\", "\x00", "proxy=",
             "gradio_api", "upload", "//", "host", "share", "~", "app.py", "FILE="]  # fmt: skip
    for _ in range(2000):
        path = "/" + "/".join(draw.choices(parts, k=draw.randint(1, 6)))
        assert ask(path)[0] == 404, path


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:7860", 200), ("localhost", 200), ("LOCALHOST:1", 200), ("[::1]:7860", 200),
        ("play.example.org", 200), ("evil.example", 400), ("127.0.0.1.evil:7860", 400),
        ("localhost.evil", 400), ("", 400), ("evil@127.0.0.1", 400), ("127.0.0.1/evil", 400),
        ("127.0.0.1:abc", 400),
        ("127.0.0.1:", 400), ("127.0.0.1@evil", 400), ("[::1", 400), ("\xff", 400),
    ],
)  # fmt: skip
def test_only_known_hosts_are_served(host, status):
    assert ask("/", host=host)[0] == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:7860", 200), ("https://127.0.0.1:7860", 200),
        ("http://127.0.0.1:7861", 403), ("http://evil.example", 403), ("null", 403),
        ("http://127.0.0.1.evil:7860", 403), ("http://localhost:7860", 403), ("http://[", 403),
    ],
)  # fmt: skip
def test_only_the_page_itself_may_send(origin, status):
    headers = [(b"origin", origin.encode())]
    assert ask("/gradio_api/queue/join", "POST", headers=headers)[0] == status


def test_a_request_of_another_site_is_known_without_an_origin_too():
    for site, status in ((b"cross-site", 403), (b"same-site", 403), (b"same-origin", 200),
                         (b"none", 200)):  # fmt: skip
        found = ask("/gradio_api/queue/join", "POST", headers=[(b"sec-fetch-site", site)])
        assert found[0] == status


def test_bodies_are_bounded_whether_they_say_so_or_not():
    path = "/gradio_api/component_server/"
    for size in (str(LARGEST + 1), "99999999999999999999", "-1", "x", ""):
        assert ask(path, "POST", headers=[(b"content-length", size.encode())])[0] == 413
    chunk = b"x" * 2**16
    assert ask(path, "POST", chunks=[chunk] * 16)[0] == 200
    assert ask(path, "POST", chunks=[chunk] * 400)[0] == 0  # cut off


def test_long_paths_and_false_forwards_are_dropped():
    assert ask("/static/" + "a" * 5000)[0] == 404
    seen = []

    async def inner(scope, receive, send):
        seen.append(dict(scope["headers"]))

    for host, kept in ((b"evil.example", False), (b"play.example.org", True)):
        headers = [(b"host", b"127.0.0.1"), (b"x-forwarded-host", host)]
        scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
        run_alone(Guard(inner, ["127.0.0.1", "play.example.org"])(scope, None, None))
        assert (b"x-forwarded-host" in seen[-1]) == kept


def test_web_sockets_are_refused():
    sent = []

    async def send(message):
        sent.append(message)

    run_alone(Guard(_inner, ["x"])({"type": "websocket"}, None, send))
    assert sent[0]["type"] == "websocket.close"


def test_accounts_are_hashed_and_guessing_is_slow(tmp_path, monkeypatch):
    path = tmp_path / "accounts"
    path.write_text(accounts.line("ada", "a long password") + "\n\n", encoding="utf-8")
    assert "password" not in path.read_text(encoding="utf-8")
    held = accounts.Accounts.read(str(path))
    assert held("ada", "a long password")
    assert not held("bob", "a long password")
    for _ in range(accounts.TRIES):
        assert not held("ada", "wrong")
    assert not held("ada", "a long password")  # locked for a while
    monkeypatch.setattr(accounts, "WINDOW", 0.0)
    assert held("ada", "a long password")
    assert not held("ada", "\ud800")


def test_guessing_at_once_or_under_many_names_is_no_faster(tmp_path, monkeypatch):
    path = tmp_path / "accounts"
    path.write_text("\ufeff" + accounts.line("bob", "a long password"), encoding="utf-8")
    held, tried = accounts.Accounts.read(str(path)), []
    monkeypatch.setattr(accounts, "hashed", lambda password, salt: tried.append(1) or b"x" * 32)
    with ThreadPoolExecutor(20) as many:
        list(many.map(lambda _: held("bob", "bad"), range(40)))
    assert len(tried) == accounts.TRIES
    monkeypatch.setattr(accounts, "MOST_NAMES", 50)
    for number in range(200):
        held(f"nobody{number}", "bad")
    tried.clear()
    for _ in range(20):
        held("bob", "bad")
    assert not tried  # still locked
    assert len(held._tries) <= 51


@pytest.mark.parametrize("text", ["", "ada", "ada:x:y", "ada:00", "a:b:c:d", "ada::", ":00:00"])
def test_a_broken_file_of_accounts_says_how_to_make_one(text, tmp_path):
    path = tmp_path / "accounts"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="accounts"):
        accounts.Accounts.read(str(path))
    with pytest.raises(ValueError, match="cannot be read"):
        accounts.Accounts.read(str(tmp_path / "none"))
    for name in ("", "a:b", "a\nb"):
        with pytest.raises(ValueError, match="printable"):
            accounts.line(name, "x")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org", ""])
def test_a_host_that_others_reach_must_be_guarded_or_asked_for(host):
    import attnreg_playground

    with pytest.raises(ValueError, match=r"auth=FILE.*expose=True"):
        attnreg_playground.launch(host, open_browser=False, block=False)
    serving.check_address(host, "accounts", False)
    serving.check_address(host, None, True)


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
