"""`python -m magent2.cli` is the same program as `magent2`."""

from __future__ import annotations

from magent2.cli.main import main

if __name__ == "__main__":
    main()
