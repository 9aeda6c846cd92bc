"""The repository itself: one shape for every plugin, one version, imports in one direction."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path, PurePath
from typing import Any

import pytest

from attnreg import __version__
from attnreg.registry import KNOWN_PLUGINS

ROOT = Path(__file__).resolve().parent.parent
NAMES = (
    "additive",
    "cosine",
    "euclidean",
    "linear",
    "linformer",
    "performer",
    "scaled_dot_product",
    "shared_qkv",
    "sparse_window",
)
FOLDERS = (".", *(f"plugins/{name}" for name in NAMES), "playground")
READMES = tuple(f"{folder}/README.md".removeprefix("./") for folder in FOLDERS)
MAJOR, MINOR = map(int, __version__.split(".")[:2])
PIN = f">={MAJOR}.{MINOR},<{MAJOR}.{MINOR + 1}"

every_plugin = pytest.mark.parametrize("name", NAMES)
every_folder = pytest.mark.parametrize("folder", FOLDERS)


def hyphenated(name: str) -> str:
    return name.replace("_", "-")


@cache
def manifest(folder: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))


@cache
def ignored() -> set[str]:
    """Names of folders that .gitignore leaves out, and git's own."""
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    return {".git"} | {line.rstrip("/") for line in lines if line.endswith("/")}


