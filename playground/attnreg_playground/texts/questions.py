"""The question cards: what each picture says, and the labels in it. The questions are titles."""

from __future__ import annotations

TEXTS = {
    "formula.symbols": ("Symbols and their shapes here", "符号与此处的形状"),
    "formula.map": ("A = softmax(QKᵀ/√d_k)", "A = softmax(QKᵀ/√d_k)"),
    "formula.q": ("queries: what each position looks for", "查询：每个位置在找什么"),
    "formula.k": ("keys: what each position offers to be found by", "键：每个位置供人匹配的内容"),
    "formula.v": ("values: what each position passes on", "值：每个位置实际传递的内容"),
    "formula.scores": ("how well each query fits each key", "每个查询与每个键的匹配程度"),
    "formula.weights": ("each row a distribution over the keys", "每行是键上的一个分布"),
    "formula.output": ("values mixed by the weights", "按权重混合的值"),
    "formula.dk": ("the width of a query and a key", "查询与键的宽度"),
    "formula.root": ("keeps the variance of the scores near 1", "让分数的方差保持在 1 左右"),
    "formula.softmax": ("makes each row positive, with sum 1", "使每行为正且和为 1"),
    "formula.said": (
        "{length} queries meet {length} keys of width {width}; each row of weights mixes the "
        "values.",
        "{length} 个查询与 {length} 个宽 {width} 的键匹配；每行权重混合所有的值。",
    ),
    "dependence.gru": ("GRU", "GRU"),
    "dependence.attention": ("attention", "注意力"),
    "dependence.title": (
        "Gradient of the last output with respect to each input",
        "最后一个输出对每个输入的梯度",
    ),
    "dependence.facts": ("GRU : attention", "GRU : 注意力"),
    "dependence.path": ("steps from the first input", "离第一个输入的步数"),
    "dependence.right": ("right answers", "答对"),
    "dependence.ratio": ("gradient at the first over at the last", "首位与末位的梯度之比"),
    "dependence.said": (
        "Attention reaches the first of {length} inputs in one step; in the GRU the signal passes "
        "through every state in between.",
        "注意力一步就能到达 {length} 个输入中的第一个；GRU 的信号要穿过中间的每个状态。",
    ),
    "dependence.note": (
        "Both were trained here, {rounds} rounds, to name the first symbol from the last output.",
        "两者都在此训练 {rounds} 轮：由最后的输出说出第一个符号。",
    ),
    "complexity.by_length": ("over L, at d = {width}", "随 L 变化，d = {width}"),
    "complexity.by_width": ("over d, at L = {length}", "随 d 变化，L = {length}"),
    "complexity.title": ("Floating point operations, counted", "实际数出的浮点运算次数"),
    "complexity.facts": ("At this L and d", "在此 L 与 d 下"),
    "complexity.cells": ("pairs of query and key", "查询与键的配对数"),
    "complexity.each": ("operations per pair", "每对的运算"),
    "complexity.total": ("counted in all", "总计数出"),
    "complexity.said": (
        "Every one of L queries meets every one of L keys: the count grows as L^{steep}, but only "
        "as d^{flat}.",
        "L 个查询都要与 L 个键相遇：次数按 L^{steep} 增长，而对 d 只是 d^{flat}。",
    ),
    "complexity.note": (
        "Counted by torch in the products of the plugin scaled_dot_product; the projections come "
        "on top, as L d².",
        "由 torch 在插件 scaled_dot_product 的矩阵乘法中数出；投影另需 L d²。",
    ),
    "temperature.title": ("The row of one query", "一个查询的那一行"),
    "temperature.curve": ("Entropy of the row over T", "该行的熵随 T 的变化"),
    "temperature.entropy": ("entropy", "熵"),
    "temperature.uniform": ("uniform", "均匀分布"),
    "temperature.said": (
        "At T = {temperature} the largest weight is {largest}, at T = 1 it is {plain}: low "
        "temperatures choose, high ones average.",
        "T = {temperature} 时最大权重为 {largest}，T = 1 时为 {plain}："
        "低温近乎只选一个，高温趋于平均。",
    ),
    "roles.before": ("weights before", "替换前的权重"),
    "roles.after": ("weights after", "替换后的权重"),
    "roles.moved": ("How far each output moved", "每个输出移动了多少"),
    "roles.said_query": (
        "With the query of {source}, {token} asks another question: {rows} row changes, and "
        "{outputs} output.",
        "{token} 换上 {source} 的查询，问的问题变了：只有 {rows} 行改变，{outputs} 个输出改变。",
    ),
    "roles.said_key": (
        "With the key of {source}, {token} is found by others: a column changes, so {rows} rows "
        "and {outputs} outputs do.",
        "{token} 换上 {source} 的键，被找到的方式变了：一列改变，"
        "于是 {rows} 行、{outputs} 个输出改变。",
    ),
    "roles.said_value": (
        "With the value of {source}, {token} says something else: {rows} rows of weights change, "
        "but {outputs} outputs.",
        "{token} 换上 {source} 的值，传递的内容变了：权重改变 {rows} 行，输出却改变 {outputs} 个。",
    ),
    "rows.title": ("What {token} looks at", "{token} 看向哪里"),
    "rows.map": ("All rows", "所有的行"),
    "rows.said": (
        "The row of {token} sums to {sum}; its largest part, {share}, goes to {largest}.",
        "{token} 这一行的和为 {sum}；最大的一份 {share} 给了 {largest}。",
    ),
    "rows.mixed": (
        "The values mixed by this row are the output (difference {apart}).",
        "按这一行混合的值就是输出（差异 {apart}）。",
    ),
    "dynamic.first": ("attention on the first", "第一句的注意力"),
    "dynamic.second": ("attention on the second", "第二句的注意力"),
    "dynamic.convolution": ("a convolution, on either", "卷积，对两句都一样"),
    "dynamic.facts": ("From one sentence to the other", "从一句到另一句"),
    "dynamic.moved": ("largest change of a weight", "权重的最大变化"),
    "dynamic.kernel_moved": ("change of the convolution", "卷积的变化"),
    "dynamic.reach": ("reach: attention : convolution", "视野：注意力 : 卷积"),
    "dynamic.said": (
        "Other words, other weights (up to {moved}); the kernel stays what it is, whatever it "
        "reads.",
        "换了词，权重就变（最多 {moved}）；卷积核无论读到什么都不变。",
    ),
    "dynamic.said_same": (
        "The same words, the same weights: change one of the sentences.",
        "词相同，权重也相同：请改动其中一句。",
    ),
    "bottleneck.textbook": ("as in the textbook", "教科书写法"),
    "bottleneck.time": ("Time of one call", "一次调用的时间"),
    "bottleneck.memory": ("Memory of one call", "一次调用的内存"),
    "bottleneck.step": ("{name} at length {length}", "{name}，长度 {length}"),
    "bottleneck.said": (
        "At L = {length} the textbook holds {cells} weights (peak {held} MiB); the "
        "slopes say how time and memory of each grow.",
        "L = {length} 时教科书写法要存 {cells} 个权重（峰值 {held} MiB）；"
        "斜率说明各自的时间与内存如何增长。",
    ),
    "bottleneck.note": (
        "Measured here, 4 heads of 32, median of a few calls; slopes from the last three lengths.",
        "在此测得，4 个 32 维的头，若干次调用的中位数；斜率取最后三个长度。",
    ),
    "additive.facts": ("Dot product : additive", "点积 : 加性"),
    "additive.time": ("time at length {length}", "长度 {length} 的时间"),
    "additive.parameters": ("parameters of its own", "自身参数"),
    "additive.apart": ("largest difference of weights", "权重最大差异"),
    "additive.said": (
        "One product of matrices against a tanh for every pair: additive takes {slower} times the "
        "time at length {length}.",
        "一次矩阵乘法，对每一对一次 tanh：长度 {length} 时加性用时是 {slower} 倍。",
    ),
    "worked.title": ("The output of {token}", "{token} 的输出"),
    "worked.project": ("1  its query", "1  它的查询"),
    "worked.score": ("2  with the key of {token}", "2  与 {token} 的键"),
    "worked.scale": ("3  scale", "3  缩放"),
    "worked.softmax": ("4  softmax", "4  softmax"),
    "worked.output": ("5  mix the values", "5  混合值"),
    "worked.said": (
        "{token} asks with its query, is answered by all three keys, and takes {share} of the "
        "value of {most}.",
        "{token} 用自己的查询发问，三个键都来应答，它取走 {most} 的值的 {share}。",
    ),
    "worked.note": (
        "The same numbers as on the tab Three tokens, where every one can be edited.",
        "与“三个词元”页的数相同，那里每个数都可以改。",
    ),
    "parallel.at_once": ("attention, all at once", "注意力，一次算完"),
    "parallel.one_by_one": ("attention, query by query", "注意力，逐个查询"),
    "parallel.gru": ("GRU, step by step", "GRU，逐步"),
    "parallel.time": ("Time", "时间"),
    "parallel.steps": (
        "Calls that are made one after the other",
        "依次进行的调用次数",
    ),
    "parallel.said": (
        "At length {length} the loop takes {loop} times the time of one product, the GRU {gru} "
        "times; the loop need not wait for its own results, the GRU must.",
        "长度 {length} 时，循环用时是一次矩阵乘法的 {loop} 倍，GRU 是 {gru} 倍；循环不必等待前一步"
        "的结果，GRU 必须等。",
    ),
    "parallel.equal": (
        "All at once and one by one give the same (difference {apart}).",
        "一次算完与逐个计算结果相同（差异 {apart}）。",
    ),
    "order.plain": ("weights, as typed", "权重，原顺序"),
    "order.moved": ("weights, reordered", "权重，新顺序"),
    "order.bias_sinusoidal": ("similarity of the positions", "位置之间的相似度"),
    "order.bias_learned": ("similarity of tokens and positions", "词元加位置的相似度"),
    "order.bias_t5": ("bias by bucket of the distance", "按距离分桶的偏置"),
    "order.bias_xl": ("what positions add to the scores", "位置给分数加了什么"),
    "order.facts": ("Output of a token, before and after", "同一词元前后的输出"),
    "order.apart": ("largest difference", "最大差异"),
    "order.said_same": (
        "The outputs only moved along with their tokens: without positions order is invisible.",
        "输出只是跟着词元换了位置：没有位置编码，顺序看不见。",
    ),
    "order.said_still": (
        "Nothing was reordered: choose another order.",
        "顺序没有改变：请另选一种顺序。",
    ),
    "order.said_differ": (
        "Now the same token gets another output in another place: positions make order visible.",
        "现在同一个词元换了地方输出就不同：位置编码让顺序可见。",
    ),
    "order.none": ("No positions are added.", "没有加位置。"),
    "order.sinusoidal": (
        "Sines and cosines of the place are added to each token; nothing is learned.",
        "给每个词元加上位置的正弦与余弦；无需学习。",
    ),
    "order.learned": (
        "A vector per place is added; here it is drawn, not learned.",
        "给每个位置加一个向量；此处随机抽取，未经学习。",
    ),
    "order.t5": (
        "A number per bucket of distances is added to the scores; here it is drawn.",
        "按距离分桶，给分数加一个数；此处随机抽取。",
    ),
    "order.xl": (
        "Three terms join the score: two see the distance, one the key alone; u and v, learned "
        "there, are drawn here, and r is not projected.",
        "分数多出三项：两项看距离，一项只看键；u 和 v 本应学习，此处随机抽取，r 也未经投影。",
    ),
    "order.note": (
        "Random vectors and projections, untrained; relative positions go in as the bias of a "
        "mask.",
        "随机向量与投影，未经训练；相对位置以掩码偏置的形式加入。",
    ),
    "shared.scores": ("scores", "分数"),
    "shared.weights": ("weights", "权重"),
    "shared.facts": ("What sharing does", "共享的影响"),
    "shared.parameters": ("parameters of the projection", "投影的参数"),
    "shared.lopsided": ("largest |S − Sᵀ|", "最大 |S − Sᵀ|"),
    "shared.diagonal": ("mean weight on itself (uniform)", "给自己的平均权重（均匀时）"),
    "shared.said_symmetric": (
        "The scores are symmetric, and {diagonal} of the weight stays on the token itself: no "
        "vector of equal length fits one better than itself.",
        "分数对称，且 {diagonal} 的权重留给词元自己：等长的向量中没有比自己更合适的。",
    ),
    "shared.said_excluded": (
        "With itself hidden each token has to look at others; the scores are as before.",
        "遮住自己之后，每个词元只能看别的词元；分数不变。",
    ),
    "shared.said": (
        "With projections of their own queries and keys differ: the scores are not symmetric "
        "({diagonal} on itself).",
        "查询与键各有投影：分数不对称（给自己 {diagonal}）。",
    ),
    "saturation.scaled": ("with 1/√d_k", "有 1/√d_k"),
    "saturation.plain": ("without", "没有"),
    "saturation.row": ("One row at d_k = {width}", "d_k = {width} 的一行"),
    "saturation.gradient": ("Gradient of the weights over d_k", "权重的梯度随 d_k 的变化"),
    "saturation.largest": ("Largest weight over d_k", "最大权重随 d_k 的变化"),
    "saturation.said": (
        "At d_k = {width} the largest weight is {largest} without the scale and {scaled} with it, "
        "and the gradient is {part} of that with it.",
        "d_k = {width} 时，不缩放的最大权重为 {largest}，缩放后为 {scaled}；不缩放的梯度是缩放后的"
        " {part}。",
    ),
    "saturation.note": (
        "Normal queries and keys of 16 tokens; the gradient is that of the softmax, by "
        "backpropagation through the plugin.",
        "16 个词元的正态查询与键；梯度是 softmax 的，经插件反向传播得到。",
    ),
    "reorder.flops": ("Operations, counted", "数出的运算次数"),
    "reorder.errors": ("Relative error of the output", "输出的相对误差"),
    "reorder.plain": ("parentheses moved, no softmax", "只换括号，无 softmax"),
    "reorder.linear": ("softmax replaced (linear)", "替换 softmax（linear）"),
    "reorder.said": (
        "At L = {length}, d = {width} KᵀV first takes {part} times the operations (d / L); giving "
        "up the softmax changes the output by {error}.",
        "L = {length}、d = {width} 时先算 KᵀV 的运算量是 {part} 倍（d / L）；放弃 softmax "
        "使输出改变 {error}。",
    ),
    "reorder.equal": (
        "Without the softmax both orders are equal ({apart}).",
        "没有 softmax 时两种次序相等（{apart}）。",
    ),
    "reorder.note": (
        "Random numbers in float64; linear is the plugin with its own feature map.",
        "float64 随机数；linear 是带自己特征映射的插件。",
    ),
    "similarity.plane": ("Drag the vectors", "拖动向量"),
    "similarity.weights": ("Weight of each key", "每个键的权重"),
    "similarity.said": (
        "The dot product prefers {dot}, cosine {cosine}, Euclidean {euclidean}: length, direction, "
        "nearness.",
        "点积偏爱 {dot}，余弦偏爱 {cosine}，欧氏偏爱 {euclidean}：长度、方向、远近。",
    ),
    "similarity.note": (
        "Computed by the plugins in float64: scale 1/√2, s = 4 for cosine, tau = 1 for Euclidean.",
        "由各插件以 float64 计算：缩放 1/√2，余弦 s = 4，欧氏 tau = 1。",
    ),
    "vision.cnn": ("CNN", "CNN"),
    "vision.vit": ("ViT", "ViT"),
    "vision.step": ("{kind} on {count} images", "{kind}，{count} 张图像"),
    "vision.title": ("Right on held-out digits", "留出数字的正确率"),
    "vision.curve": ("Over the number of images", "随图像数的变化"),
    "vision.said": (
        "The CNN leads by {first} with 50 images and by {last} with the most: it need not learn "
        "locality.",
        "50 张图像时 CNN 领先 {first}，最多图像时领先 {last}：它不必从数据里学局部性。",
    ),
    "vision.said_open": (
        "CNN over ViT: {first} with 50 images, {last} with the most so far.",
        "CNN 相对 ViT：50 张图像时 {first}，目前最多图像时 {last}。",
    ),
    "vision.note": (
        "Trained here, just now, {rounds} rounds each, on scikit-learn's 8 × 8 digits; {held} are "
        "held out; one seed.",
        "刚刚在此训练，各 {rounds} 轮，用 scikit-learn 的 8 × 8 数字；留出 {held} 张；一个种子。",
    ),
    "padding.unmasked": ("padded, no mask (wrong)", "填充，无掩码（错误）"),
    "padding.padded": ("padded, masked", "填充，有掩码"),
    "padding.packed": ("packed", "拼接"),
    "padding.facts": ("This batch", "这一批"),
    "padding.share": ("padding", "填充占比"),
    "padding.tokens": ("real tokens / cells", "真实词元 / 格子"),
    "padding.leak": ("error without a mask", "无掩码的误差"),
    "padding.time": ("Time of one call", "一次调用的时间"),
    "padding.said": (
        "With {share} padding the packed sequences take {part} of the time of the masked batch, "
        "for the same output.",
        "填充占 {share} 时，拼接用时是带掩码批次的 {part}，输出相同。",
    ),
    "padding.equal": (
        "Masked and packed give the same (difference {apart}).",
        "掩码与拼接结果相同（差异 {apart}）。",
    ),
    "padding.wrong": (
        "Without a mask the padding leaks into the output ({leak}).",
        "没有掩码时填充会漏进输出（{leak}）。",
    ),
    "rank.values": ("singular values", "奇异值"),
    "rank.spectrum": ("Singular values of the weights", "权重的奇异值"),
    "rank.weights": ("weights", "权重"),
    "rank.low": ("rank {rank} of them", "其中秩 {rank} 的部分"),
    "rank.errors": (
        "Relative error of this head's output",
        "该头输出的相对误差",
    ),
    "rank.truncated": (
        "cut to rank {rank}",
        "截断到秩 {rank}",
    ),
    "rank.mixed": (
        "error with half the heads as windows, all heads",
        "一半头用窗口时全部头的误差",
    ),
    "rank.facts": ("This head", "这个头"),
    "rank.effective": ("effective rank / length", "有效秩 / 长度"),
    "rank.energy": ("energy of the first {rank}", "前 {rank} 个的能量"),
    "rank.heads": ("effective ranks of all heads", "各头的有效秩"),
    "rank.said": (
        "{rank} of {length} singular values hold {share} of the energy: the closer to 100%, the "
        "fewer patterns make up the map.",
        "{length} 个奇异值中的 {rank} 个占有 {share} 的能量：越接近 100%，构成该图的模式越少。",
    ),
    "rank.said_full": (
        "All {length} singular values are kept: choose a smaller rank to see what is lost.",
        "保留了全部 {length} 个奇异值：请选更小的秩，看看丢失了什么。",
    ),
    "rank.note": (
        "Linformer and Performer are untrained here; Linformer's projections would be learned.",
        "此处 Linformer 与 Performer 未经训练；Linformer 的投影本应学习得到。",
    ),
}
