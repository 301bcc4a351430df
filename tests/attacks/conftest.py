"""The fixtures of the browser tests: a browser, a gateway with the page, a signed-in user."""

from __future__ import annotations

from tests.browser.conftest import chromium, server, servers, user

__all__ = ["chromium", "server", "servers", "user"]
