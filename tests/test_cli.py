"""The command line: what each command prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types

import pytest
from typer.testing import CliRunner

import attnreg
from attnreg.cli import app
from attnreg.cli.inputs import tokenize
from attnreg.cli.output import PIPE_WIDTH
from attnreg.discovery import VARIABLES

NAMES = attnreg.list_variants()


def needs(*names):
    """Skip where a variant is not installed: the core is also tested alone."""
    missing = [name for name in names if name not in NAMES]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def call(*arguments, env=None):
    # Nothing of the calling terminal: what is printed is what a pipe gets.
    quiet = dict.fromkeys(("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"))
    return CliRunner(env={**quiet, **(env or {})}).invoke(app, list(arguments))


def ran(*arguments, path=None, **env):
    """Run the command line as a process of its own, with a further folder on the path."""
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", *VARIABLES)}
    if path is not None:
        paths = [str(path), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(one for one in paths if one)
    return subprocess.run(
        [sys.executable, "-m", "attnreg", *arguments],
        env={**environment, **env},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def install(folder, distribution, source, version="1.0"):
    """Put a distribution with one plugin on a folder, as pip would leave it."""
    module = distribution.replace("-", "_")
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[attnreg]\n{module} = {module}\n", encoding="utf-8")
    (folder / f"{module}.py").write_text(source, encoding="utf-8")


@pytest.fixture(autouse=True)
def _few_repetitions(monkeypatch):
    monkeypatch.setattr("attnreg.cli.comparison.SECONDS", 0.0)


BROKEN = 'raise ValueError("the disk\\nis [bold]full")\n'
TOY = """
import attnreg

ATTNREG_CONTRACT = 1


class Toy(attnreg.DotProductAttention):
    pass


@attnreg.hookimpl
def attnreg_register_variants(register):
    register(attnreg.Variant(name={name!r}, factory=Toy, summary="a | toy"))
