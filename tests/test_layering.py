"""Imports point down only: the table in docs/ARCHITECTURE.md, enforced."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "penstock"

# What each module may import of ours, besides itself.
BOTTOM = {"model", "errors", "clock", "machine", "settings", "telemetry", "wire", "sockets"}
ALLOWED: dict[str, set[str]] = {
    "model": set(),
    "errors": set(),
    "clock": {"model", "errors"},
    "machine": set(),
    "settings": {"model", "errors"},
    "telemetry": {"model", "errors"},
    "wire": set(),
    "sockets": set(),
    "records": {"model", "errors"},
    "log": {*BOTTOM, "records"},
    "metadata": {*BOTTOM},
    "groups": {*BOTTOM, "metadata"},
    "cluster": {*BOTTOM, "records", "log", "metadata"},
    "broker": {*BOTTOM, "records", "log", "metadata", "groups", "cluster"},
    "kafka": {*BOTTOM, "records", "log", "metadata", "groups", "cluster", "broker"},
    "client": {*BOTTOM, "records"},
    "spark": {*BOTTOM, "records", "client"},
    "processes": {*BOTTOM, "records", "client"},
}
# These stand on top of everything; only the command itself and tests stand on them.
TOPS = {"cli", "demo", "testing", "__main__"}


def imports_of(path: Path) -> Iterator[str]:
    """The modules of ours that a file imports, those for type checking too, as their first name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [node.module or ""]
            if node.module == "penstock":
                names = [f"penstock.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "penstock" and rest:
                yield rest.partition(".")[0]


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def test_every_module_has_its_place_in_the_table() -> None:
    assert {layer_of(path) for path in modules()} == ALLOWED.keys() | TOPS


@pytest.mark.parametrize("layer", ALLOWED)
def test_imports_point_down_only(layer: str) -> None:
    allowed = ALLOWED[layer] | {layer, "__version__"}
    for path in modules():
        if layer_of(path) == layer:
            upward = set(imports_of(path)) - allowed
            assert not upward, f"{path.relative_to(SOURCE)} imports {', '.join(sorted(upward))}"


def test_records_and_the_log_know_nothing_of_the_wire() -> None:
    """The storage layers work without kio's messages: only its list of error codes is shared."""
    for path in modules():
        if layer_of(path) in {"records", "log", "metadata", "groups"}:
            text = path.read_text(encoding="utf-8")
            assert "import kio" not in text, path
            assert "from kio" not in text, path


def test_only_the_demo_imports_what_is_made_for_tests() -> None:
    importers = {
        str(path.relative_to(SOURCE))
        for path in modules()
        if layer_of(path) != "testing" and "testing" in imports_of(path)
    }
    assert importers <= {"cli/demo.py"}


@pytest.mark.parametrize(
    "code",
    [
        "from penstock.kafka.api import Api",
        "import penstock.kafka",
        "from penstock import kafka",
        "def late():\n    from penstock.kafka import api",
        "try:\n    import penstock.kafka.api\nexcept ImportError:\n    pass",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from penstock.kafka import api",
    ],
)
def test_no_import_is_overlooked(tmp_path: Path, code: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(code)
    assert set(imports_of(path)) == {"kafka"}
