"""`python -m magent2.gateway` runs the same command as `magent2 gateway`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    from magent2.cli.main import run
    from magent2.cli.serve import gateway

    return run(sys.argv[1:] if arguments is None else arguments, gateway, "python -m magent2.gateway")


if __name__ == "__main__":
    sys.exit(main())
