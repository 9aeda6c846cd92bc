"""Three tokens, benchmark, conformance, capabilities and plugins."""

from __future__ import annotations

TEXTS = {
    "three.title": ("Step by step", "一步一步"),
    "three.query": ("Q = X W_Q", "Q = X W_Q"),
    "three.key": ("K = X W_K", "K = X W_K"),
    "three.value": ("V = X W_V", "V = X W_V"),
    "three.scores": ("scores Q Kᵀ", "分数 Q Kᵀ"),
    "three.scaled": ("scaled", "缩放后"),
    "three.masked": ("masked", "掩码后"),
    "three.weights": ("softmax: the weights", "softmax：权重"),
    "three.output": ("output = weights · V", "输出 = 权重 · V"),
    "three.mixing": ("What {token} takes from each value", "{token} 从每个值取走多少"),
    "three.said_x": (
        "Each token is a row of four numbers; every number can be edited.",
        "每个词元是一行四个数；每个数都可以改。",
    ),
    "three.said_qkv": (
        "Three matrices turn each row into a query, a key and a value.",
        "三个矩阵把每一行变成查询、键和值。",
    ),
    "three.said_scores": (
        "The query of {token} meets every key by a dot product: {scores}.",
        "{token} 的查询与每个键做点积：{scores}。",
    ),
    "three.said_scale": (
        "Divided by {divisor} the scores of {token} are {scaled}.",
        "除以 {divisor} 后，{token} 的分数为 {scaled}。",
    ),
    "three.said_mask": (
        "What is hidden becomes −∞, so that softmax gives it exactly 0.",
        "被遮住的变成 −∞，于是 softmax 给它恰好 0。",
    ),
    "three.said_softmax": (
        "The row of {token} is now {weights}: it looks most at {most} ({share}).",
        "{token} 这一行现在是 {weights}：它最看重 {most}（{share}）。",
    ),
    "three.said_output": (
        "The output of {token} is the values mixed by that row: {output}.",
        "{token} 的输出是按这一行混合的值：{output}。",
    ),
    "three.said_blind": (
        "{token} may look at nothing, so its row and its output are exactly 0.",
        "{token} 什么也看不到，因此它的行与输出恰好为 0。",
    ),
    "three.sums": ("Rows of weights sum to {sums}.", "权重各行之和为 {sums}。"),
    "three.note": (
        "Weights and output come from the plugin scaled_dot_product in float64; the numbers of X "
        "and W were chosen by hand.",
        "权重与输出由插件 scaled_dot_product 以 float64 算出；X 与 W 的数是手选的。",
    ),
    "benchmark.time": ("Time", "时间"),
    "benchmark.memory": ("Memory", "内存"),
    "benchmark.limit": ("limit", "上限"),
    "benchmark.cells": ("Every cell", "每一格"),
    "benchmark.variant": ("variant", "变体"),
    "benchmark.length": ("length", "长度"),
    "benchmark.ms": ("ms", "毫秒"),
    "benchmark.spread": ("spread, ms", "离散（毫秒）"),
    "benchmark.mib": ("peak, MiB", "峰值 MiB"),
    "benchmark.implementation": ("implementation", "实现"),
    "benchmark.status": ("status", "状态"),
    "benchmark.said": (
        "On log axes a power law is a straight line: slope 1 is linear, slope 2 quadratic growth.",
        "对数坐标上幂律是直线：斜率 1 为线性增长，斜率 2 为平方增长。",
    ),
    "benchmark.phase_conformance": ("Verifying: {text}", "验证：{text}"),
    "benchmark.phase_limits": ("Measuring the machine: {text}", "测机器：{text}"),
    "benchmark.phase_memory": ("Measuring memory: {text}", "测内存：{text}"),
    "benchmark.phase_time": ("Measuring time: {text}", "测时间：{text}"),
    "benchmark.machine": (
        "{processor}, {cores} cores, {threads} threads, torch {torch}; all variants of a length "
        "run in turn, so a busy machine slows all of them.",
        "{processor}，{cores} 核，{threads} 线程，torch {torch}；同一长度的各变体轮流运行，"
        "机器忙时一起变慢。",
    ),
    "benchmark.unchecked": (
        "Not verified in this run: nothing here says that the results are right. Tick Verify "
        "first.",
        "本次未验证：没有检查结果是否正确。可勾选“先验证”。",
    ),
    "benchmark.verdict": ("{variant}: {verdict}", "{variant}：{verdict}"),
    "benchmark.growth": (
        "{subject}, {measure}: grows as L^{slope} ({verdict})",
        "{subject}，{measure}：按 L^{slope} 增长（{verdict}）",
    ),
    "benchmark.inconclusive": (
        "{subject} at {length}: inconclusive, the spread is larger than the difference.",
        "{subject} 在长度 {length}：无定论，离散大于差异。",
    ),
    "conformance.title": ("Laws of {variant}", "{variant} 的定律"),
    "conformance.step": ("checked {check}", "已检查 {check}"),
    "conformance.said": (
        "{pass} hold, {fail} fail, {error} broke, {xfail} fail as declared, {skip} do not apply, "
        "{waiting} to go.",
        "{pass} 条成立，{fail} 条不成立，{error} 条出错，{xfail} 条如声明所说不成立，"
        "{skip} 条不适用，{waiting} 条待查。",
    ),
    "conformance.good": ("{variant} conforms.", "{variant} 合规。"),
    "conformance.part": (
        "What was run holds for {variant}; a verdict needs all laws.",
        "所运行的定律对 {variant} 都成立；结论需要全部定律。",
    ),
    "conformance.bad": (
        "{variant} does not conform: {count} laws stand against it.",
        "{variant} 不合规：有 {count} 条定律不成立。",
    ),
    "conformance.profile": (
        "Profile: {profile}. Each law runs in a process of its own, under limits.",
        "检查范围：{profile}。每条定律都在受限的独立进程中运行。",
    ),
    "conformance.here": (
        "The variant cannot be imported by another process, so the laws ran in this one.",
        "别的进程无法导入这个变体，因此定律在本进程中运行。",
    ),
    "tile.waiting": ("waiting", "待查"),
    "tile.pass": ("holds", "成立"),
    "tile.fail": ("fails", "不成立"),
    "tile.xfail": ("fails as declared", "如声明不成立"),
    "tile.skip": ("does not apply", "不适用"),
    "tile.error": ("broke", "出错"),
    "tile.law": ("Law", "定律"),
    "tile.message": ("What was seen", "观察到的"),
    "tile.call": ("Smallest input", "最小输入"),
    "tile.expected": ("Expected", "应为"),
    "tile.actual": ("Actual", "实际"),
    "tile.snippet": ("Reproduce", "复现"),
    "tile.open": ("Open a tile to read its law.", "打开一块即可读到定律。"),
    "capabilities.title": ("Declared and verified", "声明与验证"),
    "capabilities.variant": ("variant", "变体"),
    "capabilities.cell": ("{value}{mark}", "{value}{mark}"),
    "capabilities.step": ("{variant}: {check}", "{variant}：{check}"),
    "capabilities.said": (
        "{count} of {total} variants; {verified} verified, {wrong} declarations found wrong.",
        "{total} 个变体中的 {count} 个；已验证 {verified} 个，{wrong} 项声明有误。",
    ),
    "capabilities.legend": (
        "● declared, – not declared (and then refused); ✓ verified by the laws behind it, ✗ found "
        "wrong; without ✓ or ✗ it has not been verified here.",
        "● 已声明，– 未声明（则会拒绝）；✓ 背后的定律成立，✗ 有误；没有 ✓ 或 ✗ 表示此处尚未验证。",
    ),
    "capability.cache": ("cache", "缓存"),
    "capability.recurrent": ("recurrent", "循环状态"),
    "capability.exact": ("exact", "精确"),
    "capability.implied": ("implied", "等效"),
    "plugins.title": ("Plugins found through entry points", "通过入口点找到的插件"),
    "plugins.name": ("plugin", "插件"),
    "plugins.variants": ("variants", "变体"),
    "plugins.distribution": ("distribution", "发行包"),
    "plugins.version": ("version", "版本"),
    "plugins.module": ("module", "模块"),
    "plugins.state": ("state", "状态"),
    "plugins.seconds": ("import, s", "导入（秒）"),
    "plugins.reason": ("reason", "原因"),
    "plugins.claimed": ("claimed by", "由谁注册"),
    "plugins.duplicates": ("Names claimed twice", "重复注册的名字"),
    "plugins.said": (
        "{count} plugins were found, {broken} of them could not be loaded.",
        "找到 {count} 个插件，其中 {broken} 个无法载入。",
    ),
    "plugins.said_all": (
        "{count} plugins were found, and all of them could be loaded.",
        "找到 {count} 个插件，全部载入成功。",
    ),
    "plugins.trust": (
        "A plugin is code that runs on this machine once it is installed: install what you trust. "
        "Nothing here installs or imports anything because of a request.",
        "插件一经安装就会在本机运行代码：只安装你信任的。这里不会因请求而安装或导入任何东西。",
    ),
    "plugins.restart": (
        "A plugin that was installed just now appears when the playground is started again.",
        "刚装好的插件在重新启动游乐场后出现。",
    ),
    "plugins.example": ("A whole variant", "一个完整的变体"),
    "plugins.entry": ("In its pyproject.toml", "写进 pyproject.toml"),
    "plugins.author": ("For authors", "写给作者"),
    "plugins.new": (
        "attnreg new my_attention writes a package with a variant, its tests and its entry point.",
        "attnreg new my_attention 会写出一个包：变体、测试与入口点。",
    ),
    "plugins.check": (
        "attnreg check my_attention runs the laws; the Conformance tab shows the same.",
        "attnreg check my_attention 运行定律；“合规”页显示同样的结果。",
    ),
    "plugins.panel": (
        "A tab of your own: register a Panel through attnreg_register_panels.",
        "想要自己的标签页：用 attnreg_register_panels 注册 Panel。",
    ),
    "plugins.form": (
        "The form in Explore is made from the constructor: each keyword is a field, its Doc the "
        "help, its Interval the range.",
        "“探索”里的表单由构造函数生成：每个关键字参数是一个字段，Doc 是说明，Interval 是范围。",
    ),
    "state.discovered": ("found", "已找到"),
    "state.loaded": ("loaded", "已载入"),
    "state.failed": ("failed", "失败"),
    "state.incompatible": ("other contract", "契约版本不同"),
    "state.disabled": ("disabled", "已禁用"),
}
