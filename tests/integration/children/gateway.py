"""A gateway process: the real command.

Settings: `arguments`, those of its command line. What it prints goes to stderr.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

from magent2.gateway.__main__ import main
from tests.support.processes import settings

if __name__ == "__main__":
    given = settings()
    with redirect_stdout(sys.stderr):
        sys.exit(main(given["arguments"]))
