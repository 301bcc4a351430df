"""The command `magent2` with a gateway that discards the rest of a refused request for as long as a test may take."""

from __future__ import annotations

from unittest.mock import patch

from magent2.cli.main import main
from magent2.gateway.limits import protocol

LINGER_S = 60.0

if __name__ == "__main__":
    with patch.object(protocol, "CLOSE_LINGER_S", LINGER_S):
        main()
