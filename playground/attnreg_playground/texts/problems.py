"""Why there is nothing to show, and what to do about it."""

from __future__ import annotations

TEXTS = {
    "problem.option": ("An option does not fit", "有一个选项不合适"),
    "problem.option_detail": (
        "{name} must be {allowed}; got {value}",
        "{name} 应为{allowed}；得到 {value}",
    ),
    "problem.refused": ("{variant} refuses this call", "{variant} 拒绝了这次调用"),
    "problem.plugin": ("The plugin {plugin} failed", "插件 {plugin} 出错了"),
    "problem.plugin_detail": (
        "{variant} raised {error}. The other variants keep working.",
        "{variant} 抛出了 {error}。其他变体不受影响。",
    ),
    "problem.memory": ("Too much memory", "内存不够"),
    "problem.memory_detail": (
        "{variant} asks for more memory than one picture may take. Choose smaller options, fewer "
        "heads or a shorter input.",
        "{variant} 需要的内存超过一张图的上限。请选更小的选项、更少的头或更短的输入。",
    ),
    "problem.shape": ("The plugin {plugin} failed", "插件 {plugin} 出错了"),
    "problem.shape_detail": (
        "{variant} returned {what} of shape {got}, where {expected} belongs.",
        "{variant} 返回的 {what} 形状为 {got}，应为 {expected}。",
    ),
    "problem.no_weights": ("No weights to show", "没有可看的权重"),
    "problem.no_weights_detail": (
        "{variant} declares that it has no weights; it was run, and its output has shape {shape}.",
        "{variant} 声明自己没有权重；它已运行，输出形状为 {shape}。",
    ),
    "problem.empty": ("There is nothing to attend to", "没有输入"),
    "problem.empty_detail": (
        "Type at least one word or character.",
        "请至少输入一个词或一个字。",
    ),
    "problem.missing": ("Something is not installed", "缺少一个软件包"),
    "problem.missing_detail": (
        "{what} is not installed. To add it: {command}",
        "未安装 {what}。安装方法：{command}",
    ),
    "problem.model_failed": ("The model could not be run", "模型无法运行"),
    "problem.model_failed_detail": (
        "{error}. Installing the package again may help.",
        "{error}。重新安装该软件包也许有用。",
    ),
    "problem.budget": ("Too large to draw", "太大，画不了"),
    "problem.budget_detail": (
        "{heads} heads of {queries} x {keys} weights would take {wanted} MiB; the limit is "
        "{limit} MiB. Take fewer heads or a shorter input.",
        "{heads} 个头、每头 {queries} x {keys} 个权重约需 {wanted} MiB；上限是 {limit} MiB。"
        "请减少头数或缩短输入。",
    ),
    "problem.control": ("A control is out of range", "有一个控件超出范围"),
    "problem.control_detail": (
        "{name} must be {allowed}; got {value}",
        "{name} 应为{allowed}；得到 {value}",
    ),
    "problem.state": ("This cannot be read", "无法读取"),
    "problem.state_detail": (
        "The state of the page is not what it should be. Use Back to defaults.",
        "页面状态不合规。请按“恢复默认值”。",
    ),
    "problem.page": ("There is no such page", "没有这个页面"),
    "problem.page_detail": ("{page} is not a page.", "{page} 不是一个页面。"),
    "problem.variant": ("This variant cannot be used", "无法使用这个变体"),
    "problem.none": ("No variant is installed", "没有安装任何变体"),
    "problem.none_detail": (
        "Install a plugin, for instance attnreg-scaled-dot-product, and start again.",
        "请安装一个插件（例如 attnreg-scaled-dot-product）后重新启动。",
    ),
    "problem.needs": ("A plugin is missing", "缺少一个插件"),
    "problem.needs_detail": (
        "This needs the variant {variant}. Install its plugin and start again.",
        "这里需要变体 {variant}。请安装它的插件后重新启动。",
    ),
    "problem.only_causal": ("This variant cannot take that place", "这个变体放不进这里"),
    "problem.only_causal_detail": (
        "{variant} only looks back; this model looks both ways. Choose another.",
        "{variant} 只能看前文；这个模型要看两边。请另选一个。",
    ),
    "problem.not_causal": ("This variant cannot take that place", "这个变体放不进这里"),
    "problem.not_causal_detail": (
        "{variant} has no causal form, and the task needs one. Choose another.",
        "{variant} 没有因果形式，而这个任务需要。请另选一个。",
    ),
    "problem.unequal": ("The sentences differ in length", "两句长度不同"),
    "problem.unequal_detail": (
        "The first has {one} tokens, the second {other}. Make them equal to compare the maps.",
        "第一句有 {one} 个词元，第二句有 {other} 个。请改成一样长再比较。",
    ),
    "problem.smiles": ("This is not a reaction", "这不是一个反应式"),
    "problem.smiles_detail": (
        "Write SMILES as reactants>>products, at most {limit} tokens.",
        "请写成 反应物>>产物 的 SMILES，最多 {limit} 个记号。",
    ),
    "problem.no_pixels": ("There is no line to read", "没有可读的文字"),
    "problem.no_pixels_detail": ("Type a line, or draw one.", "请输入或书写一行文字。"),
    "problem.benchmark": ("This cannot be measured", "无法测量"),
    "problem.busy": ("The playground is busy", "游乐场正忙"),
    "problem.busy_detail": (
        "Too many requests are waiting. Try again in a moment.",
        "等待的请求太多。请稍后再试。",
    ),
    "problem.stopped": ("Stopped", "已停止"),
    "problem.stopped_detail": (
        "It was stopped; what had been found is still shown.",
        "任务已停止；已得到的结果仍然显示。",
    ),
    "problem.slow": ("It took too long", "用时太长"),
    "problem.slow_detail": (
        "{what} was stopped after {seconds} s. Try a shorter input or another variant.",
        "{what} 在 {seconds} 秒后被停止。请试试更短的输入或别的变体。",
    ),
    "problem.crashed": ("The process that ran it ended", "运行它的进程已结束"),
    "problem.crashed_detail": (
        "Running {what}, a plugin crashed or asked for too much ({how}). The rest keeps working; "
        "choose another variant or a smaller input.",
        "运行 {what} 时，某个插件崩溃或占用过多（{how}）。其余不受影响；请换一个变体或更小的输入。",
    ),
    "problem.failed": ("{what} could not be computed", "无法计算 {what}"),
    "problem.gone": ("This job is gone", "任务已不存在"),
    "problem.gone_detail": ("Start it again.", "请重新开始。"),
    "problem.light": ("Switched off here", "此处已关闭"),
    "problem.light_detail": (
        "Long jobs are off because others can reach this page. Whoever runs it may start it with "
        "--heavy.",
        "因为他人可以访问此页，长任务已关闭。运行者可用 --heavy 启动。",
    ),
    "problem.no_export": ("Not here", "这里不行"),
    "problem.no_export_detail": (
        "Use the table or the CSV of the figure, which hold what this run found.",
        "请用图中的表格或 CSV，它们就是本次运行的结果。",
    ),
}
