"""Who may log in: a file of ``name:salt:hash`` lines.

``python -m attnreg_playground.accounts FILE NAME`` adds one. Passwords are hashed by scrypt; what
is typed is not kept.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import secrets
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

TRIES, WINDOW = 5, 60.0
"""So many wrong passwords for a name in so many seconds; then it has to wait."""


MOST_NAMES = 10_000
"""Names whose tries are remembered; beyond, only those of accounts."""

SALT, HASH = 16, 32


class Accounts:
    """The accounts of a file, as Gradio asks for them: called with a name and a password."""

    def __init__(self, held: Mapping[str, tuple[bytes, bytes]]) -> None:
        self._held = dict(held)
        self._nobody = (secrets.token_bytes(SALT), secrets.token_bytes(HASH))
        self._tries: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    @classmethod
    def read(cls, path: str) -> Accounts:
        """Read a file; raise ``ValueError`` where it holds no account or a line is none."""
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the accounts in {path!r} cannot be read: {error}") from error
        held: dict[str, tuple[bytes, bytes]] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                name, salt, found = line.strip().split(":")
                held[name] = (bytes.fromhex(salt), bytes.fromhex(found))
                if not name or [len(part) for part in held[name]] != [SALT, HASH]:
                    raise ValueError("a name, a salt and a hash")
            except ValueError as error:
                raise ValueError(
                    f"line {number} of {path!r} is not name:salt:hash; "
                    "`python -m attnreg_playground.accounts FILE NAME` writes one"
                ) from error
        if not held:
            raise ValueError(f"{path!r} holds no account")
        return cls(held)

    def __call__(self, name: str, password: str) -> bool:
        """Return whether they belong together; an unknown name takes as long as a known one."""
        now = time.monotonic()
        with self._lock:  # a try counts before it is looked at: many at once are many
            tries = [at for at in self._tries.get(name, ()) if now - at < WINDOW]
            if len(tries) >= TRIES:
                return False
            self._tries[name] = [*tries, now]
            if len(self._tries) > MOST_NAMES:
                self._tries = {one: at for one, at in self._tries.items() if one in self._held}
        salt, expected = self._held.get(name, self._nobody)
        right = hmac.compare_digest(hashed(password, salt), expected) and name in self._held
        if right:
            with self._lock:
                self._tries.pop(name, None)
        return right


def hashed(password: str, salt: bytes) -> bytes:
    """Return the scrypt hash of a password, ``HASH`` bytes."""
    return hashlib.scrypt(
        password.encode("utf-8", "surrogatepass"), salt=salt, n=2**14, r=8, p=1, dklen=HASH
    )


def line(name: str, password: str) -> str:
    """Return the line of an account; raise ``ValueError`` for a name that cannot be one."""
    if not name or ":" in name or not name.isprintable():
        raise ValueError(f"a name is printable and has no colon, got {name!r}")
    salt = secrets.token_bytes(SALT)
    return f"{name}:{salt.hex()}:{hashed(password, salt).hex()}"


def main() -> None:
    """Ask for a password, and add an account to a file that only its owner can read."""
    if len(sys.argv) != 3:
        sys.exit("usage: python -m attnreg_playground.accounts FILE NAME")
    path = Path(sys.argv[1])
    try:
        password = getpass.getpass("password: ")
        if password != getpass.getpass("again: "):
            sys.exit("the two passwords differ: nothing was written")
        added = line(sys.argv[2], password)
    except ValueError as error:
        sys.exit(str(error))
    path.touch(mode=0o600)
    path.chmod(0o600)
    with path.open("a", encoding="utf-8") as file:
        file.write(added + "\n")


if __name__ == "__main__":
    main()
