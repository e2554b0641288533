"""How figures are written."""


def number(value: float | None) -> str:
    """Three significant figures, thousands separated: 3,310,000 · 41.2 · 0.0123."""
    if value is None:
        return "–"
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"
