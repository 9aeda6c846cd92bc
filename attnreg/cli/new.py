"""``attnreg new NAME``: a plugin of one's own, complete from the start."""

from __future__ import annotations

import builtins
import keyword
import re
import shlex
from dataclasses import dataclass
from importlib import metadata, resources, util
from pathlib import Path
from typing import Annotated

import typer

from attnreg._version import __version__
from attnreg.discovery import installed
from attnreg.errors import OptionError, nearest

LONGEST = 32
"""Characters of a name, which comes back in longer ones and in lines of code."""


@dataclass(frozen=True)
class Family:
    """What a template of ``attnreg/template`` holds, for the files that all of them share."""

    writes: str
    summary: str
    formula: str
    time: str
    memory: str


FAMILIES = {
    "dot_product": Family(
        "transform(query, key)",
        "scaled dot products of bounded entries",
        r"\operatorname{softmax}_j(s\, f(q_i)^\top f(k_j)) V,\ f(x) = c \tanh(x / c)",
        "L^2",
        "L",
    ),
    "score": Family(
        "score(query, key)",
        "the nearer a key, the larger its weight, with heavy tails",
        r"\operatorname{softmax}_j\left(-\log(1 + \|q_i - k_j\|^2 / \tau)\right) V",
        "L^2",
        "L",
    ),
    "kernel": Family(
        "feature_map(x)",
        "softplus features instead of a softmax, linear in the length",
        r"\frac{\phi(q_i)^\top \sum_j \phi(k_j) v_j^\top}{\phi(q_i)^\top \sum_j \phi(k_j)}",
        "L",
        "L",
    ),
    "custom": Family(
        "forward(query, key, value, mask)",
        "a sigmoid for each key instead of a softmax over all",
        r"\sum_j \sigma\left(s\, q_i^\top k_j + \beta - \log n_i\right) v_j",
        "L^2",
        "L^2",
    ),
}

_FILES = {
    "common/pyproject.toml.txt": "pyproject.toml",
    "common/README.md.txt": "README.md",
    "common/LICENSE.txt": "LICENSE",
    "common/gitignore.txt": ".gitignore",
    "common/ci.yml.txt": ".github/workflows/ci.yml",
    "common/init.py.txt": "@PACKAGE@/__init__.py",
    "@FAMILY@/module.py.txt": "@PACKAGE@/module.py",
    "@FAMILY@/reference.py.txt": "@PACKAGE@/reference.py",
    "common/test.py.txt": "tests/test_@NAME@.py",
}
_EMPTY = "@PACKAGE@/py.typed"


def new(
    name: Annotated[str, typer.Argument(help="The variant's name, such as laplacian or softcap.")],
    family: Annotated[
        str | None, typer.Option(help="dot_product, score, kernel or custom.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder to write, new or empty; attnreg-NAME if not given."),
    ] = None,
) -> None:
    """Write a plugin of your own: a distribution to install, edit, check and publish.

    The family says what you write. dot_product: transform(query, key); score: score(query, key);
    kernel: feature_map(x); custom: a module of your own. Each comes with a formula that works.
    """
    name = check_name(name)
    chosen = check_family(family)
    folder = check_folder(Path(distribution_of(name)) if out is None else out)
    files = render(name, chosen)
    try:
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
    except OSError as error:
        raise OptionError(f"{folder} could not be written: {error}") from error
    typer.echo(f"Wrote {folder}:")
    for path in files:
        typer.echo(f"  {path}")
    place = shlex.quote(str(folder))
    typer.echo(f"\nYour formula goes into {package_of(name)}/module.py: {FAMILIES[chosen].writes}.")
    typer.echo("Next:")
    typer.echo(f"  pip install --editable {shlex.quote(f'{folder}[test]')}")
    typer.echo(f"  attnreg check {name} --profile fast")
    typer.echo(f"  pytest {place}")


def render(name: str, family: str) -> dict[str, str]:
    """Return the files of a new plugin, by their paths inside its folder."""
    folder = resources.files("attnreg") / "template"
    chosen = FAMILIES[family]
    words = {
        "NAME": name,
        "DISTRIBUTION": distribution_of(name),
        "PACKAGE": package_of(name),
        "FAMILY": family,
        "PIN": _pin(),
        "SUMMARY": chosen.summary,
        "FORMULA": chosen.formula,
        "TIME": chosen.time,
        "MEMORY": chosen.memory,
    }
    sources = {
        fill(path, words): (folder / fill(source, words)).read_text(encoding="utf-8")
        for source, path in _FILES.items()
    }
    words["CLASS"] = class_of(name, "".join(sources.values()))
    files = {path: fill(text, words) for path, text in sources.items()}
    return dict(sorted({**files, fill(_EMPTY, words): ""}.items()))


