"""Chat templates that come along, for models whose own template rewrites earlier turns."""

from __future__ import annotations

__all__ = ["TEMPLATES"]

_NO_THOUGHT = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"

# For models with the tokens <|im_start|> and <|im_end|> (Qwen, SmolLM2 ...). Earlier turns stay as they were
# sampled, their thinking included; with thinking off each reply begins with the empty thought that such
# models were trained to begin with.
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}" + _NO_THOUGHT + "{% endif %}"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n" + _NO_THOUGHT + "{% endif %}"
)

TEMPLATES = {"chatml": _CHATML}
