"""Parse source code in a test."""

from __future__ import annotations

import ast
import gc


def parse_module(text: str) -> ast.Module:
    """Parse as `ast.parse` does, without an interruption by another thread.

    In CPython 3.11 all threads share one depth counter of the parser, and a thread that prints a traceback parses too.
    The parser can be interrupted only while the garbage collector runs finalizers; it then raises
    `SystemError: AST constructor recursion depth mismatch`.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if enabled:
            gc.enable()
