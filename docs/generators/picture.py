"""Draws where in the cluster an environment's decisions are taken: SVG text, the same bytes for the same code."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ooco_gym.envs.decision import PARTNER, kinds

WIDTH, HEIGHT, LINE = 860, 344, 20
ONLINE, OFFLINE, DARK, ASKED, GREY, PALE = "#882255", "#DDCC77", "#857700", "#D55E00", "#666", "#F4F4F4"
_RELAXED, _STRICT, _TOP, _WIDE, _HIGH = 190, 560, 74, 270, 240  # the two instances: left edges, top, size


def picture(title: str, decisions: Sequence[str]) -> str:
    """The scheme of a co-located cluster with a mark where each of the given decisions is taken, and their actions.

    Args:
        title: above the picture.
        decisions: names of their kinds.
    """
    rows = _key(decisions)
    height = HEIGHT + LINE * len(rows) + 8
    labels = [str(number) if len(decisions) > 1 else "?" for number in range(1, len(decisions) + 1)]
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
             f'height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="12">',
             '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
             f'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{GREY}"/></marker></defs>',
             f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
             _text(16, 26, title, size=15, weight="bold"),
             *_cluster("route" in decisions, "control" in decisions), *_flows()]
    parts += [_disc(x, y, label) for name, label in zip(decisions, labels, strict=True)
              for x, y in kinds()[name].marks]
    parts += [_row(index, *row) for index, row in enumerate(rows)]
    return "\n".join([*parts, "</svg>", ""])


# --- The cluster ----------------------------------------------------------------------------------------------------
def _cluster(many: bool, knobs: bool) -> list[str]:
    parts = []
    for left, role in ((_RELAXED, "latency-relaxed"), (_STRICT, "latency-strict")):
        for shift in (12, 6, 0) if many else (0,):
            parts.append(_box(left + shift, _TOP - shift, _WIDE, _HIGH, "#fff", GREY))
        parts.append(_text(left + 12, _TOP + 20, f"{role} instance{'s' if many else ''}", weight="bold"))
    return [*parts, *_relaxed(), *_strict(), *(_knobs() if knobs else [])]


def _relaxed() -> list[str]:
    left = _RELAXED + 12
    parts = [_text(left, _TOP + 42, "waiting for prefill", GREY)]
    parts += [_box(left + 14 * index, _TOP + 48, 11, 14, ONLINE) for index in range(2)]
    parts += [_box(left + 14 * index, _TOP + 70, wide, 14, OFFLINE)
              for index, wide in ((0, 11), (1, 11), (2, 25), (4, 11), (5, 39), (8, 11))]
    parts += [_text(left + 34, _TOP + 60, "online", ONLINE), _text(left + 142, _TOP + 82, "offline", DARK),
              _arrow((left + 134, _TOP + 88), (left + 134, _TOP + 124)),
              _text(left, _TOP + 118, "what runs", GREY),
              _box(left, _TOP + 128, 242, 26, OFFLINE), _box(left, _TOP + 128, 96, 26, "#C9B652"),
              _text(left + 6, _TOP + 145, "prefill or step"), _text(left + 118, _TOP + 145, "… to its end", GREY)]
    return [*parts, *_memory(left, (("online", 46, ONLINE), ("offline residents", 168, OFFLINE)))]


def _strict() -> list[str]:
    left = _STRICT + 12
    heights = (36, 22, 48, 30, 44, 20, 36, 26, 40)
    parts = [_text(left, _TOP + 64, "a decode step: its batch", GREY)]
    parts += [_box(left + 18 * index, _TOP + 90 - high // 2 + 20, 15, high, ONLINE if index < 3 else OFFLINE)
              for index, high in enumerate(heights)]
    parts += [f'<path d="M{left + 178} {_TOP + 50}V{_TOP + 150}" stroke="#B00020" stroke-dasharray="5 3" '
              'stroke-width="1.6"/>',
              _text(left + 184, _TOP + 60, "TPOT SLO", "#B00020"),
              f'<path d="M{left} {_TOP + 138}H{left + 160}" stroke="{GREY}" marker-end="url(#tip)"/>',
              _text(left, _TOP + 154, "believed latency of the step", GREY)]
    return [*parts, *_memory(left, (("online", 88, ONLINE), ("offline", 112, OFFLINE)))]


def _memory(left: float, shares: Sequence[tuple[str, int, str]]) -> list[str]:
    top = _TOP + 184
    parts = [_text(left, top - 8, "KV memory", GREY), _box(left, top, 242, 28, PALE, GREY)]
    at = left
    for name, wide, colour in shares:
        parts += [_box(at, top, wide, 28, colour),
                  _text(at + 5, top + 18, name, "#fff" if colour == ONLINE else "#222")]
        at += wide
    return [*parts, _text(left, top + 46, "what is evicted is prefilled anew", GREY)]


def _knobs() -> list[str]:
    parts = [_text(_RELAXED + 12, 58, "the partner's parameters:", GREY)]
    for index in range(6):
        x, y, turn = _RELAXED + 190 + 28 * index, 54, (-5, 6, 0, 5, -6, 2)[index]
        parts.append(f'<circle cx="{x}" cy="{y}" r="9" fill="#fff" stroke="{GREY}"/>'
                     f'<path d="M{x} {y}l{turn} -7" stroke="{ASKED}" stroke-width="2"/>')
    return parts


def _flows() -> list[str]:
    middle = _RELAXED + _WIDE
    return [_text(16, 122, "online requests", ONLINE), _text(16, 138, "TTFT, TPOT promised", GREY, size=11),
            _arrow((16, 102), (_RELAXED - 2, 102), ONLINE),
            _text(16, 186, "offline requests", DARK), _text(16, 202, "throughput counts", GREY, size=11),
            _arrow((16, 166), (_RELAXED - 2, 166), DARK),
            _arrow((middle + 14, 136), (_STRICT - 2, 136), ONLINE),
            _text((middle + _STRICT) / 2 - 2, 160, "push", ONLINE, "middle"),
            _arrow((middle + 2, 256), (_STRICT - 2, 256), DARK),
            _text((middle + _STRICT) / 2 - 6, 282, "pull", DARK, "middle")]


# --- Decisions and their actions ------------------------------------------------------------------------------------
def _key(decisions: Sequence[str]) -> list[tuple[str, str, str]]:
    """Rows below the picture: (mark, text, weight)."""
    rows: list[tuple[str, str, str]] = []
    for index, name in enumerate(decisions):
        words = kinds()[name]
        rows.append((str(index + 1) if len(decisions) > 1 else "?", words.question, "bold"))
        if len(decisions) == 1 and words.take:
            rows += [("0", words.no, ""), ("1", PARTNER, ""), ("2 + k", f"{words.take} (k: {words.candidates})", "")]
    return rows


def _row(index: int, mark: str, words: str, weight: str) -> str:
    y = HEIGHT + LINE * index
    if weight:
        return _disc(28, y - 4, mark) + _text(44, y, words, weight=weight)
    return _text(44, y, mark, ASKED, weight="bold") + _text(92, y, words)


def _disc(x: float, y: float, label: str) -> str:
    return (f'<circle cx="{x:g}" cy="{y:g}" r="10" fill="{ASKED}" stroke="#fff" stroke-width="1.5"/>'
            + _text(x, y + 4.5, label, "#fff", "middle", weight="bold"))


# --- Shapes ---------------------------------------------------------------------------------------------------------
def _box(x: float, y: float, wide: float, high: float, fill: str, stroke: str = "none") -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" rx="2" fill="{fill}" stroke="{stroke}"/>'


def _arrow(start: tuple[float, float], end: tuple[float, float], colour: str = GREY) -> str:
    return (f'<path d="M{start[0]:g} {start[1]:g}L{end[0]:g} {end[1]:g}" stroke="{colour}" stroke-width="1.6" '
            'fill="none" marker-end="url(#tip)"/>')


def _text(x: float, y: float, words: str, fill: str = "#222", anchor: str = "start", size: int = 12,
          weight: str = "normal") -> str:
    return (f'<text x="{x:g}" y="{y:g}" fill="{fill}" text-anchor="{anchor}" font-size="{size}" '
            f'font-weight="{weight}">{escape(words)}</text>')
