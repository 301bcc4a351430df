"""`magent2 serve --workers N --gateways N`, whose processes are forked instead of started as new programs.

Settings: `workers`, `gateways`, `bus` and `config`, the agents file. The model is the demo model, the port a free one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from magent2.cli.main import exit_code_of, text_of_error
from magent2.cli.options import ListenOptions
from magent2.cli.output import print_note
from magent2.cli.processes.supervisor import ServeOptions, serve_processes, start_program
from magent2.errors import Magent2Error
from magent2.telemetry import setup_logging
from tests.support.forked_processes import ForkedForkServer, ForkedProcess, use_fork_server
from tests.support.processes import settings


def start_forked(arguments: Sequence[str], files: Sequence[int], stderr: int) -> subprocess.Popen[bytes]:
    """As `start_program`."""
    return ForkedProcess(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=files,
        start_new_session=True,
    )


def main() -> int:
    given = settings()
    start = start_program
    if sys.platform == "linux":
        use_fork_server(ForkedForkServer())
        start = start_forked
    setup_logging("text")
    options = ServeOptions(
        workers=given["workers"],
        gateways=given["gateways"],
        agents=(),
        model="demo",
        config=Path(given["config"]),
        listen=ListenOptions("127.0.0.1", 0),
        bus=given["bus"],
    )
    try:
        return serve_processes(options, start)
    except Magent2Error as error:
        print_note(f"magent2: {text_of_error(error, 'serve')}")
        return exit_code_of(error)


if __name__ == "__main__":
    sys.exit(main())
