"""How figures are written, and in which tables."""

import inspect
import statistics
from collections.abc import Callable, Mapping
from typing import Any

# metric key -> broker or variant -> one value for each round
Samples = Mapping[str, Mapping[str, list[float]]]


def number(value: float | None) -> str:
    """Three significant figures, thousands separated: 3,310,000 · 41.2 · 0.0123."""
    if value is None:
        return "–"
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def median(samples: Samples, key: str, variant: str) -> float | None:
    """None where that variant has no such value."""
    values = samples.get(key, {}).get(variant)
    return statistics.median(values) if values else None


def bullets(facts: Mapping[str, str]) -> str:
    return "\n".join(f"- {key}: {value}" for key, value in facts.items())


def how(measured: Mapping[str, Callable[..., Any]]) -> str:
    """What the docstring of each measurement says of how its figures were obtained."""
    return "\n".join(
        f"- **{name}**: {' '.join((inspect.getdoc(run) or '').split())}"
        for name, run in measured.items()
    )


def spread_table(samples: Samples, variant: str) -> str:
    """Every value with its median, least and greatest. `variant` names the second column."""
    lines = [f"| value | {variant} | median | min | max | rounds |", "|---|---|--:|--:|--:|--:|"]
    for key, variants in samples.items():
        for name, values in variants.items():
            figures = map(number, (statistics.median(values), min(values), max(values)))
            lines.append(f"| {key} | {name} | {' | '.join(figures)} | {len(values)} |")
    return "\n".join(lines)
