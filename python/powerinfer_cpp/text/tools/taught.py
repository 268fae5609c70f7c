"""Which style of calls a chat template teaches."""

import re

from . import styles
from .styles import Style

# What a template of a style says, the first that fits; all of the texts must be in it.
_MARKS: tuple[tuple[Style, tuple[str, ...]], ...] = (
    (styles.HARMONY, ("<|channel|>", "<|message|>", "functions.")),
    (styles.DSML, (styles.DSML.control[0], "function_calls>")),
    (styles.DSML_4, (styles.DSML.control[0], "tool_calls>")),
    (styles.MINIMAX_3, (styles.MINIMAX_3.mark,)),
    (styles.GIGACHAT, (styles.GIGACHAT.opening,)),
    (styles.GCML, styles.GCML.control),
    (styles.GIGACHAT_3, ("<|role_sep|>", "<|message_sep|>")),
    (styles.GIGACHAT_3, ("function call<|role_sep|>",)),
    (styles.FUNCTIONARY_3, (">>>all",)),
    (styles.MINIMAX, ("<minimax:tool_call>",)),
    (styles.SEED, ("<seed:tool_call>",)),
    (styles.DEEPSEEK_R1, (styles.DEEPSEEK.opening, "```json")),
    (styles.DEEPSEEK, (styles.DEEPSEEK.opening,)),
    (styles.KIMI, (styles.KIMI.opening,)),
    (styles.KIMI_3, ("<|open|>", "<|sep|>")),
    (styles.LFM2, (styles.LFM2.opening,)),
    (styles.LFM2, ("List of tools: [",)),
    (styles.LFM2, ("<|tool_list_start|>",)),
    (styles.GEMMA_4, (styles.GEMMA_4.opening, "call:")),
    (styles.NEMOTRON, (styles.NEMOTRON.opening,)),
    (styles.COHERE, (styles.COHERE.opening,)),
    (styles.APERTUS, (styles.APERTUS.opening,)),
    (styles.APRIEL, ("<tool_calls>[",)),
    (styles.MINIMAX_1, ("<tool_calls>", "</tool_calls>")),
    (styles.GRANITE_3, (styles.GRANITE_3.opening,)),
    (styles.HUNYUAN, ("<tool_calls{}>",)),
    (styles.HUNYUAN, (styles.HUNYUAN.opening,)),
    (styles.SOLAR, (styles.SOLAR.opening, "<|tool_call:begin|>")),
    (styles.ATEM, (styles.ATEM.opening,)),
    (styles.MINICPM, (styles.MINICPM.opening,)),
    (styles.QWEN_CODER, ("<tool_call>", "<function=")),
    (styles.FUNCTIONARY, ("<function=", "</function>")),
    (styles.GLM_4_7, ("<tool_call>", "</arg_key><arg_value>")),
    (styles.GLM, ("<tool_call>", "<arg_key>")),
)


def style_of(template: str) -> Style | None:
    """The style that a chat template teaches its model; None if it teaches none that is known."""
    if not re.search(r"\btools\b|\btool_calls\b", template):
        return None
    for style, marks in _MARKS:
        if all(mark in template for mark in marks):
            return style
    if not re.search(r"\btools\b", template):
        return None
    if "<tool_call>" in template:
        # Others have something else inside the marker, which is not read here.
        return styles.HERMES if re.search(r'"name\\?"', template) else None
    if "<code>" in template:
        return styles.SMOLLM
    if "[TOOL_CALLS]" in template:
        return styles.MISTRAL_ARGS if "[ARGS]" in template else styles.MISTRAL
    if "<|python_tag|>" in template:
        return styles.LLAMA_3
    return (
        styles.LLAMA_3 if "<|start_header_id|>" in template and '"parameters"' in template else None
    )
