"""Draws docs/images/architecture.svg: where the bytes of a big model live, and the way of one token through the code.

    python tools/draw_architecture.py

The bytes are those of Qwen3.6-35B-A3B in the int8 recipe: 40 layers of 256 experts, 8 chosen for each token.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

OUTPUT = Path(__file__).parent.parent / "docs" / "images" / "architecture.svg"

WIDTH, HEIGHT = 960, 470
INK, PAPER, QUIET = "#1f2933", "#ffffff", "#52606d"
DENSE, CACHE, DISK, NATIVE = "#9fb3c8", "#f0b429", "#d9e2ec", "#b44d12"

EXPERT_BYTES = 3.01 * 2**20
LAYERS, EXPERTS, TOP_K = 40, 256, 8
CACHED_SHARE = 0.25

HOPS = (
    ("cli/run", "the prompt and the budget"),
    ("engine/generate", "one step after another"),
    ("models/qwen3_5_moe", "mixers and experts by layer"),
    ("layers/moe", "the router chooses"),
    ("experts", "resident or streaming"),
    ("native/moe", "multiplies, sums by expert id"),
    ("native/cache", "leases; a miss becomes a read"),
    ("native/io", "whole experts, direct I/O"),
)


def main() -> None:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="14">',
        rect(0, 0, WIDTH, HEIGHT, PAPER),
        *memory(30, 50),
        *hops(490, 50),
        "</svg>",
    ]
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text("\n".join(parts) + "\n", encoding="utf-8")


def memory(x: float, y: float) -> list[str]:
    """RAM with the dense weights and the cache; below it the SSD with all experts."""
    total = LAYERS * EXPERTS * EXPERT_BYTES / 2**30
    token = LAYERS * TOP_K * EXPERT_BYTES / 2**30
    caption = f"{LAYERS} x {EXPERTS} experts, int8: {total:.1f} GiB; {token:.2f} GiB a token"
    return [
        text(x, y - 18, "Where the bytes live", weight="bold"),
        rect(x, y, 420, 150, PAPER, stroke=INK),
        text(x + 12, y + 24, "RAM, within --ram"),
        rect(x + 12, y + 38, 156, 98, DENSE),
        text(x + 24, y + 62, "dense weights,"),
        text(x + 24, y + 82, "state, activations:"),
        text(x + 24, y + 102, "always resident"),
        rect(x + 180, y + 38, 228, 98, CACHE),
        text(x + 192, y + 62, "expert cache: a bounded"),
        text(x + 192, y + 82, "arena; experts are leased"),
        text(x + 192, y + 102, "while one layer computes"),
        arrow(x + 294, y + 238, y + 152),
        text(x + 12, y + 190, "misses: whole experts, several", QUIET),
        text(x + 12, y + 210, "in flight, every hash checked", QUIET),
        rect(x, y + 240, 420, 150, PAPER, stroke=INK),
        text(x + 12, y + 264, "SSD: the container"),
        *experts(x + 12, y + 278),
        text(x + 12, y + 376, caption, QUIET),
    ]


def experts(x: float, y: float) -> list[str]:
    """A field of experts, a share of which is in the cache."""
    columns, rows = 40, 8
    field = []
    for column in range(columns):
        for row in range(rows):
            is_cached = (column * 7 + row * 13) % columns < columns * CACHED_SHARE
            field.append(
                rect(x + column * 9.9, y + row * 9, 8.4, 7.4, CACHE if is_cached else DISK)
            )
    return field


def hops(x: float, y: float) -> list[str]:
    """The numbered way of a token, top to bottom; native code is set apart by its border."""
    parts = [text(x, y - 18, "The way of one token", weight="bold")]
    for number, (name, what) in enumerate(HOPS, 1):
        top = y + (number - 1) * 49
        is_native = name.startswith("native/")
        parts.append(rect(x, top, 440, 36, PAPER, stroke=NATIVE if is_native else INK))
        parts.append(text(x + 12, top + 23, f"{number}  {name}"))
        parts.append(text(x + 198, top + 23, what, QUIET))
        if number < len(HOPS):
            parts.append(arrow(x + 84, top + 37, top + 48))
    parts.append(text(x, y + 8 * 49 + 10, "red border: C++, entered once a layer", QUIET))
    return parts


def rect(x: float, y: float, width: float, height: float, fill: str, stroke: str = "none") -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def text(x: float, y: float, words: str, fill: str = INK, weight: str = "normal") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{fill}" font-weight="{weight}">{escape(words)}</text>'


def arrow(x: float, start: float, end: float) -> str:
    head = 5 if end > start else -5
    return (
        f'<path d="M{x:g} {start:g}V{end:g}M{x - 4:g} {end - head:g}L{x:g} {end:g}L{x + 4:g} {end - head:g}" '
        f'stroke="{INK}" fill="none" stroke-width="1.5"/>'
    )


if __name__ == "__main__":
    main()