def files(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder that git would keep."""
    for path in sorted(folder.iterdir()):
        if any(PurePath(path.name).match(pattern) for pattern in ignored()):
            continue
        if path.is_dir():
            yield from files(path)
        else:
            yield path


def package_of(folder: str) -> Path:
    if folder == ".":
        return ROOT / "attnreg"
    name = PurePath(folder).name
    return ROOT / folder / f"attnreg_{name}"


def shipped(folder: str) -> list[Path]:
    """Return the Python files of a distribution."""
    found = [path for path in files(package_of(folder)) if path.suffix == ".py"]
    assert found, folder
    return found


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ---------------------------------------------------------------------------------------------
# Shape, names, versions
# ---------------------------------------------------------------------------------------------


def test_the_plugins_are_the_ones_that_the_core_knows():
    folders = sorted(path.name for path in (ROOT / "plugins").iterdir() if path.is_dir())
    assert folders == list(NAMES)
    assert dict(KNOWN_PLUGINS) == {name: f"attnreg-{hyphenated(name)}" for name in NAMES}


@every_plugin
def test_a_plugin_has_the_one_shape(name):
    folder = ROOT / "plugins" / name
    found = {path.relative_to(folder).as_posix() for path in files(folder)}
    package = f"attnreg_{name}"
    required = {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        f"{package}/__init__.py",
        f"{package}/module.py",
        f"{package}/reference.py",
        f"{package}/py.typed",
        f"tests/test_{name}.py",
    }
    assert required <= found, sorted(required - found)
    # A package may hold more modules, and tests more files, but nothing lies beside them.
    elsewhere = {path for path in found if path.split("/")[0] not in (package, "tests")}
    assert elsewhere == {"pyproject.toml", "README.md", "LICENSE"}


@every_plugin
def test_the_plugin_manifests_differ_in_name_and_description_only(name):
    own = manifest(f"plugins/{name}")
    description = own["project"]["description"]
    assert description
    assert own == {
        "build-system": manifest(".")["build-system"],
        "project": {
            "name": f"attnreg-{hyphenated(name)}",
            "description": description,
            "readme": "README.md",
            "license": "MIT",
            "license-files": ["LICENSE"],
            "authors": [{"name": "attnreg contributors"}],
            "requires-python": ">=3.11",
            "dynamic": ["version"],
            "dependencies": [f"attnreg{PIN}", "numpy", "torch"],
            "entry-points": {"attnreg": {name: f"attnreg_{name}"}},
        },
        "tool": {"hatch": {"version": {"path": "../../attnreg/_version.py"}}},
    }


@every_folder
def test_every_distribution_is_typed_licensed_and_reads_the_one_version(folder):
    own = manifest(folder)
    licence = (ROOT / folder / "LICENSE").read_text(encoding="utf-8")
    version_file = (ROOT / folder / own["tool"]["hatch"]["version"]["path"]).resolve()
    assert (package_of(folder) / "py.typed").is_file()
    assert licence == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert licence.startswith("MIT License")
    assert own["project"]["license"] == "MIT"
    assert own["project"]["license-files"] == ["LICENSE"]
    assert own["project"]["requires-python"] == ">=3.11"
    assert own["project"]["dynamic"] == ["version"]
    assert own["build-system"] == manifest(".")["build-system"]
    assert version_file == ROOT / "attnreg" / "_version.py"


def test_the_extras_of_the_core():
    extras = manifest(".")["project"]["optional-dependencies"]
    for name in NAMES:
        assert extras[hyphenated(name)] == [f"attnreg-{hyphenated(name)}{PIN}"]
    (everything,) = extras["all"]
    inside = re.fullmatch(r"attnreg\[(.+)\]", everything)
    assert inside is not None
    assert sorted(inside[1].split(",")) == sorted(map(hyphenated, NAMES))
    assert extras["playground"] == [f"attnreg-playground{PIN}"]
    assert extras["models"] == [f"attnreg-playground[models]{PIN}"]
    assert set(extras) == {*map(hyphenated, NAMES), "all", "playground", "models", "dev"}


def test_the_playground_names_this_version_of_the_core():
    own = manifest("playground")["project"]
    assert own["name"] == "attnreg-playground"
    assert f"attnreg{PIN}" in own["dependencies"]


@every_plugin
def test_the_installed_entry_point(name):
    (entry,) = entry_points(group="attnreg", name=name)
    assert entry.value == f"attnreg_{name}"
    assert entry.dist is not None
    assert entry.dist.name == f"attnreg-{hyphenated(name)}"
    assert entry.dist.version == __version__


# ---------------------------------------------------------------------------------------------
# Imports
# ---------------------------------------------------------------------------------------------

# What may be imported beside the standard library, torch, numpy and the distribution itself.
# annotated_types and annotated_doc are the words of the contract in which options are typed.
CONTRACT = {"annotated_doc", "annotated_types", "attnreg"}
CORE = CONTRACT | {"pluggy", "rich", "typer"}
MODELS = {"onnx", "onnxruntime", "sklearn", "transformers"}
PLAYGROUND = CONTRACT | MODELS | {"gradio", "latex2mathml", "starlette"}
# Parts of the core that need what the core does not: imported by those who ask for them.
EXCEPT = {
    "attnreg/cli*": {"attnreg_playground"},
    "attnreg/conformance/in_pytest.py": {"pytest"},
    "attnreg/integrations/transformers*": {"transformers"},
}


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every module that a file imports, wherever it stands, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield node.module or "", node.lineno
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield str(node.args[0].value), node.lineno


def foreign_imports(path: Path, allowed: set[str]) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = PurePath(relative(path))
    for pattern, more in EXCEPT.items():
        if any(part.match(pattern) for part in (name, *name.parents)):
            allowed = allowed | more
    allowed = allowed | {"torch", "numpy"} | sys.stdlib_module_names
    return [
        f"{name}:{line} imports {module}"
        for module, line in imports(tree)
        if module.split(".")[0] not in allowed
    ]


@every_folder
def test_imports_go_in_one_direction(folder):
    own = package_of(folder).name
    allowed = {".": CORE, "playground": PLAYGROUND}.get(folder, CONTRACT) | {own}
    assert [line for path in shipped(folder) for line in foreign_imports(path, allowed)] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("attnreg/layer.py", "import attnreg_linear"),
        ("attnreg/layer.py", "def f():\n    from attnreg_linear.module import Linear"),
        ("attnreg/layer.py", "importlib.import_module('attnreg_linear')"),
        ("attnreg/layer.py", "import attnreg_playground"),
        ("attnreg/cli.py", "import gradio as gr"),
        ("attnreg/conformance/suite.py", "import pytest"),
        ("attnreg/conformance/checks/pytest_suite.py", "import pytest"),
    ],
)
def test_the_import_rule_itself(path, source, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(source, encoding="utf-8")
    assert len(foreign_imports(file, CORE)) == 1


# ---------------------------------------------------------------------------------------------
# Style
# ---------------------------------------------------------------------------------------------

LONGEST = 400


@every_folder
def test_no_shipped_file_is_long(folder):
    long = {
        relative(path): lines
        for path in shipped(folder)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST
    }
    assert long == {}


def private_torch_names(source: str) -> list[str]:
    """Return every name with a leading underscore that is reached through torch."""
    tree = ast.parse(source)
    aliases: set[str] = set()
    found: list[str] = []

    def private(dotted: str) -> bool:
        return any(re.match(r"_(?!_)", part) for part in dotted.split("."))

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    aliases.add(alias.asname or "torch")
                    found += [alias.name] if private(alias.name) else []
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                aliases.add(alias.asname or alias.name)
                dotted = f"{node.module}.{alias.name}"
                found += [dotted] if private(dotted) else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            dotted = ast.unparse(node.value)
            if dotted.split(".")[0] in aliases and re.fullmatch(r"[\w.]+", dotted):
                found.append(f"{dotted}.{node.attr}")
    return found


@every_folder
def test_no_private_torch_name_is_used(folder):
    used = {
        relative(path): names
        for path in shipped(folder)
        if (names := private_torch_names(path.read_text(encoding="utf-8")))
    }
    assert used == {}


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._C._log_api_usage_once('x')",
        "import torch._dynamo",
        "from torch import _dynamo",
        "from torch.utils._pytree import tree_map",
        "import torch.nn.functional as F\nF._scaled_dot_product_attention(1)",
        "from torch.nn import functional\nf = functional._pad",
    ],
)
def test_the_rule_on_private_names_itself(source):
    assert private_torch_names(source)
    assert private_torch_names("import torch\nself._x = torch.__version__") == []


# ---------------------------------------------------------------------------------------------
# What is written
# ---------------------------------------------------------------------------------------------


def test_the_readme_has_every_variant_in_its_table():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("|")]
    assert [name for name in NAMES if not any(f"`{name}`" in row for row in rows)] == []


@pytest.mark.parametrize("readme", [*READMES, "CONTRIBUTING.md"])
def test_the_code_of_a_readme_runs(readme, tmp_path):
    text = (ROOT / readme).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    # Only the playground is no library: it may have nothing to show in Python.
    assert blocks or readme == "playground/README.md", "no example in Python"
    # One script, as a reader would run it; warnings turn into errors once torch is imported.
    script = tmp_path / "readme.py"
    prelude = "import warnings\nimport torch\nwarnings.simplefilter('error')\n"
    script.write_text(prelude + "\n".join(blocks), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"


def test_constraints_are_names_and_versions():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    odd = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9][\w.-]*==[0-9][\w.]*", line)]
    assert odd == []
    names = [re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines]
    assert len(set(names)) == len(names)
    assert not any(name.startswith("attnreg") for name in names)
    assert {"torch", "numpy", "gradio", "transformers", "pytest", "ruff", "mypy"} <= set(names)


# Written so that the patterns do not match themselves.
HOSTS = re.compile(
    r"\bpypi\.org|\bpythonhosted\.org|\bdownload\.pytorch\.org|\bnpmjs\.(?:org|com)"
    r"|\bdeb\.debian\.org|\banaconda\.org|--(?:extra-)?index-url|--trusted[-]host"
)
MACHINE_PATHS = re.compile(r"(?<![\w./~-])/(?:work|root)\b")


def test_no_file_names_a_registry_or_a_place_on_one_machine():
    found = []
    for path in files(ROOT):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, 1):
            if HOSTS.search(line) or MACHINE_PATHS.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()[:100]}")
    assert found == []