"""


@pytest.fixture
def broken(tmp_path):
    install(tmp_path, "broken-thing", BROKEN)
    return tmp_path


# --- help and version ---------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["list", "--help"], ["compare", "--help"]])
def test_help_imports_neither_torch_nor_rich(arguments):
    program = (
        "import sys\n"
        "from attnreg.cli import app\n"
        "try:\n"
        "    app(sys.argv[1:], prog_name='attnreg')\n"
        "except SystemExit as done:\n"
        "    assert done.code == 0, done.code\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch', 'numpy', 'rich', 'pluggy'}, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: attnreg" in done.stdout


def test_help_names_every_command():
    shown = call("--help").stdout
    for command in ("list", "info", "doctor", "compare", "playground"):
        assert f"\n  {command} " in shown


def test_version():
    result = call("--version")
    assert result.exit_code == 0
    assert result.stdout == f"attnreg {attnreg.__version__}\n"


def test_unknown_command_is_an_error_of_usage():
    result = call("lst")
    assert result.exit_code == 2
    assert "lst" in result.stderr


# --- list ---------------------------------------------------------------------------------------


def test_list_json_holds_every_variant():
    result = call("list", "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert [variant["name"] for variant in data["variants"]] == NAMES
    for variant in data["variants"]:
        described = attnreg.get_variant(variant["name"]).describe()
        assert {key: variant[key] for key in described} == described
        assert variant["distribution"]
        assert variant["version"]


def test_list_markdown_is_a_table_with_a_row_per_variant():
    lines = call("list", "--markdown").stdout.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert rows[0][:2] == ["name", "summary"]
    assert set(rows[1]) == {"---"}
    assert [row[0] for row in rows[2:]] == NAMES
    assert {len(row) for row in rows} == {10}


def test_list_in_a_pipe_has_a_line_per_variant_and_no_escapes():
    result = call("list")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    for name in NAMES:
        (line,) = [row for row in result.stdout.splitlines() if row.startswith(f"{name} ")]
        assert attnreg.get_variant(name).summary in line
        assert len(line) < PIPE_WIDTH


@pytest.mark.parametrize("columns", ["150", "80", "40"])
def test_list_in_a_narrow_terminal_loses_nothing(columns):
    text = " ".join(call("list", env={"COLUMNS": columns}).stdout.split())
    for name in NAMES:
        assert name in text
        assert all(word in text for word in attnreg.get_variant(name).summary.split())
        assert attnreg.default_registry().owner(name) in text


def test_list_refuses_two_formats():
    assert call("list", "--json", "--markdown").exit_code == 2


def test_list_goes_on_beside_a_broken_plugin(broken):
    install(broken, "toy-plugin", TOY.format(name="toy_attention"))
    result = ran("list", path=broken)
    assert result.returncode == 0, result.stderr
    assert "broken-thing 1.0" in result.stdout
    assert "ValueError: the disk is [bold]full" in result.stdout
    for name in [*NAMES, "toy_attention"]:
        assert f"{name} " in result.stdout
    data = json.loads(ran("list", "--json", path=broken).stdout)
    assert [variant["name"] for variant in data["variants"]] == sorted([*NAMES, "toy_attention"])
    assert [one["name"] for one in data["broken"]] == ["broken_thing"]
    markdown = ran("list", "--markdown", path=broken).stdout
    assert "| toy_attention | a \\| toy |" in markdown


def test_list_says_who_claims_a_name_twice(tmp_path):
    install(tmp_path, "toy-one", TOY.format(name="toy"))
    install(tmp_path, "toy-two", TOY.format(name="toy"))
    result = ran("list", path=tmp_path)
    assert result.returncode == 0
    assert "toy: claimed by toy-one and toy-two; use toy-one/toy or toy-two/toy" in result.stdout
    assert ran("doctor", path=tmp_path).returncode == 1


def test_strict_makes_list_fail_with_the_reason(broken):
    result = ran("list", path=broken, ATTNREG_STRICT="1")
    assert result.returncode == 2
    assert "the disk is [bold]full" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


# --- info ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_info_shows_everything_declared(name):
    variant = attnreg.get_variant(name)
    result = call("info", name)
    assert result.exit_code == 0
    for text in (variant.summary, variant.formula, variant.paper):
        assert text in result.stdout
    for option in variant.options:
        assert option.name in result.stdout
        assert option.allowed in result.stdout
    for implementation in variant.implementations:
        assert implementation.name in result.stdout
    assert attnreg.default_registry().owner(name) in result.stdout


@pytest.mark.parametrize("name", NAMES)
def test_info_json(name):
    data = json.loads(call("info", name, "--json").stdout)
    described = attnreg.get_variant(name).describe()
    assert {key: data[key] for key in described} == described
    assert data["distribution"] == attnreg.default_registry().owner(name)


@needs("linear")
def test_an_unknown_name_is_a_sentence_that_suggests_the_nearest():
    result = call("info", "linaer")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Did you mean 'linear'?" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_info_of_a_broken_plugin_gives_its_reason(broken):
    result = ran("info", "broken_thing", path=broken)
    assert result.returncode == 2
    assert "the disk is [bold]full" in result.stderr
    assert "Traceback" not in result.stderr


# --- doctor -------------------------------------------------------------------------------------


def test_doctor_names_versions_and_every_plugin():
    result = call("doctor", "--json")
    data = json.loads(result.stdout)
    import torch

    assert data["attnreg"] == attnreg.__version__
    assert data["torch"] == torch.__version__
    assert data["contract"] == 1
    assert data["environment"] == {name: os.environ.get(name) for name in VARIABLES}
    assert {v for one in data["plugins"] for v in one["variants"]} >= set(NAMES)
    assert result.exit_code == (0 if data["ok"] else 1)


@pytest.mark.parametrize("strict", ["", "1"])
def test_doctor_names_what_is_broken_and_where(broken, strict):
    install(broken, "old-plugin", "ATTNREG_CONTRACT = 0\n")
    result = ran("doctor", path=broken, ATTNREG_STRICT=strict)
    assert result.returncode == 1, result.stderr
    assert f"module broken_thing ({broken / 'broken_thing.py'}:1)" in result.stdout
    assert "ValueError: the disk is [bold]full" in result.stdout
    assert "module old_plugin: AttnregError: plugin 'old_plugin' was built for contract 0" in (
        result.stdout
    )
    for name in NAMES:
        assert name in result.stdout


def test_doctor_works_without_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch is missing')\n", encoding="utf-8")
    install(tmp_path, "toy-plugin", TOY.format(name="toy"))
    result = ran("doctor", "--json", path=tmp_path)
    assert result.returncode == 1, result.stderr
    data = json.loads(result.stdout)
    assert data["torch_error"] == "OSError: libtorch is missing"
    assert "toy_plugin" in [one["name"] for one in data["plugins"]]
    assert "libtorch is missing" in ran("doctor", path=tmp_path).stdout


# --- compare ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_variant_does_not_differ_from_itself(name):
    result = call("compare", name, name, "--length", "24", "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["output"]["max_abs"] == 0.0
    assert data["output"]["relative_rms"] == 0.0
    assert data["output"]["cosine"] == pytest.approx(1.0)
    assert data["weights"] == {"max_abs": 0.0, "mean_total_variation": 0.0}
    for side in ("a", "b"):
        assert data[side]["seconds"]["median"] > 0
        # The output alone is (1, 4, 24, 32) in float32, and nothing here needs a megabyte.
        assert 4 * 24 * 32 * 4 <= data[side]["peak_extra_bytes"] < 2**20


@needs("scaled_dot_product", "linear")
def test_compare_with_a_chinese_text_shows_the_weights_of_both():
    arguments = ("compare", "scaled_dot_product", "linear", "--text", "我爱你")
    result = call(*arguments)
    assert result.exit_code == 0, result.stderr
    assert "random projections, untrained" in result.stdout
    assert "the weights of linear are implied" in result.stdout
    assert result.stdout.count("weights of head 0") == 2
    assert sum(line.startswith("爱 ") for line in result.stdout.splitlines()) == 2
    data = json.loads(call(*arguments, "--json").stdout)
    assert data["settings"]["tokens"] == ["我", "爱", "你"]
    for side in ("a", "b"):
        rows = data["head_0_weights"][side]
        assert [sum(row) for row in rows] == pytest.approx([1.0] * 3, abs=1e-5)
    assert 0 < data["weights"]["mean_total_variation"] <= 1


@needs("scaled_dot_product")
def test_compare_reads_options_by_what_the_variant_declares():
    result = call(
        "compare",
        "scaled_dot_product",
        "scaled_dot_product",
        *("--option-a", "temperature=1e-4", "--option-b", "temperature=10000"),
        *("--option-b", "implementation=eager", "--text", "one two three four", "--causal"),
        "--json",
    )
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["a"]["options"] == {"temperature": 1e-4}
    assert data["b"]["implementation"] == "eager"
    hard, soft = (data["head_0_weights"][side] for side in ("a", "b"))
    assert [max(row) for row in hard] == pytest.approx([1.0] * 4)
    assert soft[3] == pytest.approx([0.25] * 4, abs=1e-2)
    assert hard[0][1:] == soft[0][1:] == [0.0] * 3


@needs("sparse_window", "linear")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--option-a", "lef=3"], "Did you mean 'left'?"),
        (["--option-a", "left=soon"], "sparse_window: left must be"),
        (["--option-a", "left"], "is not key=value"),
        (["--option-b", "scale=2"], "linear has no scale"),
        (["--option-a", "scale=big"], "scale must be a number or None"),
        (["--device", "nowhere"], "nowhere"),
        (["--device", "meta"], "meta holds no values"),
        (["--text", " "], "no tokens"),
        (["--text", "a", "--length", "3"], "not both"),
        (["--length", "0"], "--length"),
    ],
)
def test_compare_refuses_in_a_sentence(arguments, said):
    result = call("compare", "sparse_window", "linear", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@needs("linformer")
def test_compare_refuses_what_a_variant_cannot_do():
    result = call("compare", "linformer", "linformer", "--causal")
    assert result.exit_code == 2
    assert "linformer cannot honour mask field 'causal'" in result.stderr
    assert result.stdout == ""


def test_differences_that_are_not_numbers_are_null_in_json():
    import torch

    from attnreg.cli.comparison import output_difference, weights_difference

    good, bad = torch.ones(2, 2), torch.tensor([[1.0, float("nan")], [float("inf"), 1.0]])
    assert set(output_difference(good, bad).values()) == {None}
    assert set(weights_difference(good, bad).values()) == {None}
    zero = torch.zeros(2)  # relative to nothing, and without a direction
    assert output_difference(zero, zero) == {"max_abs": 0, "relative_rms": None, "cosine": None}


@needs("scaled_dot_product")
def test_compare_leaves_out_weights_that_are_too_many(monkeypatch):
    monkeypatch.setattr("attnreg.cli.comparison.MOST_WEIGHTS", 4 * 10 * 10)
    result = call("compare", "scaled_dot_product", "scaled_dot_product", "--length", "11", "--json")
    data = json.loads(result.stdout)
    assert data["weights"] is None
    assert any("up to --length 10" in note for note in data["notes"])


@needs("scaled_dot_product")
def test_weights_that_do_not_fit_a_narrow_terminal_follow_below():
    text = "a sentence of twelve words that is wider than a narrow terminal allows"
    arguments = ("compare", "scaled_dot_product", "scaled_dot_product", "--text", text)
    shown = call(*arguments, env={"COLUMNS": "50"}).stdout
    assert max(map(len, shown.splitlines())) <= 50
    for word in text.split():
        assert any(word in line.split() for line in shown.splitlines())


def test_peak_memory_counts_what_is_released_again():
    import torch

    from attnreg.cli.comparison import peak_memory

    def call():
        scratch = torch.ones(1000, 1000)
        return scratch[:1, :1] + 1

    peak, how = peak_memory(call, torch.device("cpu"))
    assert 4_000_000 <= peak < 4_100_000
    assert "torch.profiler" in how
    peak, how = peak_memory(call, torch.device("meta"))
    assert peak is None
    assert how.startswith("not measured")


def test_verdict_is_inconclusive_within_the_spread():
    from attnreg.cli.comparison import Timing, verdict

    names = ("A", "B")
    assert verdict(names, (Timing(1.0, 0.6, 9), Timing(1.5, 0.1, 9))).startswith("inconclusive")
    faster = verdict(names, (Timing(1.0, 0.1, 9), Timing(3.0, 0.2, 9)))
    assert faster == "B takes 3 times as long as A"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("我爱你", ["我", "爱", "你"]),
        ("我爱 attention，你呢？", ["我", "爱", "attention", "，", "你", "呢", "？"]),
        ("It's a well-known law.", ["It's", "a", "well-known", "law", "."]),
        ("naïve हिन्दी", ["naïve", "हिन्दी"]),
        (" \n", []),
    ],
)
def test_tokens(text, tokens):
    assert tokenize(text) == tokens


# --- playground ---------------------------------------------------------------------------------


def test_playground_that_is_not_installed_says_how(monkeypatch):
    monkeypatch.setitem(sys.modules, "attnreg_playground", None)
    result = call("playground")
    assert result.exit_code == 2
    assert "pip install 'attnreg[playground]'" in result.stderr


def test_playground_passes_its_options_on(monkeypatch):
    asked = {}
    module = types.ModuleType("attnreg_playground")
    module.launch = lambda **options: asked.update(options)
    monkeypatch.setitem(sys.modules, "attnreg_playground", module)
    assert call("playground").exit_code == 0
    plain = {"host": "127.0.0.1", "port": None, "open_browser": True, "expose": False}
    assert asked == {**plain, "auth": None, "heavy": None, "allow_hosts": ()}
    call("playground", "--host", "::1", "--port", "80", "--no-browser", "--expose")
    assert asked == {
        **{"host": "::1", "port": 80, "open_browser": False, "expose": True},
        **{"auth": None, "heavy": None, "allow_hosts": ()},
    }
    call("playground", "--auth", "people", "--light", "--allow-host", "a.org", "--allow-host", "b")
    assert asked == {
        **plain, "auth": "people", "heavy": False, "allow_hosts": ["a.org", "b"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (ValueError("others reach it"), "others reach it"),
        (OSError("port 80 is in use"), "port 80 is in use"),
    ],
)
def test_playground_that_cannot_start_says_why(monkeypatch, fault, message):
    def launch(**options):
        raise fault

    module = types.ModuleType("attnreg_playground")
    module.launch = launch
    monkeypatch.setitem(sys.modules, "attnreg_playground", module)
    result = call("playground", "--host", "0.0.0.0", "--port", "80")
    assert result.exit_code == 2
    assert result.stderr == f"Error: {message}\n"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("max_length=9", "is set by the input"),
        ("num_heads=2", "is set by --heads"),
        ("dropout=0.1", "linformer has no dropout"),
    ],
)
def test_compare_refuses_what_both_share(option, message):
    result = call("compare", "linformer", "linear", "--length", "8", "--option-a", option)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
