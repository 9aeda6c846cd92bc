"""``python -m attnreg``: the command line."""

from __future__ import annotations

from attnreg.cli import app

if __name__ == "__main__":
    app(prog_name="attnreg")