def fill(text: str, words: dict[str, str]) -> str:
    """Put words in place of ``@WORD@``; a decorator is in lower case and stays."""
    return re.sub(r"@([A-Z]+)@", lambda found: words[found[1]], text)


def check_name(given: str) -> str:
    """Return the variant's name; raise ``OptionError`` where no distribution can have it."""
    name = given.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or len(name) > LONGEST:
        better = re.sub(r"[^a-z0-9]+", "_", given.lower()).strip("_0123456789")[:LONGEST]
        hint = f"; try {better.rstrip('_')!r}" if better else ""
        raise OptionError(
            "a variant's name is a lower-case letter, then lower-case letters, digits and single "
            f"_ between them, at most {LONGEST}; got {given!r}{hint}"
        )
    if name.startswith("attnreg_"):
        short = name.removeprefix("attnreg_")
        raise OptionError(f"attnreg- is put in front of the name anyway: use {short!r}")
    if keyword.iskeyword(name):
        raise OptionError(f"{name!r} is a word of Python's own; choose another name")
    if (extra := name.replace("_", "-")) in _extras():
        raise OptionError(
            f"{name!r} is a name of attnreg's own, as in pip install attnreg[{extra}]; "
            "choose another name"
        )
    for plugin in installed().plugins:
        if plugin.matches(name) or plugin.matches(distribution_of(name)):
            raise OptionError(
                f"{name!r} is taken by {plugin.distribution}, which is installed; choose another "
                "name, or uninstall it first"
            )
    if util.find_spec(package_of(name)) is not None:
        raise OptionError(
            f"a module {package_of(name)} is already there, and would hide the new one or be "
            "hidden by it; choose another name"
        )
    return name


def check_family(given: str | None) -> str:
    """Return the family; raise ``OptionError`` with the nearest where there is no such one."""
    listed = ", ".join(f"{family} ({about.writes})" for family, about in FAMILIES.items())
    if given is None:
        raise OptionError(f"give --family, by what you write: {listed}")
    family = given.replace("-", "_")
    if family not in FAMILIES:
        raise OptionError(f"there is no family {given!r}.{nearest(family, FAMILIES)} Use: {listed}")
    return family


def check_folder(folder: Path) -> Path:
    """Return the folder; raise ``OptionError`` where something is there that would be mixed in."""
    try:
        found = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return folder
    except NotADirectoryError:
        raise OptionError(f"{folder} is a file; give another folder with --out") from None
    except OSError as error:
        raise OptionError(f"{folder} cannot be read: {error}") from error
    # A repository just made is as good as empty.
    if left := [entry for entry in found if entry != ".git"]:
        raise OptionError(
            f"{folder} is not empty (it holds {left[0]!r}), and nothing is overwritten; give "
            "another folder with --out, or empty it first"
        )
    return folder


def distribution_of(name: str) -> str:
    """Return the name to install: attnreg-my-variant."""
    return "attnreg-" + name.replace("_", "-")


def package_of(name: str) -> str:
    """Return the name to import: attnreg_my_variant."""
    return f"attnreg_{name}"


def class_of(name: str, source: str) -> str:
    """Return the name of the class, as TalkingHeads: no word of Python's or of the source."""
    made = "".join(part.capitalize() for part in name.split("_"))
    taken = hasattr(builtins, made) or re.search(rf"\b{made}\b", source)
    return f"{made}Variant" if taken else made


def _extras() -> set[str]:
    """The extras of the core: its plugins by their names, ``all``, ``playground`` and ``dev``.

    From the metadata: the registry knows the plugins too, but importing it imports torch.
    """
    try:
        return set(metadata.metadata("attnreg").get_all("Provides-Extra") or ())
    except metadata.PackageNotFoundError:  # run from a copy that is not installed
        return set()


def _pin() -> str:
    major, minor = __version__.split(".")[:2]
    return f">={major}.{minor},<{major}.{int(minor) + 1}"
