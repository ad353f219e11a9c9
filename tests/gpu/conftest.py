"""What the tests on a GPU share."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_fakes import unpack_goldens


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The goldens, unpacked."""
    return unpack_goldens(tmp_path_factory.mktemp("goldens"))
