"""What stands before Gradio: hosts, origins, routes and sizes that are let in; headers sent out."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LARGEST = 2**20
"""Bytes of a request's body."""

ROUTES = {
    "GET": re.compile(
        r"/|/config/?|/(assets|static|svelte)/.+|/theme\.css|/favicon\.ico|/robots\.txt|/manifest\.json"
        r"|/gradio_api/(info/?|startup-events|queue/data|app_id/?|heartbeat/[\w-]+"
        r"|call/[a-z_]+/[\w-]+)|/login_check/?|/gradio_api/(login_check/?|user/?|token/?)|/logout"
    ),
    "POST": re.compile(
        r"/login/?|/gradio_api/(component_server/?|queue/join/?|cancel|reset/?|call/(v2/)?[a-z_]+/?)"
    ),
}
"""All that the page, its API and its login need. Files, uploads, proxies and streams are not among
them, nor is whatever a later Gradio adds."""

HOST = re.compile(r"(?:(?P<name>[A-Za-z0-9._-]+)|\[(?P<six>[0-9A-Fa-f:.]+)\])(?::\d{1,5})?")

LONGEST_PATH = 500

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    (
        b"content-security-policy",
        # Gradio's own scripts are inline, and it builds functions of the text of components.
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
        b"style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
        b"connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'; "
        b"frame-ancestors 'self'",
    ),
)


class Guard:
    """ASGI middleware. ``hosts`` are the names under which the app may be asked for."""

    def __init__(self, app: Any, hosts: Iterable[str]) -> None:
        self.app = app
        self.hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse what does not belong here; pass the rest on."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if _name(host) not in self.hosts:
            name = "".join(sign for sign in _name(host)[:100] if sign.isalnum() or sign in ".-:")
            await _refuse(
                send, 400, f"the host {name!r} is not served here; --allow-host lets a name in"
            )
            return
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        allowed = ROUTES.get(method)
        path = scope["path"]
        good = allowed is not None and len(path) <= LONGEST_PATH and ".." not in path
        if not good or allowed is None or not allowed.fullmatch(path):
            await _refuse(send, 404, "there is no such page")
            return
        if method == "POST" and not _same_origin(headers, host):
            await _refuse(send, 403, "another site may not ask this one")
            return
        size = headers.get(b"content-length", b"0")
        if not size.isdigit() or int(size) > LARGEST:
            await _refuse(send, 413, "the request is too large")
            return
        forwarded = headers.get(b"x-forwarded-host", b"").decode("latin-1")
        if forwarded and _name(forwarded) not in self.hosts:  # Gradio would make links of it
            scope["headers"] = [
                pair for pair in scope["headers"] if not pair[0].startswith(b"x-forwarded-")
            ]
        await self.app(scope, _limited(receive), _with_headers(send))


def _name(host: str) -> str:
    """Return the name of ``name:port`` in lower case, "" for what is no such thing."""
    found = HOST.fullmatch(host)
    return (found["name"] or found["six"]).lower() if found else ""


def _same_origin(headers: dict[bytes, bytes], host: str) -> bool:
    """Whether a request comes from this very page, or from no page at all, as a client's does."""
    origin = headers.get(b"origin")
    if origin is None:
        return headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin")
    try:
        return urlsplit(origin.decode("latin-1")).netloc.lower() == host.lower()
    except ValueError:
        return False


def _limited(receive: Receive) -> Receive:
    taken = 0

    async def limited() -> MutableMapping[str, Any]:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > LARGEST:  # one that did not say how long it is
            return {"type": "http.disconnect"}
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in HEADERS}
            kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in own]
            message["headers"] = [*kept, *HEADERS]
        await send(message)

    return sent


async def _refuse(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
