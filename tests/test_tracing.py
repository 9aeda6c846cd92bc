"""torch.compile, torch.export, function transforms, autocast: the same numbers everywhere."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual

import attnreg
from attnreg import Mask
from tests.configs import CASES, CONFIGS, IDS, SIZES, make_inputs

NAMES = attnreg.list_variants()


def build(name, index=0, **changes):
    torch.manual_seed(11)
    return attnreg.create(name, **{**SIZES, **CONFIGS[name][index], **changes})


def masks_for(variant, length):
    generator = torch.Generator().manual_seed(1)
    known = {
        "none": Mask(),
        "causal": Mask(causal=True),
        "padding": Mask.from_lengths([length, max(1, length // 2)], length),
        "window": Mask(window=(3, 1)),
        "bias": Mask(bias=torch.randn(6, length, length, generator=generator)),
        "allowed": Mask(allowed=torch.rand(length, length, generator=generator) > 0.4),
    }
    return {
        n: m
        for n, m in known.items()
        if all(getattr(variant.capabilities, field) for field in m.used())
    }


@pytest.mark.parametrize(("name", "index"), CASES, ids=IDS)
def test_compiles_whole_with_every_mask(name, index):
    attn = build(name, index)
    for mask_name, mask in masks_for(attn.variant, 9).items():
        torch._dynamo.reset()
        compiled = torch.compile(attn, fullgraph=True, backend="aot_eager")
        call, same = (make_inputs(queries=9, keys=9, dtype=torch.float32) for _ in range(2))
        output, expected = compiled(*call, mask), attn(*same, mask)
        torch.testing.assert_close(output, expected, msg=mask_name)
        arriving = torch.randn_like(output)
        for mine, theirs in zip(
            torch.autograd.grad(output, call, arriving),
            torch.autograd.grad(expected, same, arriving),
            strict=True,
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=mask_name)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "linformer"])
def test_compiles_packed_sequences(name):
    attn = build(name)
    torch._dynamo.reset()
    compiled = torch.compile(attn, fullgraph=True, backend="aot_eager")
    causal = Mask(causal=True)
    for mask in (Mask.packed([2, 0, 4]), Mask.packed([2, 0, 4], [3, 1, 2]) & causal):
        call = make_inputs(1, queries=7, keys=7, dtype=torch.float32)
        with torch.no_grad():
            call[0][:, :, 6], call[1][:, :, 6], call[2][:, :, 6] = (torch.nan,) * 3
        same = [t.detach().clone().requires_grad_() for t in call]
        output, expected = compiled(*call, mask), attn(*same, mask)
        torch.testing.assert_close(output, expected)
        for mine, theirs in zip(
            torch.autograd.grad(output.sum(), call),
            torch.autograd.grad(expected.sum(), same),
            strict=True,
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["linear", "sparse_window"])
def test_inductor_agrees(name):
    torch._dynamo.reset()
    attn = build(name)
    compiled = torch.compile(attn, fullgraph=True)
    call = make_inputs(queries=9, keys=9, dtype=torch.float32)
    torch.testing.assert_close(compiled(*call, Mask(causal=True)), attn(*call, Mask(causal=True)))


class Calling(torch.nn.Module):
    """A model that makes its mask inside, as models do."""

    def __init__(self, attn, causal):
        super().__init__()
        self.attn, self.causal = attn, causal

    def forward(self, query, key, value, keep):
        return self.attn(query, key, value, Mask(causal=self.causal, key_valid=keep))


@pytest.mark.parametrize(("name", "index"), CASES, ids=IDS)
def test_exports_with_a_free_length(name, index):
    attn = build(name, index)
    for causal in (False, True)[: 1 + attn.variant.capabilities.causal]:
        model = Calling(attn, causal)
        length = torch.export.Dim("length", min=2, max=80)
        call = [t.detach() for t in make_inputs(queries=9, keys=9, dtype=torch.float32)]
        keep = torch.arange(9) < torch.tensor([[9], [4]])
        shapes = ({2: length}, {2: length}, {2: length}, {1: length})
        exported = torch.export.export(model, (*call, keep), dynamic_shapes=shapes).module()
        for other in (5, 64, 79):
            again = [
                t.detach() for t in make_inputs(queries=other, keys=other, dtype=torch.float32)
            ]
            keep = torch.arange(other) < torch.tensor([[other], [2]])
            torch.testing.assert_close(exported(*again, keep), model(*again, keep))


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_is_an_input_of_an_exported_program(name):
    attn = build(name)
    call = [t.detach() for t in make_inputs(queries=9, keys=9, dtype=torch.float32)]
    mask = Mask.from_lengths([9, 4], 9)
    exported = torch.export.export(attn, (*call, mask)).module()
    torch.testing.assert_close(exported(*call, mask), attn(*call, mask))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in jvp
@pytest.mark.parametrize(("name", "index"), CASES, ids=IDS)
def test_function_transforms(name, index):
    attn = build(name, index).double()
    mask = Mask(causal=attn.variant.capabilities.causal)
    call = [t.detach() for t in make_inputs()]
    many = [torch.stack([t, t.flip(2), 2 * t]) for t in call]
    found = torch.func.vmap(lambda *inputs: attn(*inputs, mask))(*many)
    for i in range(3):
        torch.testing.assert_close(found[i], attn(*(t[i] for t in many), mask))

    def total(*inputs):
        return attn(*inputs, mask).sin().sum()

    grads = torch.func.grad(total, (0, 1, 2))(*call)
    tracked = [t.clone().requires_grad_() for t in call]
    for mine, theirs in zip(grads, torch.autograd.grad(total(*tracked), tracked), strict=True):
        torch.testing.assert_close(mine, theirs)
    per_sample = torch.func.vmap(torch.func.grad(total, (0, 1, 2)))(*many)
    torch.testing.assert_close(per_sample[0][0], grads[0])
    if CONFIGS[name][index].get("squared", True):  # torch.cdist has no forward derivative
        tangents = tuple(torch.randn_like(t) for t in call)
        _, forward = torch.func.jvp(total, tuple(call), tangents)
        backward = sum((g * t).sum() for g, t in zip(grads, tangents, strict=True))
        torch.testing.assert_close(forward, backward)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in jvp
@pytest.mark.parametrize(
    ("name", "index"),  # torch.cdist has no forward derivative
    [(name, index) for name, index in CASES if CONFIGS[name][index].get("squared", True)],
)
def test_forward_mode_derivatives(name, index):
    attn = build(name, index).double().eval()
    mask = Mask(causal=attn.variant.capabilities.causal)
    call = [t.detach() for t in make_inputs()]
    tangents = [torch.randn_like(t) for t in call]
    _, expected = torch.func.jvp(lambda *inputs: attn(*inputs, mask), tuple(call), tuple(tangents))
    with dual_level():
        for place in range(3):  # one tangent is enough to need a rule
            tracked = list(call)
            tracked[place] = make_dual(call[place], tangents[place])
            expected = expected - unpack_dual(attn(*tracked, mask)).tangent
    torch.testing.assert_close(expected, torch.zeros_like(expected))


@pytest.mark.parametrize(("name", "index"), CASES, ids=IDS)
def test_autocast(name, index):
    attn = build(name, index)
    call = make_inputs(queries=9, keys=9, dtype=torch.float32)
    mixed = [call[0], call[1].bfloat16(), call[2]]
    lowered = [t.detach().bfloat16() for t in call]
    for tile in (2**20, 64):
        if hasattr(attn.module, "tile_elements"):
            attn.module.tile_elements = tile
        with torch.autocast("cpu", torch.bfloat16):
            output = attn(*mixed)
        assert output.dtype == torch.bfloat16
        output.float().sum().backward()  # outside the context, as training loops do
        assert all(torch.isfinite(t.grad).all() for t in call)
        torch.testing.assert_close(output, attn(*lowered), rtol=2e-2, atol=2e-2)


def test_autocast_reaches_an_authors_plain_code():
    """A score with a plain parameter works under autocast, forward and backward."""

    class Bilinear(attnreg.ScoreAttention):
        tile_elements = 64

        def __init__(self, dims, **common):
            super().__init__(dims, **common)
            self.middle = torch.nn.Parameter(torch.randn(dims.head_dim, dims.head_dim))

        def score(self, query, key):
            return query @ self.middle @ key.transpose(-1, -2)

    torch.manual_seed(0)
    variant = attnreg.Variant("bilinear", Bilinear, summary="q^T W k")
    attn = attnreg.create(variant, num_heads=2, head_dim=4)
    call = [torch.randn(1, 2, 33, 4).requires_grad_() for _ in range(3)]
    with torch.autocast("cpu", torch.bfloat16):
        output = attn(*call)
    output.float().square().sum().backward()
    assert torch.isfinite(attn.module.middle.grad).all()
    torch.testing.assert_close(output.float(), attn(*call), rtol=5e-2, atol=5e-2)


DROPPING = [n for n in NAMES if attnreg.get_variant(n).capabilities.dropout]


@pytest.mark.parametrize(
    ("name", "dropout"), [*((n, 0.0) for n in NAMES), *((n, 0.5) for n in DROPPING)]
)
def test_checkpointing_gives_the_same_gradients(name, dropout):
    torch.manual_seed(1)
    attn = attnreg.create(name, num_heads=2, head_dim=4, dropout=dropout, max_length=33)
    attn.module.tile_elements = 64
    call = [torch.randn(1, 2, 33, 4).requires_grad_() for _ in range(3)]
    expected = None
    for reentrant in (None, False, True):
        torch.manual_seed(2)
        if reentrant is None:
            output = attn(*call)
        else:
            output = torch.utils.checkpoint.checkpoint(attn, *call, use_reentrant=reentrant)
        grads = torch.autograd.grad(output.sum(), call) if not reentrant else None
        if reentrant:
            output.sum().backward()
            grads = [t.grad for t in call]
        expected = expected or grads
        assert all(torch.equal(a, b) for a, b in zip(grads, expected, strict=True))
