"""What an installed attnreg must do without its checkout: ``python smoke.py PLUGIN...``."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import torch

import attnreg


def check(holds: object, complaint: str) -> None:
    if not holds:
        sys.exit(f"smoke test: {complaint}")


def command(*arguments: str) -> str:
    script = Path(sys.executable).with_name("attnreg")
    return subprocess.run([script, *arguments], check=True, capture_output=True, text=True).stdout


def check_distribution(name: str) -> None:
    installed = distribution(name)
    files = [file for file in installed.files or [] if ".dist-info" not in file.parts[0]]
    licences = installed.metadata.get_all("License-File") or []
    package = name.replace("-", "_")
    own = [file for file in files if file.parts[0] not in ("..", "__pycache__")]
    check(installed.version == attnreg.__version__, f"{name} is version {installed.version}")
    check(licences == ["LICENSE"], f"{name} carries the licence files {licences}")
    check({file.parts[0] for file in own} == {package}, f"{name} holds more than {package}: {own}")
    check(f"{package}/py.typed" in map(str, own), f"{name} has no py.typed")
    location = Path(str(installed.locate_file(package))).resolve()
    check(location.is_relative_to(sys.prefix), f"{name} is imported from {location}")


def check_variant(name: str) -> None:
    attention = attnreg.create(name, num_heads=2, head_dim=8, max_length=16)
    query, key, value = torch.randn(3, 1, 2, 16, 8).unbind()
    output = attention(query, key, value)
    check(output.shape == (1, 2, 16, 8) and output.isfinite().all(), f"{name} gave {output}")


def main(plugins: list[str]) -> None:
    distributions = ["attnreg-" + plugin.replace("_", "-") for plugin in plugins]
    for name in ("attnreg", "attnreg-playground", *distributions):
        check_distribution(name)
    listed = [variant["name"] for variant in json.loads(command("list", "--json"))["variants"]]
    check(sorted(listed) == sorted(plugins), f"attnreg list gave {listed}")
    check(sorted(attnreg.list_variants()) == sorted(plugins), "list_variants() disagrees")
    for name in plugins:
        check_variant(name)
        check(name in command("info", name), f"attnreg info {name} does not name it")
    command("--help")
    command("doctor")
    print(f"smoke test: {len(distributions) + 2} distributions, {len(plugins)} variants, all well")


if __name__ == "__main__":
    main(sys.argv[1:])
