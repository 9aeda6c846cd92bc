"""From an empty folder to a plugin: ``attnreg new``, CONTRIBUTING.md, and the standing example.

Every plugin is installed into a folder of its own, which only the processes of these tests see.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from attnreg.cli import app
from attnreg.cli.new import FAMILIES, LONGEST, class_of, render
from attnreg.conformance import Case
from attnreg.conformance.checks import built_in
from attnreg.registry import KNOWN_PLUGINS, default_registry
from tests.test_repo import CONTRACT, HOSTS, MACHINE_PATHS, PIN, imports

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "tests" / "example_plugin"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

every_family = pytest.mark.parametrize("family", FAMILIES)


def python(*arguments, site=None, cwd=None, expect=0):
    """Run Python with a further folder on its path; return what it printed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ATTNREG_", "PYTEST_"))}
    kept.pop("COLUMNS", None)
    paths = [str(site or ""), os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**kept, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert ran.returncode == expect, f"exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def new(*arguments):
    """Call ``attnreg new`` in this process."""
    quiet = dict.fromkeys(("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"))
    return CliRunner(env=quiet).invoke(app, ["new", *map(str, arguments)])


def install(folder, site):
    """Install a distribution into a folder that is no environment."""
    options = "--no-index --no-deps --no-build-isolation --disable-pip-version-check --quiet"
    python("-m", "pip", "install", *options.split(), "--target", site, folder)


def check(name, site, *options):
    """Run ``attnreg check``, which must exit 0, in its own process, and return its results."""
    report = site / f"{name}.json"
    python("-m", "attnreg", "check", name, "--json", report, *options, site=site, cwd=site)
    found = json.loads(report.read_text(encoding="utf-8"))
    return {one["check"]: one for one in found["results"]}


def listed(site):
    """Return what ``attnreg list`` says, by the names of variants."""
    found = json.loads(python("-m", "attnreg", "list", "--json", site=site, cwd=site))
    assert found["broken"] == []
    return {one["name"]: one for one in found["variants"]}


def own_tests(plugin, *options):
    """Run a plugin's own tests, as its author would."""
    options = ["-q", "-p", "no:cacheprovider", *options]
    printed = python("-m", "pytest", *options, site=plugin.site, cwd=plugin.folder)
    assert re.match(r"\d+ passed", printed.strip().splitlines()[-1]), printed


class Made(NamedTuple):
    """An installed plugin: its source, and the folder that has to be on the path."""

    folder: Path
    site: Path
    family: str = ""
    name: str = ""


@pytest.fixture(scope="module", params=FAMILIES)
def made(request, tmp_path_factory):
    """A plugin of each family, as it was generated."""
    family, place = request.param, tmp_path_factory.mktemp(request.param)
    plugin = Made(place / "source", place / "site", family, f"made_{family}")
    result = new(plugin.name, "--family", family, "--out", plugin.folder)
    assert result.exit_code == 0, result.output
    install(plugin.folder, plugin.site)
    return plugin


# --- attnreg new ----------------------------------------------------------------------------------


def test_a_generated_plugin_is_found(made):
    found, family = listed(made.site)[made.name], FAMILIES[made.family]
    assert found["distribution"] == f"attnreg-{made.name.replace('_', '-')}"
    assert found["version"] == "0.1.0"
    assert found["formula"]
    assert found["complexity"] == {"time": family.time, "memory": family.memory}
    assert [option["doc"] for option in found["options"]] != [""]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_generated_plugin_passes_the_suite(made):
    results = check(made.name, made.site, "--profile", "fast")
    assert results["N-01"]["status"] == "pass"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_generated_plugin_passes_its_own_tests(made):
    # The laws have run as a command: here it is enough that pytest runs some. Those of the family
    # that writes most by itself all run here too.
    own_tests(made, *(() if made.family == "custom" else ("-k", "N- or not conformance")))


def test_the_readme_of_a_generated_plugin_runs(made):
    (block,) = python_blocks(made.folder / "README.md")
    printed = python("-W", "error", "-c", block, site=made.site, cwd=made.site)
    assert f"# {printed.strip()}\n" in block


def test_a_generated_plugin_is_clean(made):
    lint = SETTINGS["tool"]["ruff"]["lint"]
    rules = ["--select", ",".join(lint["select"]), "--ignore", ",".join(lint["ignore"])]
    python("-m", "ruff", "format", "--check", "--no-cache", ".", cwd=made.folder)
    python("-m", "ruff", "check", "--no-cache", *rules, ".", cwd=made.folder)
    for path in (path for path in made.folder.rglob("*") if path.is_file()):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"@[A-Z]+@", text), path
        assert not HOSTS.search(text), path
        assert not MACHINE_PATHS.search(text), path
        assert text.endswith("\n") or not text, path


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_generated_plugins_and_the_example_are_typed(tmp_path):
    for family in FAMILIES:
        name = f"made_{family}"
        for path, text in render(name, family).items():
            if path.startswith(f"attnreg_{name}/"):
                (tmp_path / path).parent.mkdir(exist_ok=True)
                (tmp_path / path).write_text(text, encoding="utf-8")
    shutil.copytree(EXAMPLE / "attnreg_sparsemax", tmp_path / "attnreg_sparsemax")
    packages = [part for path in tmp_path.iterdir() for part in ("-p", path.name)]
    config = ["--config-file", ROOT / "pyproject.toml", "--cache-dir", tmp_path / "cache"]
    python("-m", "mypy", *config, *packages, cwd=tmp_path)


