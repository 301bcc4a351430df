"""`python -m magent2.worker` runs the same command as `magent2 worker`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from magent2.runner.config import RunnerConfig
from magent2.runner.select import select_runner
from magent2.worker.runner_adapter import Runner


def main(arguments: Sequence[str] | None = None) -> int:
    from magent2.cli.main import run
    from magent2.cli.serve import worker

    return run(sys.argv[1:] if arguments is None else arguments, worker, "python -m magent2.worker")


def build_runner(model: str | None = None, config: RunnerConfig | None = None) -> Runner:
    """Return the runner of one agent, for a `Worker`.

    Without OPENAI_API_KEY it echoes, else it runs the Agents SDK. The models `demo` and `local` need no key.
    """
    return select_runner(model, config)


if __name__ == "__main__":
    sys.exit(main())
