"""What a template may ask for, and that the rest is refused before it costs anything."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from magent2.context import BusMessage, templates
from magent2.context.templates import CACHE_MAX, FILTERS_MAX, OUTPUT_MAX_CHARS, SOURCE_MAX_CHARS, check_template
from magent2.errors import TemplateRefused

ALLOWED = {
    "just text": "just text",
    "[URGENT] {{ content }}": "[URGENT] Stop  it ",
    "{{ source }} to {{ target }} ({{ id }})": "user to main (m1)",
    "{{ content | trim | upper }}\n": "STOP  IT",
    "{{ source }}\n\n": "user\n",
    "{{ content | truncate(7, true) }}": "Stop...",
    "{{ content | length }}": "9",
    "{% if source == 'user' %}person{% elif source in ['a', 'b'] %}agent{% else %}?{% endif %}": "person",
    "{{ 'all' if not target else 'one' }}": "one",
    "{{ content | default('none', true) | lower }}": "stop  it ",
    "{% raw %}{{ content }}{% endraw %}{# a note #}": "{{ content }}",
    "{{ 'é' | capitalize }} {{ 1 }} {{ true }} {{ none }}": "É 1 True ",
}

REFUSED = {
    "loop": [
        "{% for i in content %}x{% endfor %}",
        "{% for i in range(10**9) %}{% for j in range(9) %}{% endfor %}{% endfor %}",
    ],
    "call": ["{{ range(10**9) }}", "{{ content() }}", "{{ lipsum(n=100000) }}", "{{ cycler('a') }}"],
    "macro": ["{% macro m() %}{{ m() }}{% endmacro %}", "{% call(x) content() %}{% endcall %}"],
    "arithmetic": [
        "{{ 'a' * (10**8) }}",
        "{{ 10**10**10 }}",
        "{{ 1 + 1 }}",
        "{{ -1 }}",
        "{{ content ~ content }}",
        "{{ content % 3 }}",
    ],
    "attribute": ["{{ content.__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ ''.format }}"],
    "subscript": ["{{ content['__class__'] }}", "{{ content[0] }}", "{{ content[1:2] }}"],
    "assignment": ["{% set a = content %}", "{% set a %}x{% endset %}"],
    "include": ["{% include 'x' %}"],
    "import": ["{% import 'x' as y %}", "{% from 'x' import y %}"],
    "extends": ["{% extends 'x' %}"],
    "block": ["{% block b %}{% endblock %}"],
    "test": ["{{ content is defined }}"],
    "filter": [
        "{{ content | center(10**9) }}",
        "{{ '%1000000000s' | format(content) }}",
        "{{ content | indent(1000000000) }}",
        "{{ content | replace('', 'xxxxxxxxxx') }}",
        "{{ content | attr('__class__') }}",
        "{{ content | map('upper') }}",
        "{{ content | upper(1) }}",
        "{{ content | truncate(content) }}",
        "{{ content | default(*content) }}",
        "{% filter upper %}x{% endfilter %}",
    ],
    "name": ["{{ self }}", "{{ config }}", "{{ loop }}", "{{ contents }}"],
    "comparison": ["{{ 1 < 2 }}"],
    "part": ["{{ {'a': 1} }}", "{% with a = 1 %}{% endwith %}", "{% autoescape true %}{% endautoescape %}"],
    "syntax": ["{{ content", "{% if %}", "{% do x %}", "{{ 1 if }}"],
    "size": ["x" * (SOURCE_MAX_CHARS + 1)],
    "filters": ["{{ content | upper }}" * (FILTERS_MAX + 1)],
    "depth": ["{{ " + "(" * 900 + "1" + ")" * 900 + " }}", "{%if id%}" * 110 + "{%endif%}" * 110],
}


def message(template: str, content: str = "Stop  it ") -> BusMessage:
    return BusMessage(id="m1", content=content, source="user", target="main", template=template)


@pytest.mark.parametrize(("template", "shown"), list(ALLOWED.items()))
def test_text_fields_conditions_and_filters_are_allowed(template: str, shown: str) -> None:
    check_template(template)

    assert message(template).render() == shown


@pytest.mark.parametrize(("what", "template"), [(what, one) for what, many in REFUSED.items() for one in many])
def test_all_else_is_refused_by_name_and_never_compiled(
    what: str, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    if what != "depth":  # the only fault that may show no sooner than in the compiler
        monkeypatch.setattr(ImmutableSandboxedEnvironment, "compile", lambda *given, **named: compiled.append(given))

    with pytest.raises(TemplateRefused, match="template refused") as refused:
        message(template).render()

    assert refused.value.what == what
    assert compiled == []


def test_a_refusal_lists_what_may_be_used() -> None:
    with pytest.raises(TemplateRefused, match="'body' is not a field of the message: content, id, source, target"):
        check_template("{{ body }}")
    with pytest.raises(TemplateRefused, match="'center' is not an allowed filter: capitalize, default, length"):
        check_template("{{ content | center(80) }}")


def test_a_template_that_does_not_fit_the_message_is_refused_when_it_is_rendered() -> None:
    check_template("{{ content | truncate(1) }}")

    with pytest.raises(TemplateRefused) as refused:
        message("{{ content | truncate(1) }}").render()

    assert refused.value.what == "value"


def test_what_a_template_makes_has_a_limit() -> None:
    content = "x" * (OUTPUT_MAX_CHARS // 2)

    with pytest.raises(TemplateRefused) as refused:
        message("{{ content }}" * 100, content).render()

    assert refused.value.what == "output"
    assert len(message("{{ content }}", content).render()) == len(content)


def test_a_template_is_compiled_once_and_few_are_kept() -> None:
    templates._compiled.cache_clear()
    for number in range(CACHE_MAX + 50):
        check_template(f"{number} {{{{ content }}}}")

    assert templates._compiled.cache_info().currsize == CACHE_MAX
    before = templates._compiled.cache_info().misses
    for _ in range(10):
        message(f"{CACHE_MAX} {{{{ content }}}}").render()
    assert templates._compiled.cache_info().misses == before


def test_content_is_text_and_never_a_template() -> None:
    assert message("{{ content }}", "{{ 7 * 7 }}{% for %}").render() == "{{ 7 * 7 }}{% for %}"


MARKS = ["{{", "}}", "{%", "%}", "{#", "#}", "|", ".", "(", ")", "[", "]", "*", "~", "=", ",", "'a'", "10"]
WORDS = ["content", "for", "in", "if", "endif", "upper", "__class__", "is", "not", "format", "macro", "set"]
PIECES = st.sampled_from([*MARKS, *WORDS])


@given(st.lists(PIECES, max_size=20).map(" ".join))
def test_whatever_is_written_is_rendered_or_refused(template: str) -> None:
    try:
        shown = message(template).render()
    except TemplateRefused:
        return
    assert len(shown) <= 100 * (len(template) + 10)
