"""A tab of the playground: softmax and sparsemax of the same five logits, side by side."""

from __future__ import annotations

import gradio as gr
import torch
from torch import Tensor

import attnreg

OTHERS = (1.5, 1.0, 0.2, -1.0)
"""The logits of all keys but the first, which a slider moves."""


def build() -> None:
    """Add the tab's components to the ``gr.Blocks`` around the call."""
    gr.Markdown(
        "The same logits, turned into weights. Sparsemax gives most keys a weight of exactly 0. "
        "同样的分数变成权重：sparsemax 让多数键的权重恰好为 0。"
    )
    with gr.Row():
        first = gr.Slider(-2.0, 4.0, 2.0, step=0.1, label="Logit of the first key 第一个键的分数")
        temperature = gr.Slider(0.1, 4.0, 1.0, step=0.1, label="Temperature 温度")
    shown = gr.HTML(draw(2.0, 1.0), elem_id="sparsemax-weights")
    for slider in (first, temperature):
        slider.change(
            draw, [first, temperature], shown, show_progress="hidden", api_visibility="private"
        )


def draw(first: float, temperature: float) -> str:
    """Return the weights of five keys as a table in HTML, of numbers alone."""
    logits = (first, *OTHERS)
    dense, sparse = weigh(logits, temperature)
    rows = "".join(
        f"<tr><td>k{index}</td><td>{logit:.1f}</td>{_bar(soft)}{_bar(hard)}</tr>"
        for index, (logit, soft, hard) in enumerate(zip(logits, dense, sparse, strict=True), 1)
    )
    head = "<tr><th>key</th><th>logit</th><th>softmax</th><th>sparsemax</th></tr>"
    return f'<table style="width:100%">{head}{rows}</table>'


def weigh(logits: tuple[float, ...], temperature: float) -> tuple[list[float], list[float]]:
    """Return softmax and sparsemax of logits, the latter by the installed variant itself."""
    attn = attnreg.create(
        "sparsemax", num_heads=1, head_dim=1, scale=1.0, temperature=float(temperature)
    )
    key = torch.tensor(logits, dtype=torch.float64)[None, None, :, None]
    sparse: Tensor = attn.weights(torch.ones_like(key[:, :, :1]), key).flatten()
    dense = (key.flatten() / temperature).softmax(dim=0)
    return dense.tolist(), sparse.tolist()


def _bar(weight: float) -> str:
    number = f"{weight:.3f}" if weight else "0"
    bar = f"width:{100 * weight:.1f}%;height:0.8em;background:var(--color-accent)"
    return f'<td style="width:40%">{number}<div style="{bar}"></div></td>'
