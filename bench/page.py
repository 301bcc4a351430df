"""Measure the page in Chromium: `make bench-page`. The time of the main thread to show a streamed answer.

Prints a table and, as its last line, one JSON object. `--quick` measures one answer.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from playwright.sync_api import CDPSession, Page, sync_playwright

from bench.support.page import CHARS, DELTAS
from bench.support.processes import TOKEN, server
from bench.support.report import Benchmark, Figures, Goal

GOALS = {"stream_main_thread_ms": Goal(600.0, at_most=True)}
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
DEADLINE_MS = 60_000
CHECK_INTERVAL_MS = 250  # a check is work for the page as well
ANSWER_COMPLETE = "document.querySelector('[aria-label=\"Copy answer\"]') !== null"
METRICS = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")


@dataclass(frozen=True, slots=True)
class PageScale:
    rounds: int


@contextmanager
def chromium_page() -> Iterator[Page]:
    path = os.environ.get("CHROMIUM") or next((found for name in CHROMIUM_NAMES if (found := shutil.which(name))), None)
    if path is None:
        raise SystemExit("bench: no Chromium; `scripts/ensure browser` installs one or explains how")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        page = browser.new_page(
            viewport={"width": 1360, "height": 860}, bypass_csp=True
        )  # so that the benchmark may run scripts
        page.set_default_timeout(DEADLINE_MS)
        yield page
        browser.close()


def main_thread_ms(cdp: CDPSession) -> dict[str, float]:
    """Milliseconds that the main thread has worked, in total and by kind of work."""
    metrics = {one["name"]: one["value"] for one in cdp.send("Performance.getMetrics")["metrics"]}
    return {name: metrics[name] * 1000 for name in METRICS}


def measure_answer(page: Page, cdp: CDPSession) -> dict[str, float]:
    """The main thread's time for one answer, from sending the question to the last piece."""
    page.get_by_role("button", name="New conversation").click()
    box = page.get_by_role("textbox", name="Message", exact=True)
    box.fill("go on")
    before = main_thread_ms(cdp)
    box.press("Enter")
    page.wait_for_function(ANSWER_COMPLETE, polling=CHECK_INTERVAL_MS)
    return {name: value - before[name] for name, value in main_thread_ms(cdp).items()}


def measure(figures: Figures, scale: PageScale) -> None:
    with (
        server("bench.support.page", "--token", TOKEN, token=TOKEN, path="/health") as gateway,
        chromium_page() as page,
    ):
        page.goto(f"http://127.0.0.1:{gateway.port}/#token={TOKEN}")
        page.get_by_role("banner").get_by_text("Live", exact=True).wait_for()
        cdp = page.context.new_cdp_session(page)
        # CPU time of the thread, not wall time: other processes may keep it waiting.
        cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
        rounds = [measure_answer(page, cdp) for _ in range(scale.rounds)]
    medians = {name: statistics.median(one[name] for one in rounds) for name in METRICS}
    script, layout, style = (medians[name] for name in METRICS[1:])
    note = f"{CHARS:,} characters in {DELTAS} pieces; script {script:.0f}, layout {layout:.0f}, style {style:.0f}"
    figures.add("stream_main_thread_ms", medians["TaskDuration"], note)


PARTS: dict[str, Callable[[Figures, PageScale], None]] = {"browser": measure}

if __name__ == "__main__":
    Benchmark("bench.page", __doc__ or "", GOALS, PARTS, PageScale(rounds=5), PageScale(rounds=1)).main()
