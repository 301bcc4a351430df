"""The tool of the comparison as magent2 takes it: a function."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from work import note

__all__ = ["note"]