@every_family
def test_a_generated_manifest(family):
    manifest = tomllib.loads(render("talking_heads", family)["pyproject.toml"])
    project = manifest["project"]
    assert project["name"] == "attnreg-talking-heads"
    assert project["dependencies"][0] == f"attnreg{PIN}"
    assert project["entry-points"] == {"attnreg": {"talking_heads": "attnreg_talking_heads"}}


def test_the_templates_are_shipped_and_all_in_use(tmp_path):
    folder = ROOT / "attnreg" / "template"
    templates = {path.relative_to(ROOT).as_posix() for path in folder.rglob("*") if path.is_file()}
    python("-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=ROOT)
    (wheel,) = tmp_path.iterdir()
    assert templates <= set(zipfile.ZipFile(wheel).namelist())
    named = set()
    for family in FAMILIES:
        assert len(render("softcap", family)) == 10
        named |= {f"{family}/module.py.txt", f"{family}/reference.py.txt"}
    assert {one.removeprefix("attnreg/template/") for one in templates} == named | {
        f"common/{name}.txt"
        for name in (
            "pyproject.toml",
            "README.md",
            "LICENSE",
            "gitignore",
            "ci.yml",
            "init.py",
            "test.py",
        )
    }


def test_it_prints_what_was_written_and_what_comes_next(tmp_path):
    folder = tmp_path / "a plugin"
    result = new("soft-cap", "--family", "dot-product", "--out", folder)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {line.strip() for line in lines[1 : 1 + len(written)]} == written
    assert "attnreg_soft_cap/module.py: transform(query, key)" in result.stdout
    assert lines[-3:] == [
        f"  pip install --editable '{folder}[test]'",
        "  attnreg check soft_cap --profile fast",
        f"  pytest '{folder}'",
    ]


def test_it_imports_neither_torch_nor_a_plugin(tmp_path):
    program = (
        "import sys\n"
        "from attnreg.cli import app\n"
        "try:\n"
        "    app(sys.argv[1:], prog_name='attnreg')\n"
        "except SystemExit as done:\n"
        "    assert done.code == 0, done.code\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch', 'numpy', 'rich'}, loaded\n"
        "assert not [name for name in loaded if name.startswith('attnreg_')], loaded\n"
    )
    python("-c", program, "new", "softcap", "--family", "score", cwd=tmp_path)
    assert (tmp_path / "attnreg-softcap" / "attnreg_softcap" / "module.py").is_file()


def test_a_new_repository_is_an_empty_folder(tmp_path):
    (tmp_path / ".git").mkdir()
    assert new("softcap", "--family", "score", "--out", tmp_path).exit_code == 0


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Softcap", "try 'softcap'"),
        ("2soft", "try 'soft'"),
        ("soft__cap", "try 'soft_cap'"),
        ("soft_cap_", "try 'soft_cap'"),
        ("soft cap", "try 'soft_cap'"),
        ("../softcap", "try 'softcap'"),
        ("soft/../../cap", "try 'soft_cap'"),
        ("", "got ''"),
        ("..", "got '..'"),
        ("软", "got"),
        ("x" * (LONGEST + 1), f"at most {LONGEST}"),
        ("lambda", "Python's own"),
        ("attnreg-softcap", "use 'softcap'"),
        ("playground", "attnreg's own"),
        ("all", "attnreg's own"),
        ("conftest\n", "try 'conftest'"),
        *((name, "attnreg's own") for name in KNOWN_PLUGINS),
        ("sparse-window", "attnreg's own"),
    ],
)
def test_a_name_that_cannot_be(name, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = new("--family", "score", "--", name)
    assert result.exit_code == 2
    assert why in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    info = tmp_path / "site" / "somebody-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[attnreg]\nsoftcap = somewhere\n")
    (tmp_path / "site" / "attnreg_softer.py").write_text("raise SystemExit(1)\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    for name, why in (("softcap", "taken by somebody"), ("softer", "module attnreg_softer is")):
        result = new(name, "--family", "score")
        assert result.exit_code == 2
        assert why in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


@pytest.mark.parametrize(
    ("family", "why"),
    [
        (["--family", "scor"], "Did you mean 'score'?"),
        (["--family", "kernels"], "Did you mean 'kernel'?"),
        (["--family", "transformer"], "custom (forward(query, key, value, mask))"),
        ([], "give --family"),
    ],
)
def test_a_family_that_is_not_there(family, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = new("softcap", *family)
    assert result.exit_code == 2
    assert why in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    folder = tmp_path / "attnreg-softcap"
    folder.mkdir()
    (folder / "README.md").write_text("mine", encoding="utf-8")
    result = new("softcap", "--family", "score", "--out", folder)
    assert result.exit_code == 2
    assert "is not empty (it holds 'README.md')" in result.stderr
    assert [path.name for path in folder.iterdir()] == ["README.md"]
    result = new("softcap", "--family", "score", "--out", folder / "README.md")
    assert result.exit_code == 2
    assert "is a file" in result.stderr
    assert (folder / "README.md").read_text(encoding="utf-8") == "mine"


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    result = new("softcap", "--family", "score", "--out", tmp_path / "file" / "inside")
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


@every_family
@pytest.mark.parametrize("name", ["tensor", "true", "any", "score_attention", "x" * LONGEST])
def test_awkward_names_give_code_that_compiles(family, name):
    files = render(name, family)
    for path, text in files.items():
        if path.endswith(".py"):
            ast.parse(text)
            assert max(map(len, text.splitlines())) <= 100 or "noqa" in text
    module = ast.parse(files[f"attnreg_{name}/module.py"])
    (made,) = (node.name for node in module.body if isinstance(node, ast.ClassDef))
    imported = {
        alias.name
        for node in module.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert made not in imported


def test_names_of_classes():
    assert class_of("talking_heads", "") == "TalkingHeads"
    assert class_of("dims", "from attnreg import Dims") == "DimsVariant"
    assert class_of("true", "") == "TrueVariant"


# --- CONTRIBUTING.md ------------------------------------------------------------------------------


def python_blocks(path):
    text = path.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def softcap(tmp_path_factory):
    """The plugin of CONTRIBUTING.md, typed from the page."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^attnreg (new [^#\n]*?) *(?:#.*)?$", page, flags=re.MULTILINE)
    place = tmp_path_factory.mktemp("softcap")
    python("-m", "attnreg", *command.split(), cwd=place)
    folder = place / "attnreg-softcap"
    for block in python_blocks(ROOT / "CONTRIBUTING.md"):
        name = re.match(r"# (attnreg_softcap/\w+\.py)\n", block)
        assert name is not None, f"a block that does not say where it goes:\n{block}"
        path = folder / name[1]
        # What is added to __init__.py comes after what was generated; the rest are whole files.
        before = path.read_text(encoding="utf-8") if path.name == "__init__.py" else ""
        path.write_text(before + block, encoding="utf-8")
    install(folder, place / "site")
    return Made(folder, place / "site")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_plugin_of_the_page_passes_the_suite(softcap):
    results = check("softcap", softcap.site, "--profile", "fast")
    assert results["N-01"]["status"] == "pass"
    assert results["softcap-bound"]["status"] == "pass"


def test_the_plugin_of_the_page_passes_its_own_tests(softcap):
    own_tests(softcap, "-k", "not conformance")  # which has just run, as a command


def test_what_the_page_says_of_its_plugin(softcap):
    program = """
import torch, attnreg
attn = attnreg.create("softcap", num_heads=4, head_dim=8, num_kv_heads=2)
query, key, value = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
causal = attnreg.Mask(causal=True)
assert attn.explain(query, key, value).chosen == "plain"
assert attn.explain(query, key, value, causal).chosen == "eager"
assert "causal" in attn.explain(query, key, value, causal).refused["plain"][0]
import attnreg_softcap, attnreg_softcap.panel
assert "float16" not in attnreg_softcap.narrower.dtypes
assert "| 1000 | 50.00 |" in attnreg_softcap.panel.table(50.0)
panel = attnreg.default_registry().panels["softcap"]
assert panel.title["zh"]
"""
    python("-c", program, site=softcap.site, cwd=softcap.site)


def test_a_failing_check_looks_as_the_page_shows(softcap, tmp_path):
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    broken = shutil.copytree(softcap.site, tmp_path / "site") / "attnreg_softcap" / "module.py"
    text = broken.read_text(encoding="utf-8")
    assert "math.sqrt(query.shape[-1]) * " in text
    broken.write_text(text.replace("math.sqrt(query.shape[-1]) * ", ""), encoding="utf-8")
    command = ["check", "softcap", "--only", "N-01"]
    printed = python("-m", "attnreg", *command, site=tmp_path / "site", cwd=tmp_path, expect=1)
    (shown,) = re.findall(r"^```\n\$ attnreg (.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    first, *lines = shown.splitlines()
    assert first.split() == command
    for line in lines:
        assert without_numbers(line).strip() in without_numbers(printed), line


def without_numbers(text):
    """Leave out what differs between machines, and the ellipses of the page."""
    return re.sub(r"\d[\d.]*|…", "", text)


def test_the_checks_that_the_page_names_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b[A-Z]+-\d\d\b", page))
    assert named - set(built_in()) == set()


def test_the_commands_of_the_page_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shell = "\n".join(re.findall(r"^```sh\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE))
    commands = {line.split()[1] for line in shell.splitlines() if line.startswith("attnreg ")}
    assert commands >= {"new", "list", "check"}
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert [one for one in commands if f"\n  {one} " not in shown] == []


# --- the standing example -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The standing third-party plugin, a copy of its folder, installed."""
    place = tmp_path_factory.mktemp("example")
    folder = shutil.copytree(
        EXAMPLE, place / "source", ignore=shutil.ignore_patterns("__pycache__", ".*_cache")
    )
    install(folder, place / "site")
    return Made(folder, place / "site")


def test_the_example_is_found(example):
    found = listed(example.site)["sparsemax"]
    assert (found["distribution"], found["version"]) == ("attnreg-sparsemax", "1.0.0")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_example_passes_the_suite_and_a_law_of_its_own(example):
    results = check("sparsemax", example.site, "--profile", "fast")
    assert results["sparsemax-zeros"]["status"] == "pass"


def test_the_law_of_the_example_is_about_nothing_else(example):
    if "cosine" not in default_registry():
        pytest.skip("not installed: cosine")
    results = check("cosine", example.site, "--only", "N-01", "--only", "sparsemax-zeros")
    assert results["sparsemax-zeros"]["status"] == "skip"


def test_the_example_passes_its_own_tests(example):
    own_tests(example, "-k", "not conformance")  # which has just run, as a command


def test_the_law_of_the_example_tells_a_softmax():
    laws = load(EXAMPLE / "attnreg_sparsemax" / "laws.py")
    if "scaled_dot_product" not in default_registry():
        pytest.skip("not installed: scaled_dot_product")
    with pytest.raises(AssertionError, match="more than 1 below the best weigh up to"):
        laws.exact_zeros(Case(default_registry()["scaled_dot_product"]))


def test_the_readme_of_the_example_runs(example):
    (block,) = python_blocks(EXAMPLE / "README.md")
    printed = python("-W", "error", "-c", block, site=example.site, cwd=example.site)
    assert f"# {printed.strip()}\n" in block


def test_the_panel_of_the_example_is_built(example):
    pytest.importorskip("gradio")
    program = """
import attnreg_playground, attnreg_sparsemax.panel as panel
demo = attnreg_playground.build()
config = demo.get_config_file()
tabs = [one["props"]["label"] for one in config["components"] if one["type"] == "tabitem"]
assert "Sparsemax" in tabs, tabs
shown = [c for c in config["components"] if c["props"].get("elem_id") == "sparsemax-weights"]
assert "0.750" in shown[0]["props"]["value"], shown
own = {one["api_name"] for one in config["dependencies"] if one["api_visibility"] == "public"}
assert own == {"variants", "describe", "attend", "compare", "benchmark", "conform"}, own
assert "sparsemax could not be built" not in str(config)
dense, sparse = panel.weigh((4.0, *panel.OTHERS), 0.5)
assert sparse == [1.0, 0.0, 0.0, 0.0, 0.0] and 0 < dense[0] < 1, (sparse, dense)
assert panel.draw(4.0, 0.5).count("<tr>") == 6
demo.close(verbose=False)
"""
    python("-c", program, site=example.site, cwd=example.site)


def test_the_example_imports_what_a_stranger_may():
    allowed = CONTRACT | {"torch", "numpy", "attnreg_sparsemax"} | sys.stdlib_module_names
    found = {}
    for path in (EXAMPLE / "attnreg_sparsemax").glob("*.py"):
        modules = {name for name, _ in imports(ast.parse(path.read_text(encoding="utf-8")))}
        found[path.name] = {name for name in modules if name.partition(".")[0] not in allowed}
    assert {name: extra for name, extra in found.items() if extra} == {"panel.py": {"gradio"}}


def load(path):
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
