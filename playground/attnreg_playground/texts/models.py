"""Real models, and what changes when their attention does."""

from __future__ import annotations

TEXTS = {
    "swap.own": ("the model's own attention", "模型自己的注意力"),
    "swap.other": ("{variant} in its place", "换成 {variant}"),
    "swap.facts": ("With {variant} instead", "换成 {variant} 之后"),
    "minilm.similar": ("similarity of the two sentences", "两句的相似度"),
    "minilm.kept": ("cosine of the embedding with its own", "与原句向量的余弦"),
    "minilm.said": (
        "With {variant} the embedding of the sentence keeps a cosine of {kept} with the "
        "model's own.",
        "换成 {variant} 后，句向量与原来的余弦为 {kept}。",
    ),
    "text_line.read": ("read by the model", "模型读到"),
    "text_line.swapped": ("read with {variant}", "换成 {variant} 读到"),
    "text_line.sure": ("mean certainty", "平均把握"),
    "text_line.said_same": (
        "{variant} reads the same text; the map shows which columns of the image each step "
        "takes in.",
        "{variant} 读出同样的文字；图中可见每一步看图像的哪些列。",
    ),
    "text_line.said_differ": (
        "With {variant} the model reads something else.",
        "换成 {variant} 后，模型读出了别的文字。",
    ),
    "text_line.note": (
        "PP-OCRv4's recogniser: 40 steps of 8 columns; most heads look broadly, as the "
        "convolutions have done much already.",
        "PP-OCRv4 识别模型：40 步，每步 8 列；多数头看得很散，因为卷积已做了大部分工作。",
    ),
    "reaction.agree": ("atoms mapped alike by {variant}", "{variant} 给出相同对应的原子"),
    "reaction.known": ("of the map written by hand", "与手写对应一致"),
    "reaction.table": ("Which atom became which", "哪个原子变成了哪个"),
    "reaction.product": ("product atom", "产物原子"),
    "reaction.by_model": ("by the model", "模型"),
    "reaction.by_swap": ("by the variant", "变体"),
    "reaction.by_hand": ("by hand", "手写"),
    "reaction.head": ("Head {number}", "第 {number} 头"),
    "reaction.said": (
        "{head} of layer {layer} pairs atoms of the products with atoms of the reactants.",
        "第 {layer} 层的{head}把产物的原子与反应物的原子配对。",
    ),
    "reaction.note": (
        "RXNMapper reads atom maps from layer 10 (the first is 0), head 6 of 8; nobody taught it "
        "to map.",
        "RXNMapper 从第 10 层（第一层为 0）8 个头中的第 6 个读出原子对应；没有人教过它。",
    ),
    "digits.step": ("round {done} of {rounds}", "第 {done} / {rounds} 轮"),
    "digits.right": ("right on held-out digits", "留出数字的正确率"),
    "digits.named": ("this digit is named (it is)", "这个数字被认作（实为）"),
    "digits.entropy": ("entropy of the heads", "各头的熵"),
    "digits.facts": ("After round {round}", "第 {round} 轮之后"),
    "digits.curve": ("Learning", "学习曲线"),
    "digits.said": (
        "A ViT with {variant} learns; its weights on one digit change from round to round.",
        "使用 {variant} 的 ViT 正在学习；它在一个数字上的权重逐轮变化。",
    ),
    "digits.said_sharper": (
        "The heads of {variant} have become sharper while it learned.",
        "学习过程中，{variant} 的各头变得更尖锐了。",
    ),
    "digits.note": (
        "Trained here, just now, on scikit-learn's digits; {held} are held out.",
        "刚刚在此用 scikit-learn 的数字训练；留出 {held} 个。",
    ),
    "recall.step": ("{variant}: round {done} of {rounds}", "{variant}：第 {done} / {rounds} 轮"),
    "recall.facts": ("Right answers, {pairs} pairs", "正确率，{pairs} 对"),
    "recall.curve": ("Learning to recall", "学会回忆"),
    "recall.said": (
        "{a} recalls {first}, {b} {second}.",
        "{a} 答对 {first}，{b} 答对 {second}。",
    ),
    "recall.said_state": (
        "{a} recalls {first}, {b} {second}: a state of fixed size hardly keeps every pair apart.",
        "{a} 答对 {first}，{b} 答对 {second}：固定大小的状态难以分清每一对。",
    ),
    "recall.note": (
        "Two causal layers, trained here, just now: after pairs k v the model is asked for the "
        "value of each key. One seed, one learning rate.",
        "两层因果注意力，刚刚在此训练：看过若干 k v 对之后，问每个键的值。一个种子，一个学习率。",
    ),
}
