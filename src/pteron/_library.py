"""Libraries of custom operators and backends, built against the official SDK."""

from __future__ import annotations

import os
from typing import Any

from pteron.errors import ArgumentError

_loaded: list[Any] = []  # what a library registered points into it: never unloaded


def load_library(path: str | os.PathLike[str]) -> None:
    """Load a library that registers operators or backends, for all programs loaded from then on.

    The library may be built against the ExecuTorch SDK of the official wheel, version 1.5.1. It is
    loaded from a private copy, in which its need for ``libexecutorch`` is turned to pteron's own
    runtime, so that what it registers is found here and not by the official bindings.

    Raises:
        OSError: There is no such file, or something that it needs is missing.
        ArgumentError: It is no shared library (also ValueError).
    """
    import ctypes  # rarely needed: not worth the time at import
    import tempfile
    from pathlib import Path

    from pteron import _elf

    source = Path(path).absolute()
    try:
        data = _elf.rename(source.read_bytes())
    except ValueError as error:
        raise ArgumentError(f"{source}: {error}") from None
    with tempfile.TemporaryDirectory(prefix="pteron-") as folder:
        copy = Path(folder, _elf.renamed(source.name))
        copy.write_bytes(data)
        # $ORIGIN in its run path is the folder of the copy: show it the original's neighbours.
        for neighbour in source.parent.glob("*.so*"):
            if neighbour != source and neighbour.name != copy.name:
                Path(folder, neighbour.name).symlink_to(neighbour)
        _loaded.append(ctypes.CDLL(str(copy), mode=os.RTLD_NOW | os.RTLD_LOCAL))
