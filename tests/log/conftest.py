from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.log.support import Disk


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """An empty log with default settings."""
    return Disk(tmp_path / "topic" / "0")


@pytest.fixture
def make_disk(tmp_path: Path) -> Callable[..., Disk]:
    """An empty log with the settings given."""

    def make(**settings: Any) -> Disk:
        return Disk(tmp_path / "topic" / "0", **settings)

    return make
