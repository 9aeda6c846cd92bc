"""The figures: what a heatmap says, what it is made of, and what live checks found."""

from __future__ import annotations

TEXTS = {
    "note.random": (
        "Random projections, untrained: seeded random vectors per token, sinusoidal positions, "
        "{heads} heads of {width}.",
        "随机投影，未经训练：每个词元一个固定种子的随机向量，正弦位置编码，"
        "{heads} 个头，每头 {width} 维。",
    ),
    "note.chance": (
        "Random numbers, untrained: normal embeddings of a seed, random projections, {heads} heads "
        "of {width}.",
        "随机数，未经训练：由种子决定的正态嵌入与随机投影，{heads} 个头，每头 {width} 维。",
    ),
    "note.patches": (
        "Random projections, untrained: 16 patches of a real image, mapped by a random matrix, "
        "sinusoidal positions, {heads} heads of {width}.",
        "随机投影，未经训练：真实图像的 16 块，经随机矩阵映射，正弦位置编码，"
        "{heads} 个头，每头 {width} 维。",
    ),
    "note.untrained_text": (
        "Random projections, untrained: the picture shows the mechanism, not what a model learned.",
        "随机投影，未经训练：图中是机制，不是模型学到的东西。",
    ),
    "note.numbers": ("Random numbers of a seed.", "由种子决定的随机数。"),
    "note.timed": (
        "Timed on this machine just now, median of a few calls, {threads} thread(s).",
        "刚刚在本机测得，若干次调用的中位数，{threads} 个线程。",
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
    "note.implied": (
        "{variant} never forms weights: shown is the linear map from values to output, recomputed; "
        "it may be signed.",
        "{variant} 从不形成权重：图中是重算得到的、从值到输出的线性映射，可带符号。",
    ),
    "note.recomputed": (
        "The fused kernel that gives the output keeps no weights: these are recomputed by the "
        "plugin, and checked against the output.",
        "给出输出的融合核不保留权重：图中的权重由插件重算，并与输出核对。",
    ),
    "note.trained_with": (
        "The model was trained with scaled dot-product attention; any other variant meets queries "
        "and keys that were not trained for it.",
        "该模型是用缩放点积注意力训练的；其他变体遇到的查询和键并不是为它训练的。",
    ),
    "note.trained_with_softmax": (
        "The model was trained with softmax attention; any other variant meets queries and keys "
        "that were not trained for it.",
        "该模型是用 softmax 注意力训练的；其他变体遇到的查询和键并不是为它训练的。",
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
    "explore.exact": (
        "Each row is one query: the brighter a cell, the more of that key's value it takes.",
        "每一行是一个查询：格子越亮，它取走那个键的值就越多。",
    ),
    "explore.implied": (
        "Each row says how much of every value ends up in one output, though no such matrix was "
        "ever formed.",
        "每一行说明一个输出里有多少来自每个值，尽管计算中从未形成这样的矩阵。",
    ),
    "compare.verdict": ("Verdict", "结论"),
    "compare.weights": ("largest difference of weights", "权重最大差异"),
    "compare.output": ("largest difference of outputs", "输出最大差异"),
    "compare.cosine": ("cosine of the outputs", "输出的余弦"),
    "compare.time": ("time A : B", "时间 A : B"),
    "compare.memory": ("memory A : B", "内存 A : B"),
    "compare.difference": ("A − B, signed", "A − B，带符号"),
    "compare.of": ("{name}: {text}", "{name}：{text}"),
    "compare.same": (
        "{a} and {b} compute the same on this input.",
        "在这个输入上，{a} 与 {b} 的结果相同。",
    ),
    "compare.differs": (
        "Orange: {a} looks there more; blue: {b} does.",
        "橙色处 {a} 看得更多；蓝色处 {b} 看得更多。",
    ),
    "compare.measured": (
        "Time and memory are of one call on this machine, one thread, median of a few.",
        "时间与内存是本机单线程一次调用的值，取若干次的中位数。",
    ),
    "map.title": ("{variant}", "{variant}"),
    "map.label": (
        "Weights {title}: queries in rows, keys in columns. Arrow keys move the cell, Enter "
        "marks the row.",
        "权重 {title}：行是查询，列是键。用方向键移动格子，回车标记该行。",
    ),
    "map.role": ("heatmap", "热图"),
    "map.head": ("Head", "头"),
    "map.heads": ("All heads", "所有头"),
    "map.mean": ("Mean", "平均"),
    "map.largest": ("Largest", "最大值"),
    "map.query": ("query", "查询"),
    "map.key": ("key", "键"),
    "map.weight": ("weight", "权重"),
    "map.rank_of": ("number {place} of {count} in its row", "在该行排第 {place}（共 {count}）"),
    "map.masked": ("masked", "已遮住"),
    "map.padding": ("padding", "填充"),
    "map.missing": ("missing", "缺失"),
    "map.entropy": ("entropy", "熵"),
    "map.distance": ("distance", "距离"),
    "map.rank": ("eff. rank", "有效秩"),
    "map.max": ("max", "最大"),
    "map.range": ("Colours", "颜色范围"),
    "map.range_own": ("this map", "本图"),
    "map.view": ("View", "视图"),
    "map.view_map": ("map", "热图"),
    "map.view_lines": ("lines", "连线"),
    "map.view_text": ("text", "文字"),
    "map.view_bars": ("bars", "条形"),
    "map.view_table": ("table", "表格"),
    "map.too_long": ("The table is for at most 64 tokens.", "表格最多 64 个词元。"),
    "map.hint": (
        "Point at a cell, or focus the map and use the arrow keys, to read its weight.",
        "指向一个格子，或聚焦热图后按方向键，读出权重。",
    ),
    "map.exact": ("exact weights", "精确权重"),
    "map.implied": ("implied weights", "等效权重"),
    "map.image": ("The image, with the weights of the marked row", "图像，叠加所标行的权重"),
    "plot.table": ("Table", "表格"),
    "plot.plot": ("Picture", "图形"),
    "plot.slope": ("slope {slope}", "斜率 {slope}"),
    "plot.nothing": ("Nothing measured yet.", "还没有测量结果。"),
    "plot.label": ("Chart: {title}", "图表：{title}"),
    "axis.size": ("L or d", "L 或 d"),
    "axis.flops": ("floating point operations", "浮点运算次数"),
    "axis.length": ("length L", "长度 L"),
    "axis.milliseconds": ("milliseconds", "毫秒"),
    "axis.mebibytes": ("MiB", "MiB"),
    "axis.entropy": ("entropy, nats", "熵（奈特）"),
    "axis.gradient": ("size of the gradient", "梯度大小"),
    "axis.weight": ("largest weight", "最大权重"),
    "axis.index": ("number", "序号"),
    "axis.singular": ("singular value", "奇异值"),
    "axis.images": ("images to train on", "训练图像数"),
    "axis.right": ("share right", "正确率"),
    "axis.round": ("round", "轮"),
    "table.symbol": ("Symbol", "符号"),
    "table.shape": ("Shape", "形状"),
    "table.meaning": ("Meaning", "含义"),
    "table.step": ("Step", "步骤"),
    "table.numbers": ("Numbers", "数值"),
    "about.paper": ("Paper", "论文"),
    "about.complexity": ("Cost", "代价"),
    "about.cost": ("time {time}, memory {memory}", "时间 {time}，内存 {memory}"),
    "about.capabilities": ("Can", "能做"),
    "about.cannot": ("Cannot", "不能做"),
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
    "can.weights": ("weights", "权重"),
    "can.normalized": ("rows sum to 1", "行和为 1"),
    "can.differentiable": ("gradients", "梯度"),
}
