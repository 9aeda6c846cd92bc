"""``python -m attnreg_playground``: serve the playground."""

from __future__ import annotations

import argparse

from attnreg_playground import launch


def main() -> None:
    """Read the arguments and serve until interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m attnreg_playground", description="Look at attention variants in a browser."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=None)
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument("--auth", metavar="FILE", help="let in whom this file of accounts names")
    parser.add_argument("--expose", action="store_true", help="allow a host others can reach")
    parser.add_argument(
        "--heavy",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="allow benchmark, conformance and training (default: on this machine alone)",
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="another name of the host"
    )
    given = parser.parse_args()
    try:
        launch(
            given.host,
            given.port,
            not given.no_browser,
            auth=given.auth,
            expose=given.expose,
            heavy=given.heavy,
            allow_hosts=given.allow_host,
        )
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
