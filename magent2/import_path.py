"""Objects of the operator's own modules, by import path (`module:attribute`)."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from magent2.errors import SettingsError

PATH_MAX_CHARS = 200  # of a path in a message


def import_attribute(path: str, folder: Path | None = None, *, what: str = "") -> object:
    """Return the object at `module:attribute`. Modules are looked for in `folder` first. `what` it is starts the error.

    A module that was imported is not imported again. Raises `SettingsError` if it cannot be imported, whatever its own
    code raises, or has no such attribute.
    """
    module, _, attribute = path.partition(":")
    if folder is not None and str(folder.absolute()) not in sys.path:
        sys.path.insert(0, str(folder.absolute()))
    try:
        target: object = import_module(module)
        for step in attribute.split("."):
            target = getattr(target, step)
    except Exception as error:  # the module is foreign code, which may raise anything
        named = f"{what}: {path[:PATH_MAX_CHARS]!r}" if what else f"{path[:PATH_MAX_CHARS]!r}"
        raise SettingsError(f"{named} cannot be loaded ({type(error).__name__}: {error})") from error
    return target
