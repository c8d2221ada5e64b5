#!/usr/bin/env python3
"""Draws divergence against the average bits of decoding, for schedules and their controls, as an SVG.

  crumb-lab schedules NESTED --text test.txt --against MODEL --csv schedules.csv
  bench/schedule_plot.py schedules.csv --out docs/schedules.svg

A point is a schedule; those of one kind are joined where more bits follow fewer.
"""
import argparse
import csv
import math
import sys
from xml.sax.saxutils import escape

from attention_plot import FONT, STYLE, spread, text

# The kind of a schedule by a part of its name, the first that fits; colours are readable on both grounds.
KINDS = [("uniform", "uniform", "#7a828c"), ("sparse", "dense and sparse", "#a8742a"),
         ("alternating", "alternating", "#c4501b"), ("random", "random switch point", "#8a6a00"),
         ("third", "low in one third", "#b0417a"), ("sure", "by certainty", "#7b5fc0"),
         ("file", "static, learned", "#3a7f8c"), ("to 3", "4, then 3 bits", "#12916c"),
         ("", "4, then 2 bits", "#1f7ac4")]
WIDTH, HEIGHT = 860, 560
LEFT, RIGHT, TOP, BOTTOM = 78, 170, 92, 72  # margins of the plot


def fail(message):
    sys.exit(f"schedule_plot.py: {message}")


def read(path):
    """{kind: [(bits, divergence, name)]} in the order of bits."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = {row["schedule"]: (float(row["bits"]), float(row["kl"])) for row in csv.DictReader(file)}
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except (KeyError, TypeError, ValueError):
        fail(f"{path} is not what crumb-lab schedules --csv writes")
    kinds = {}
    for name, (bits, divergence) in rows.items():
        if divergence > 0:
            kind = next(kind for part, kind, _ in KINDS if part in name)
            kinds.setdefault(kind, []).append((bits, divergence, name))
    if not kinds:
        fail(f"{path} has no schedules")
    return {kind: sorted(points) for kind, points in kinds.items()}


def draw(kinds, title):
    points = [p for line in kinds.values() for p in line]
    x0, x1 = min(p[0] for p in points) - 0.1, max(p[0] for p in points) + 0.1
    y0, y1 = math.log10(min(p[1] for p in points)) - 0.1, math.log10(max(p[1] for p in points)) + 0.1
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    place_x = lambda bits: LEFT + (bits - x0) / (x1 - x0) * (right - LEFT)
    place_y = lambda kl: bottom - (math.log10(kl) - y0) / (y1 - y0) * (bottom - TOP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
           f'height="{HEIGHT}" font-family="{FONT}" role="img">', f"<title>{escape(title)}</title>", STYLE,
           f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" class="ground"/>',
           text(LEFT, 36, title, 18, more='font-weight="600"'),
           text(LEFT, 62, "mean KL divergence from full precision on the text's own continuation", 14, kind="soft")]
    for bits in [b / 4 for b in range(math.ceil(x0 * 4), math.floor(x1 * 4) + 1)]:
        x = place_x(bits)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" class="grid"/>')
        out.append(text(x, bottom + 20, f"{bits:g}", 13, "middle", "soft"))
    for decade in range(math.floor(y0), math.ceil(y1) + 1):
        for step in (1, 2, 5):
            kl = step * 10.0 ** decade
            if y0 <= math.log10(kl) <= y1:
                y = place_y(kl)
                out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="grid"/>')
                out.append(text(LEFT - 8, y + 4.5, f"{kl:g}", 13, "end", "soft"))
    out.append(f'<rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}" class="frame"/>')
    out.append(text((LEFT + right) / 2, bottom + 46, "average bits per weight of decoding steps", 14, "middle"))
    out.append(text(0, 0, "nats", 14, "middle",
                    more=f'transform="translate(26 {(TOP + bottom) / 2:.0f}) rotate(-90)"'))
    shown = [(kind, colour) for _, kind, colour in KINDS if kind in kinds]
    heights = spread([TOP + 8 + 30 * i for i in range(len(shown))], 24, TOP + 8, bottom - 8)
    for (kind, colour), at in zip(shown, heights):
        line = kinds[kind]
        if kind == "uniform" or "then" in kind:
            # What is worse than another with fewer bits is left out of the line.
            best, path = math.inf, []
            for bits, kl, _ in line:
                if kl < best:
                    best = kl
                    path.append(f"{place_x(bits):.1f},{place_y(kl):.1f}")
            out.append(f'<polyline points="{" ".join(path)}" fill="none" stroke="{colour}" stroke-width="1.6" '
                       f'opacity="0.7"/>')
        out += [f'<circle cx="{place_x(b):.1f}" cy="{place_y(kl):.1f}" r="4.5" fill="{colour}"><title>'
                f"{escape(f'{name}: {b:.2f} bits, {kl:.4f} nats')}</title></circle>" for b, kl, name in line]
        out.append(f'<circle cx="{right + 18}" cy="{at - 4:.1f}" r="5" fill="{colour}"/>')
        out.append(text(right + 30, at, kind, 13))
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("csv", help="what crumb-lab schedules --csv FILE wrote")
    parser.add_argument("--title", default="Schedules of precision", help="default: Schedules of precision")
    parser.add_argument("--out", default="schedules.svg", help="default: schedules.svg")
    args = parser.parse_args()
    try:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(draw(read(args.csv), args.title))
    except OSError as error:
        fail(f"cannot write {args.out}: {error.strerror}")


if __name__ == "__main__":
    main()
