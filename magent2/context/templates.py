"""Templates of messages: a small, safe subset of Jinja2.

The sender of a message writes its template, so it is untrusted. Jinja2's sandbox protects Python's internals, but not
against endless loops or exhausted memory. Therefore the syntax tree is checked first, and only templates whose output
cannot grow beyond a constant factor of their input are compiled.

| allowed | for example |
|---|---|
| text | `[URGENT]` |
| the message's fields: id, content, source, target, timestamp | `{{ content }}` |
| `if`, `elif`, `else`, also inline, with `and or not == != in` | `{% if source == "user" %}…{% endif %}` |
| filters: capitalize, default, length, lower, trim, truncate, upper | `{{ content \\| truncate(80) }}` |

As in Jinja2, the last newline of a template is not part of its output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from jinja2 import Environment, Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from magent2.context.bus import CONTENT_MAX_CHARS
from magent2.errors import TemplateRefused

SOURCE_MAX_CHARS = 2_000
OUTPUT_MAX_CHARS = CONTENT_MAX_CHARS + SOURCE_MAX_CHARS
FILTERS_MAX = 8  # in one template; each filter processes the whole content
CACHE_MAX = 256  # compiled templates

FIELDS: Final = frozenset({"id", "content", "source", "target", "timestamp"})
# Name → the number of arguments that it takes
FILTERS: Final = {"capitalize": 0, "default": 2, "length": 0, "lower": 0, "trim": 0, "truncate": 2, "upper": 0}
COMPARISONS: Final = frozenset({"eq", "ne", "in", "notin"})

# Nodes whose output is at most a constant times their input
ALLOWED_NODES: Final = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.If,
    nodes.CondExpr,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Keyword,
    nodes.List,
    nodes.Tuple,
)
# Kind of node → its machine-readable code, and its name in the error message
REFUSED_NODES: Final[tuple[tuple[type[nodes.Node], str, str], ...]] = (
    (nodes.For, "loop", "a loop (for)"),
    (nodes.Call, "call", "a call"),
    (nodes.Macro, "macro", "a macro"),
    (nodes.CallBlock, "macro", "a macro's call block"),
    (nodes.Getattr, "attribute", "an attribute (.)"),
    (nodes.Getitem, "subscript", "a subscript ([])"),
    (nodes.Concat, "arithmetic", "a concatenation (~)"),
    (nodes.BinExpr, "arithmetic", "arithmetic"),
    (nodes.UnaryExpr, "arithmetic", "arithmetic"),
    (nodes.Assign, "assignment", "an assignment (set)"),
    (nodes.AssignBlock, "assignment", "an assignment (set)"),
    (nodes.Include, "include", "an include"),
    (nodes.Import, "import", "an import"),
    (nodes.FromImport, "import", "an import"),
    (nodes.Extends, "extends", "an extends"),
    (nodes.Block, "block", "a block"),
    (nodes.FilterBlock, "filter", "a filter block"),
    (nodes.Test, "test", "a test (is)"),
    (nodes.Node, "part", "a part that is not allowed"),
)


def check_template(source: str) -> None:
    """Raise `TemplateRefused`, with the reason, for a template that cannot be rendered."""
    _compiled(source)


def render(source: str, fields: Mapping[str, str | None]) -> str:
    """Render the template with the fields of a message, or raise `TemplateRefused`."""
    template = _compiled(source)
    parts: list[str] = []
    size = 0
    try:
        for part in template.root_render_func(template.new_context(dict(fields), shared=True)):
            size += len(part)
            if size > OUTPUT_MAX_CHARS:
                raise TemplateRefused(
                    "output", f"its output is over {OUTPUT_MAX_CHARS:,} characters; shorten the content"
                )
            parts.append(part)
    except (TemplateError, TypeError, AssertionError) as error:  # such as the length of a number
        raise TemplateRefused("value", f"it does not fit the message: {error}") from error
    return "".join(parts)


@lru_cache(maxsize=CACHE_MAX)
def _compiled(source: str) -> Template:
    if len(source) > SOURCE_MAX_CHARS:
        raise TemplateRefused("size", f"it is over {SOURCE_MAX_CHARS:,} characters; put the text into the content")
    environment = _environment()
    try:
        parsed = environment.parse(source)
        _check(parsed)
        return environment.from_string(parsed)
    except TemplateSyntaxError as error:
        raise TemplateRefused("syntax", f"line {error.lineno}: {error.message}") from error
    except (RecursionError, SyntaxError) as error:  # too deep for the parser or for the generated Python code
        raise TemplateRefused("depth", "it is nested too deeply") from error


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = ImmutableSandboxedEnvironment(finalize=_empty_for_none, cache_size=0)
    environment.filters = {name: environment.filters[name] for name in FILTERS}
    environment.tests = {}
    environment.globals = {}
    environment.policies["truncate.leeway"] = 0  # `truncate(80)` yields at most 80 characters
    return environment


def _empty_for_none(value: object) -> object:
    """Render a field that the message does not have as empty text, not as the word None."""
    return "" if value is None else value


def _check(parsed: nodes.Template) -> None:
    filters = 0
    for node in _walk(parsed):
        filters += isinstance(node, nodes.Filter)
        _check_node(node)
    if filters > FILTERS_MAX:
        raise TemplateRefused("filters", f"it has {filters} filters; at most {FILTERS_MAX} are allowed")


def _walk(node: nodes.Node) -> Iterator[nodes.Node]:
    yield node
    for child in node.iter_child_nodes():
        yield from _walk(child)


def _check_node(node: nodes.Node) -> None:
    if isinstance(node, nodes.Name):
        if node.ctx != "load" or node.name not in FIELDS:
            fields = ", ".join(sorted(FIELDS))
            raise TemplateRefused("name", f"{node.name[:80]!r} is not a field of the message: {fields}")
    elif isinstance(node, nodes.Filter):
        _check_filter(node)
    elif isinstance(node, nodes.Operand):
        if node.op not in COMPARISONS:
            raise TemplateRefused("comparison", f"it compares with {node.op!r}; use ==, !=, in, not in")
    elif not isinstance(node, (*ALLOWED_NODES, nodes.Compare, nodes.Const)):
        word, name = next((word, name) for kind, word, name in REFUSED_NODES if isinstance(node, kind))
        raise TemplateRefused(word, f"it has {name}; only text, the message's fields, if and filters are allowed")


def _check_filter(node: nodes.Filter) -> None:
    if node.name not in FILTERS:
        raise TemplateRefused("filter", f"{node.name[:80]!r} is not an allowed filter: {', '.join(sorted(FILTERS))}")
    plain = all(isinstance(argument, nodes.Const) for argument in node.args)
    if not plain or len(node.args) > FILTERS[node.name] or node.kwargs or node.dyn_args or node.dyn_kwargs:
        raise TemplateRefused("filter", f"{node.name!r} takes at most {FILTERS[node.name]} constant arguments")
