"""``TEXTS``: every sentence of the playground, in English and Chinese. Plugins keep their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

LANGUAGES: Mapping[str, str] = {"en": "English", "zh": "中文"}
"""The languages, by the code of ``?lang=``, each under its own name."""

TEXTS: Mapping[str, tuple[str, str]] = {
    # The page.
    "page.title": ("attnreg playground", "attnreg 注意力游乐场"),
    "page.tagline": (
        "Every installed attention variant, on your own sentence.",
        "用你自己的句子，看每一种已安装的注意力。",
    ),
    "page.language": ("Language", "语言"),
    "tab.explore": ("Explore", "探索"),
    "panel.broken": (
        "The panel {panel} could not be built: {reason}",
        "面板 {panel} 无法建立：{reason}",
    ),
    # The controls.
    "control.variant": ("Attention variant", "注意力变体"),
    "control.options": ("Options of {variant}", "{variant} 的选项"),
    "control.no_options": ("{variant} has no options.", "{variant} 没有选项。"),
    "control.defaults": ("Back to defaults", "恢复默认值"),
    "control.scale": (
        "multiplies the scores; empty: the variant's own",
        "乘在分数上；留空则用变体自己的值",
    ),
    "control.input": ("Input", "输入"),
    "control.sentence": ("A sentence", "一个句子"),
    "control.real": ("Real model: MiniLM", "真实模型：MiniLM"),
    "control.text": ("Sentence", "句子"),
    "control.text_info": (
        "Chinese by character, English by word; at most {limit} tokens.",
        "中文按字、英文按词切分；最多 {limit} 个词元。",
    ),
    "control.passage": ("English sentence", "英文句子"),
    "control.passage_info": (
        "MiniLM reads English; at most {limit} tokens.",
        "MiniLM 只懂英文；最多 {limit} 个词元。",
    ),
    "control.layer": ("Layer (0 is the first)", "层（0 为第一层）"),
    "control.heads": ("Heads", "头数"),
    "control.causal": ("Causal: no looking ahead", "因果：不看后面"),
    "control.padding": ("Padding: the last keys", "填充：末尾的键"),
    "control.padding_info": ("How many of the last keys are padding.", "末尾有多少个键是填充。"),
    "control.seed": ("Seed", "随机种子"),
    "control.seed_info": (
        "Of the random vectors, the projections and the variant's own parameters.",
        "决定随机向量、投影与变体自身的参数。",
    ),
    # What an option takes.
    "allowed.choices": ("one of {choices}", "可选 {choices}"),
    "allowed.bool": ("True or False", "True 或 False"),
    "allowed.int": ("an integer", "整数"),
    "allowed.float": ("a number", "数"),
    "allowed.str": ("a text", "文字"),
    "allowed.tuple": ("integers with commas", "用逗号隔开的整数"),
    "allowed.none": ("None", "None"),
    "allowed.or": (" or ", " 或 "),
    "allowed.above": (", above {bound}", "，大于 {bound}"),
    "allowed.at_least": (", at least {bound}", "，不小于 {bound}"),
    "allowed.below": (", below {bound}", "，小于 {bound}"),
    "allowed.at_most": (", at most {bound}", "，不大于 {bound}"),
    "option.wrong": ("{name} must be {allowed}; got {value}", "{name} 应为{allowed}；得到 {value}"),
    # Problems: nothing is drawn, and a sentence says why.
    "problem.option": ("An option does not fit", "有一个选项不合适"),
    "problem.refused": ("{variant} refuses this call", "{variant} 拒绝了这次调用"),
    "problem.plugin": ("The plugin {plugin} failed", "插件 {plugin} 出错了"),
    "problem.plugin_detail": (
        "{variant} raised {error}. The other variants keep working.",
        "{variant} 抛出了 {error}。其他变体不受影响。",
    ),
    "problem.shape_detail": (
        "{variant} returned {what} of shape {got}, where {expected} belongs.",
        "{variant} 返回的 {what} 形状为 {got}，应为 {expected}。",
    ),
    "problem.no_weights": ("No weights to show", "没有可看的权重"),
    "problem.no_weights_detail": (
        "{variant} declares that it has no weights; it was run, and its output has shape {shape}.",
        "{variant} 声明自己没有权重；它已运行，输出形状为 {shape}。",
    ),
    "problem.input": ("There is nothing to attend to", "没有可以注意的内容"),
    "problem.empty": ("Type at least one word or character.", "请至少输入一个词或一个字。"),
    "problem.model": ("The real model is not at hand", "没有可用的真实模型"),
    "problem.model_missing": (
        "{what} is not installed. To add it: {command}",
        "未安装 {what}。安装方法：{command}",
    ),
    "problem.model_failed": ("MiniLM could not be loaded: {error}", "无法载入 MiniLM：{error}"),
    "problem.budget": ("Too large to draw", "太大，画不了"),
    "problem.budget_detail": (
        "{heads} heads of {length} x {length} weights are over the limit of {limit} cells.",
        "{heads} 个头，每头 {length} x {length} 个权重，超过了 {limit} 个格子的上限。",
    ),
    "problem.control": ("A control is out of range", "有一个控件超出范围"),
    "problem.control_detail": (
        "{name} must be a whole number from {low} to {high}; got {value}",
        "{name} 应为 {low} 到 {high} 的整数；得到 {value}",
    ),
    "problem.variant": ("This variant cannot be used", "无法使用这个变体"),
    "problem.none": ("No variant is installed", "没有安装任何变体"),
    "problem.none_detail": (
        "Install a plugin, for instance attnreg-scaled-dot-product, and start again.",
        "请安装一个插件（例如 attnreg-scaled-dot-product）后重新启动。",
    ),
    # What the picture is made of.
    "note.random": (
        "Random projections, untrained: seeded random vectors per token, sinusoidal positions, "
        "{heads} heads of {width}.",
        "随机投影，未经训练：每个词元一个固定种子的随机向量，正弦位置编码，"
        "{heads} 个头，每头 {width} 维。",
    ),
    "note.own_projection": (
        "{variant} brings its own projection, which is used here.",
        "{variant} 自带投影，这里用的就是它。",
    ),
    "note.real": (
        "Real model: queries, keys and values of layer {layer} of MiniLM (all-MiniLM-L6-v2), "
        "12 heads of 32.",
        "真实模型：取自 MiniLM（all-MiniLM-L6-v2）第 {layer} 层的查询、键和值，"
        "12 个头，每头 32 维。",
    ),
    "note.bypassed": (
        "{variant} would bring its own projection; the model's is used instead.",
        "{variant} 本会自带投影；这里改用模型的投影。",
    ),
    "note.untrained": (
        "The {count} parameters of {variant} itself are untrained.",
        "{variant} 自身的 {count} 个参数未经训练。",
    ),
    "note.trained_with": (
        "The model was trained with scaled dot-product attention; any other variant meets queries "
        "and keys that were not trained for it.",
        "该模型是用缩放点积注意力训练的；其他变体遇到的查询和键并不是为它训练的。",
    ),
    "note.cut": (
        "{count} more tokens were left out: {limit} is the limit.",
        "还有 {count} 个词元被省略：上限是 {limit} 个。",
    ),
    "note.unknown": (
        "{count} tokens are unknown to MiniLM, which reads English.",
        "有 {count} 个词元 MiniLM 不认识：它只懂英文。",
    ),
    "note.missing": (
        "{count} weights are not finite (NaN or infinite): drawn as crossed cells.",
        "有 {count} 个权重不是有限数（NaN 或无穷）：画成带叉的格子。",
    ),
    "note.hidden": (
        "{count} queries may not attend to any key: their rows are 0.",
        "有 {count} 个查询看不到任何键：它们的行全为 0。",
    ),
    # Live checks of what is drawn.
    "check.sums": (
        "Every row sums to 1 (largest deviation {deviation}).",
        "每行之和为 1（最大偏差 {deviation}）。",
    ),
    "check.sums_wrong": (
        "Rows do not sum to 1, though {variant} declares it (deviation {deviation}).",
        "各行之和不为 1，而 {variant} 声明应为 1（偏差 {deviation}）。",
    ),
    "check.signed": (
        "Signed: weights from {low} to {high}; rows sum to {least} … {most} and need not sum to 1.",
        "带符号：权重从 {low} 到 {high}；各行之和为 {least} … {most}，不必为 1。",
    ),
    "check.unnormalized": (
        "Not normalised: rows sum to {least} … {most} and need not sum to 1.",
        "未归一化：各行之和为 {least} … {most}，不必为 1。",
    ),
    "check.negative": (
        "{variant} declares weights that are not negative, but one is {low}.",
        "{variant} 声明权重非负，但有一个是 {low}。",
    ),
    "check.masked": ("Every masked cell is 0.", "被遮住的格子全为 0。"),
    "check.leak": (
        "{count} masked cells are not 0: attention leaks through the mask.",
        "有 {count} 个被遮住的格子不为 0：注意力漏过了掩码。",
    ),
    "check.output": (
        "Weights times values give the output (largest difference {deviation}).",
        "权重乘以值等于输出（最大差异 {deviation}）。",
    ),
    "check.output_wrong": (
        "Weights times values differ from the output by {deviation}.",
        "权重乘以值与输出相差 {deviation}。",
    ),
    # The heatmap.
    "map.label": (
        "Weights of head {head}: queries in rows, keys in columns. Arrow keys move the cell.",
        "第 {head} 头的权重：行是查询，列是键。用方向键移动格子。",
    ),
    "map.role": ("heatmap", "热图"),
    "map.head": ("Head", "头"),
    "map.heads": ("All heads", "所有头"),
    "map.query": ("query", "查询"),
    "map.key": ("key", "键"),
    "map.weight": ("weight", "权重"),
    "map.masked": ("masked", "已遮住"),
    "map.padding": ("padding", "填充"),
    "map.missing": ("missing", "缺失"),
    "map.entropy": ("entropy", "熵"),
    "map.max": ("max", "最大"),
    "map.range": ("Colours", "颜色范围"),
    "map.range_own": ("this head", "本头"),
    "map.hint": (
        "Point at a cell, or focus the map and use the arrow keys, to read its weight.",
        "指向一个格子，或聚焦热图后按方向键，读出权重。",
    ),
    "map.exact": ("exact weights", "精确权重"),
    "map.implied": ("implied weights", "等效权重"),
    "map.implied_info": (
        "the linear map from values to output; may be signed, rows need not sum to 1",
        "从值到输出的线性映射；可带符号，各行之和不必为 1",
    ),
    "map.exact_info": (
        "the weights that multiply the values",
        "乘在值上的权重",
    ),
    # Beside the picture.
    "about.no_formula": ("No formula is given.", "没有给出公式。"),
    "about.paper": ("Paper", "论文"),
    "about.complexity": ("Cost", "代价"),
    "about.cost": ("time {time}, memory {memory}", "时间 {time}，内存 {memory}"),
    "about.capabilities": ("Can", "能做"),
    "about.cannot": ("Cannot", "不能做"),
    "about.from": ("From {plugin}", "来自 {plugin}"),
    "about.approximates": ("Approximates", "近似于"),
    "about.caution": (
        "Attention weights are not an explanation: they show where a layer looks, not why a model "
        "decides.",
        "注意力权重不是解释：它只显示一层看向哪里，而不是模型为何这样决定。",
    ),
    "can.causal": ("causal", "因果"),
    "can.key_valid": ("padding", "填充"),
    "can.allowed": ("any mask", "任意掩码"),
    "can.bias": ("bias", "偏置"),
    "can.window": ("window mask", "窗口掩码"),
    "can.packed": ("packed", "拼接序列"),
    "can.cross": ("cross-attention", "交叉注意力"),
    "can.grouped": ("grouped heads", "分组头"),
    "can.value_dim": ("own value width", "独立的值宽度"),
    "can.dropout": ("dropout", "dropout"),
    "can.decode": ("decoding", "逐步解码"),
    "can.compile": ("compile", "编译"),
    "can.fixed_length": ("fixed length", "固定长度"),
    # The notice at the foot.
    "notice.broken": (
        "The plugin {plugin} could not be loaded: {reason}",
        "插件 {plugin} 无法载入：{reason}",
    ),
    "notice.duplicate": (
        "{name} is claimed by {owners}; none of them is listed.",
        "{owners} 都注册了 {name}；因此都没有列出。",
    ),
    "notice.title": ("Plugins that are not listed", "没有列出的插件"),
}
"""Key -> (English, Chinese)."""


def say(key: str, language: str, **fields: Any) -> str:
    """Return the sentence of a key in a language, its fields filled in; English by default."""
    english, chinese = TEXTS[key]
    return (chinese if language == "zh" else english).format(**fields)


def several(prefix: str, language: str) -> dict[str, str]:
    """Return every sentence under a prefix, by the rest of its key, fields left open."""
    start = prefix + "."
    index = 1 if language == "zh" else 0
    return {k.removeprefix(start): v[index] for k, v in TEXTS.items() if k.startswith(start)}


def choose_language(asked: str | None, accepted: str | None) -> str:
    """Return a language code from ``?lang=`` and the browser's Accept-Language; else "en"."""
    wanted = [asked or "", *_preferences(accepted or "")]
    for one in wanted:
        code = one.strip().lower().replace("_", "-").partition("-")[0]
        if code in LANGUAGES:
            return code
    return "en"


def _preferences(accepted: str) -> Iterable[str]:
    weighted: list[tuple[float, str]] = []
    for part in accepted.split(","):
        name, _, quality = part.partition(";q=")
        try:
            weighted.append((-float(quality or 1.0), name))
        except ValueError:
            continue
    return [name for _, name in sorted(weighted, key=lambda one: one[0])]
