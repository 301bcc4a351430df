"""Run a script in a forked process: `start_module("tests.support.run_script", ["example.py"], ...)`."""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
