#!/usr/bin/env python3
"""Draws how much of their width the codes of a cache use, as an SVG.

  crumb-lm calibrate MODEL --kv pq4 --text TEXT --out FILE --entropy model.csv
  bench/entropy_plot.py model.csv --name model --out docs/entropy.svg

A panel shows the keys or the values of a model. Its lines are quantiles over all pairs of neighbouring channels, of
all layers and heads: the entropy, in bits per pair, of uniform codes of 4 bits whose range is that of the channel; of
the same after block means and token scales are taken out; and of the codes that trained codebooks choose. What lacks
to the width is spent on codes that hardly occur. The dashed line adds the entropies of both channels: where it lies
above the line of both together, the channels tell about each other, which only a code for both can use.
"""
import argparse
import csv
import statistics
import sys
from pathlib import Path
from xml.sax.saxutils import escape

FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
# What a line shows: its name, its number in a row, colour and dashes. The colours are readable on both grounds.
LINES = [("uniform, both channels added", lambda r: r["first"] + r["second"], "#c4501b", "5 4"),
         ("uniform, the pair", lambda r: r["joint"], "#c4501b", ""),
         ("uniform, means and scales taken out", lambda r: r["residual_joint"], "#8a6a00", ""),
         ("codebooks", lambda r: r["codes"], "#1f7ac4", "")]
PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP, BOTTOM, GAP = 370, 250, 62, 100, 64, 74
STYLE = """<style>
.ground { fill: #ffffff } .ink { fill: #1f2328 } .soft { fill: #59636e } .grid { stroke: #e4e7eb }
.frame { stroke: #b4bbc3; fill: none } .width { stroke: #59636e }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } .ink { fill: #e6edf3 } .soft { fill: #9198a1 } .grid { stroke: #262c34 }
.frame { stroke: #3d444d } .width { stroke: #9198a1 } }
</style>"""


def fail(message):
    sys.exit(f"entropy_plot.py: {message}")


def read(path):
    """The rows of a CSV, by kind."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    kinds = {"keys": [], "values": []}
    for number, row in enumerate(rows, 2):
        try:
            numbers = {k: float(row[k]) for k in ("first", "second", "joint", "residual_joint", "codes", "width")}
            kinds[row["kind"]].append(numbers)
        except (KeyError, TypeError, ValueError):
            fail(f"{path}, line {number} is not of crumb-lm calibrate --entropy")
    if not all(kinds.values()):
        fail(f"{path} has no rows")
    return kinds


def text(x, y, content, size=12, anchor="start", kind="ink", weight="normal", more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" class="{kind}" '
            f'font-weight="{weight}" {more}>{escape(content)}</text>')


def panel(rows, title, x0, y0):
    """Axes, and the quantiles of every line with its mean."""
    width = rows[0]["width"]
    top = max(8.0, width) * 1.06
    place_x = lambda share: x0 + share * PANEL_WIDTH
    place_y = lambda bits: y0 + PANEL_HEIGHT - bits / top * PANEL_HEIGHT
    out = [text(x0, y0 - 10, title, 14, weight="600")]
    for bits in range(0, int(top) + 1, 2):
        y = place_y(bits)
        out.append(f'<line x1="{x0}" x2="{x0 + PANEL_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        out.append(text(x0 - 8, y + 4, str(bits), anchor="end", kind="soft"))
    for percent in (0, 25, 50, 75, 100):
        out.append(text(place_x(percent / 100), y0 + PANEL_HEIGHT + 18, f"{percent} %", anchor="middle", kind="soft"))
    out.append(f'<rect x="{x0}" y="{y0}" width="{PANEL_WIDTH}" height="{PANEL_HEIGHT}" class="frame"/>')
    y = place_y(width)
    out.append(f'<line x1="{x0}" x2="{x0 + PANEL_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" class="width" stroke-width="1.2"/>')
    out.append(text(x0 + PANEL_WIDTH + 5, y + 4, f"{width:g}", kind="soft"))
    taken = [y + 4]
    for _, value, colour, dashes in reversed(LINES):
        bits = sorted(value(r) for r in rows)
        steps = [bits[min(len(bits) - 1, round(i / 100 * (len(bits) - 1)))] for i in range(101)]
        path = " ".join(f"{place_x(i / 100):.1f},{place_y(b):.1f}" for i, b in enumerate(steps))
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if not dashes:
            mean = statistics.mean(bits)
            at = place_y(mean) + 4
            while any(abs(at - t) < 13 for t in taken):
                at += 1
            taken.append(at)
            out.append(f'<text x="{x0 + PANEL_WIDTH + 5:.1f}" y="{at:.1f}" font-size="12" fill="{colour}">'
                       f"{mean:.2f}</text>")
    return out


def draw(models):
    width = LEFT + 2 * PANEL_WIDTH + 2 * GAP
    height = TOP + len(models) * (PANEL_HEIGHT + GAP) - GAP + BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
           f'height="{height}" font-family="{FONT}" role="img">', "<title>Entropy of codes of keys and values</title>",
           STYLE, f'<rect width="{width}" height="{height}" rx="8" class="ground"/>',
           text(LEFT, 30, "Bits that codes of two channels carry", 18, weight="600")]
    x = LEFT
    for name, _, colour, dashes in LINES:
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        out.append(f'<line x1="{x}" x2="{x + 24}" y1="52" y2="52" stroke="{colour}" stroke-width="2"{dash}/>')
        out.append(text(x + 30, 56, name))
        x += 56 + 6.5 * len(name)
    for index, (name, kinds) in enumerate(models):
        y0 = TOP + index * (PANEL_HEIGHT + GAP)
        for place, kind in enumerate(("keys", "values")):
            out += panel(kinds[kind], f"{name}, {kind}", LEFT + place * (PANEL_WIDTH + GAP), y0)
        out.append(text(0, 0, "bits per pair", 12, "middle", "soft",
                        more=f'transform="translate(22 {y0 + PANEL_HEIGHT / 2:.0f}) rotate(-90)"'))
    out.append(text(LEFT, height - 18, "pairs of neighbouring channels, in the order of their bits; figures: means, and "
                    "the width of the codes", kind="soft"))
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("csv", nargs="+", help="what crumb-lm calibrate --entropy FILE wrote; one per model")
    parser.add_argument("--name", nargs="+", default=[], help="names of the models; default: those of the files")
    parser.add_argument("--out", default="entropy.svg", help="default: entropy.svg")
    args = parser.parse_args()
    names = args.name + [Path(path).stem for path in args.csv[len(args.name):]]
    models = [(name, read(path)) for name, path in zip(names, args.csv)]
    try:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(draw(models))
    except OSError as error:
        fail(f"cannot write {args.out}: {error.strerror}")


if __name__ == "__main__":
    main()
