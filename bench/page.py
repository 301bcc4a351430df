"""The page, measured in Chromium: `make bench-page`. What it costs the browser to show an answer that streams.

Prints a table and, as its last line, one JSON object. `--quick` shows one answer.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from playwright.sync_api import CDPSession, Page, sync_playwright

from bench.support import Benchmark, Figures, Goal
from bench.support_page import CHARS, DELTAS
from bench.support_processes import TOKEN, server

GOALS = {"stream_main_thread_ms": Goal(600.0, at_most=True)}
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
DEADLINE_MS = 60_000
LOOK_AGAIN_MS = 250  # to look is work for the page too
WHOLE = "document.querySelector('[aria-label=\"Copy answer\"]') !== null"
STEPS = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")


@dataclass(frozen=True, slots=True)
class PageScale:
    rounds: int


@contextmanager
def chromium_page() -> Iterator[Page]:
    path = os.environ.get("CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        raise SystemExit("bench: no Chromium; `scripts/ensure browser` installs one or says how")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1360, "height": 860}, bypass_csp=True)  # for our own looking
        page.set_default_timeout(DEADLINE_MS)
        yield page
        browser.close()


def spent(cdp: CDPSession) -> dict[str, float]:
    """Milliseconds that the main thread has worked, in all and at what."""
    found = {one["name"]: one["value"] for one in cdp.send("Performance.getMetrics")["metrics"]}
    return {name: found[name] * 1000 for name in STEPS}


def show_one(page: Page, cdp: CDPSession) -> dict[str, float]:
    """What one answer has cost, from the question to the last piece."""
    page.get_by_role("button", name="New conversation").click()
    box = page.get_by_role("textbox", name="Message", exact=True)
    box.fill("go on")
    before = spent(cdp)
    box.press("Enter")
    page.wait_for_function(WHOLE, polling=LOOK_AGAIN_MS)
    return {name: value - before[name] for name, value in spent(cdp).items()}


def measure(figures: Figures, scale: PageScale) -> None:
    with server("bench.support_page", "--token", TOKEN, token=TOKEN, path="/health") as house, chromium_page() as page:
        page.goto(f"http://127.0.0.1:{house.port}/#token={TOKEN}")
        page.get_by_role("banner").get_by_text("Live", exact=True).wait_for()
        cdp = page.context.new_cdp_session(page)
        # What the thread worked, not how long others kept it waiting.
        cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
        found = [show_one(page, cdp) for _ in range(scale.rounds)]
    middle = {name: statistics.median(one[name] for one in found) for name in STEPS}
    script, layout, style = (middle[name] for name in STEPS[1:])
    note = f"{CHARS:,} characters in {DELTAS} pieces; script {script:.0f}, layout {layout:.0f}, style {style:.0f}"
    figures.add("stream_main_thread_ms", middle["TaskDuration"], note)


PARTS: dict[str, Callable[[Figures, PageScale], None]] = {"browser": measure}

if __name__ == "__main__":
    Benchmark("bench.page", __doc__ or "", GOALS, PARTS, PageScale(rounds=5), PageScale(rounds=1)).main()
