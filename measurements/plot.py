"""Small line plots as plain SVG, without a library, readable on light and dark pages.

A plot has its own background, because a page's theme may differ from the system's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]
_WIDTH, _HEIGHT = 300, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 22, 60, 40
_STYLE = """
svg{--ground:#fff;--ink:#1f2328;--quiet:#59636e;--grid:#d8dee4;--s0:#0b62c4;--s1:#b94b00;--s2:#5b7f00}
@media(prefers-color-scheme:dark){
svg{--ground:#0d1117;--ink:#e6edf3;--quiet:#9198a1;--grid:#30363d;--s0:#6cb2ff;--s1:#ff9f5a;--s2:#b4d455}}
.ground{fill:var(--ground)}
text{font:11px system-ui,sans-serif;fill:var(--quiet)}
.title{font-size:13px;font-weight:600;fill:var(--ink)}
.grid{stroke:var(--grid)}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
.ideal{stroke-dasharray:5 4}
""" + "".join(f".s{n}{{stroke:var(--s{n})}}.d{n}{{fill:var(--s{n})}}" for n in range(3))


@dataclass(frozen=True)
class Series:
    """One line: its name in the legend and its points."""

    name: str
    points: Sequence[Point]
    ideal: bool = False
    """Dashed: the theoretical optimum, not measured."""


@dataclass(frozen=True)
class Panel:
    """One plot: x logarithmic with a tick for every measured size, y linear from zero."""

    title: str
    x_label: str
    series: Sequence[Series]
    log_y: bool = False


def draw(label: str, panels: Sequence[Panel]) -> str:
    """Return the panels side by side as one SVG; ``label`` is the text for screen readers.

    Panels without data are left out.
    """
    panels = [panel for panel in panels if any(series.points for series in panel.series)]
    width = _WIDTH * len(panels)
    drawn = "".join(
        f'<g transform="translate({_WIDTH * place})">{_panel(panel)}</g>'
        for place, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" '
        f'width="{width}" height="{_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"<style>{_STYLE}</style>"
        f'<rect class="ground" width="{width}" height="{_HEIGHT}" rx="6"/>{drawn}</svg>\n'
    )


def _panel(panel: Panel) -> str:
    points = [point for series in panel.series for point in series.points]
    sizes = sorted({x for x, _ in points})
    axis = _Axes(sizes[0], sizes[-1], _ticks([y for _, y in points], panel.log_y), panel.log_y)
    parts = [
        f'<text class="title" x="{_LEFT}" y="20">{escape(panel.title)}</text>',
        *(_y_mark(axis, tick) for tick in axis.ticks),
        *(
            _text(axis.x(size), _HEIGHT - 24, _short(size), "middle")
            for size in _apart(axis, sizes)
        ),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, panel.x_label, "middle"),
    ]
    x = float(_LEFT)
    measured = [series for series in panel.series if series.points]
    for number, series in enumerate(measured):
        parts.append(_line(axis, number, series))
        if len(measured) > 1:
            parts.append(f'<rect class="d{number}" x="{x:.0f}" y="33" width="10" height="3"/>')
            parts.append(_text(x + 14, 38, series.name))
            x += 28 + 6 * len(series.name)
    return "".join(parts)


@dataclass(frozen=True)
class _Axes:
    """Maps values to positions in the plot."""

    least: float
    most: float
    ticks: Sequence[float]
    log_y: bool

    def x(self, size: float) -> float:
        span = math.log(self.most / self.least) or 1.0
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log(size / self.least) / span

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        if self.log_y:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)


def _ticks(values: Sequence[float], log_y: bool) -> list[float]:
    """Return round ticks from zero (or, logarithmic, a power of ten) to above every value."""
    most = max(values)
    assert most > 0, "a cost is never negative"
    if log_y:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(most))
        return [10.0**power for power in range(low, max(high, low + 1) + 1)]
    power = 10.0 ** math.floor(math.log10(most))
    step = next(part * power for part in (0.2, 0.5, 1, 2, 5) if 5 * part * power >= most)
    return [number * step for number in range(math.ceil(most / step) + 1)]


def _apart(axis: _Axes, sizes: Sequence[float]) -> list[float]:
    """Leave out ticks that would overlap the one before; the last always stays."""
    kept: list[float] = []
    for size in reversed(sizes):
        if not kept or axis.x(kept[-1]) - axis.x(size) >= 26:
            kept.append(size)
    return kept


def _line(axis: _Axes, number: int, series: Series) -> str:
    places = [(axis.x(x), axis.y(y)) for x, y in series.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    line = f'<path class="line s{number}{" ideal" * series.ideal}" d="{path}"/>'
    dots = [f'<circle class="d{number}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places]
    return line + "".join(dots) * (not series.ideal)


def _y_mark(axis: _Axes, tick: float) -> str:
    y = axis.y(tick)
    line = f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + _text(_LEFT - 6, y + 4, _short(tick), "end")


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
