#!/usr/bin/env python3
"""Draws quality against what it costs: mean KL divergence from the full-precision model over bits per weight, over the
size of the file or over the text that is calibrated on, as an SVG.

  bench/pareto.py docs/quality.csv --out docs/pareto.svg
  bench/pareto.py docs/quality-smollm2.csv --out docs/pareto-smollm2.svg
  bench/pareto.py docs/windows.csv --out docs/windows.svg

The CSV has the columns model, group, name, bits (or mb, or windows), kl: a group of points is drawn in one colour, a
point is labelled with its name, and the best points of each group are joined. A logarithmic scale shows factors alike;
every model is a panel of its own.
"""
import argparse
import csv
import math
import sys
from xml.sax.saxutils import escape

AXES = {"bits": "bits per weight", "mb": "size of the file, MB", "windows": "windows of 512 tokens of calibration text"}
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
INK, SOFT, GRID = "#1f2328", "#59636e", "#e4e7eb"
COLOURS = ["#0067b0", "#00805e", "#c4501b", "#8a5a00", "#6b6b6b"]
PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP, BOTTOM, GAP = 470, 420, 64, 84, 56, 56


def fail(message):
    sys.exit(f"pareto.py: {message}")


def read(path):
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    points = []
    size = next((name for name in AXES if rows and name in rows[0]), "bits")
    for number, row in enumerate(rows, 2):
        try:
            points.append((row["model"], row["group"], row["name"], float(row[size]), float(row["kl"])))
        except (KeyError, TypeError, ValueError):
            fail(f"{path}, line {number}: columns model, group, name, {' or '.join(AXES)}, kl are needed, the last "
                 "two as numbers")
    if not points:
        fail(f"{path} has no rows")
    return points, AXES[size]


def frontier(points):
    """The points that no other one of fewer bits beats, from few bits to many."""
    best, out = math.inf, []
    for bits, kl, _ in sorted(points):
        if kl < best:
            best = kl
            out.append((bits, kl))
    return out


def text(x, y, content, size=12, anchor="start", colour=INK, weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
            f'font-weight="{weight}">{escape(content)}</text>')


def panel(points, groups, x0, axis, bits_range, kl_range):
    """One model: axes, frontiers, points."""
    low, high = bits_range
    top, bottom = math.log10(kl_range[1]), math.log10(kl_range[0])
    place_x = lambda bits: x0 + (bits - low) / (high - low) * PANEL_WIDTH
    place_y = lambda kl: TOP + (top - math.log10(kl)) / (top - bottom) * PANEL_HEIGHT
    out = []
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10 ** 9) if (high - low) / s <= 8)
    for bits in range(math.ceil(low / step) * step, math.floor(high) + 1, step):
        out.append(f'<line x1="{place_x(bits):.1f}" x2="{place_x(bits):.1f}" y1="{TOP}" y2="{TOP + PANEL_HEIGHT}" '
                   f'stroke="{GRID}"/>')
        out.append(text(place_x(bits), TOP + PANEL_HEIGHT + 18, str(bits), anchor="middle", colour=SOFT))
    for exponent in range(math.floor(bottom), math.floor(top) + 1):
        for factor in (1, 2, 5) if top - bottom > 1 else range(1, 10):
            kl = factor * 10.0 ** exponent
            if not kl_range[0] <= kl <= kl_range[1]:
                continue
            out.append(f'<line x1="{x0}" x2="{x0 + PANEL_WIDTH}" y1="{place_y(kl):.1f}" y2="{place_y(kl):.1f}" '
                       f'stroke="{GRID}"/>')
            out.append(text(x0 - 8, place_y(kl) + 4, f"{kl:g}", anchor="end", colour=SOFT))
    taken = []
    for index, group in enumerate(groups):
        colour = COLOURS[index % len(COLOURS)]
        own = [(bits, kl, name) for g, name, bits, kl in points if g == group]
        line = " ".join(f"{place_x(b):.1f},{place_y(k):.1f}" for b, k in frontier(own))
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5" opacity="0.6"/>')
        for bits, kl, name in sorted(own):
            x, y = place_x(bits), place_y(kl)
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
            # The first place around the point where the label covers no other.
            width = 6.0 * len(name)
            spots = [(x + 6, y + 4), (x - 6 - width, y + 4), (x - width / 2, y - 8), (x - width / 2, y + 16),
                     (x + 6, y - 8), (x + 6, y + 16), (x - 6 - width, y - 8), (x - 6 - width, y + 16)]
            free = [s for s in spots
                    if all(s[0] + width < t[0] or t[0] + t[2] < s[0] or abs(s[1] - t[1]) > 11 for t in taken)
                    and s[0] > x0 and s[0] + width < x0 + PANEL_WIDTH]
            if free:
                taken.append((free[0][0], free[0][1], width))
                out.append(text(free[0][0], free[0][1], name, size=10.5, colour=colour))
    out.append(text(x0 + PANEL_WIDTH / 2, TOP + PANEL_HEIGHT + 40, axis, anchor="middle", colour=SOFT))
    return out


def draw(points, axis, title):
    models = list(dict.fromkeys(p[0] for p in points))
    groups = list(dict.fromkeys(p[1] for p in points))
    bits = [p[3] for p in points]
    margin = (max(bits) - min(bits)) / 20
    bits_range = (min(bits) - margin, max(bits) + margin)
    width = LEFT + len(models) * (PANEL_WIDTH + LEFT) - LEFT + GAP
    height = TOP + PANEL_HEIGHT + BOTTOM
    title_size = min(17, (width - LEFT - GAP) / (0.62 * len(title)))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="{FONT}">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
           text(LEFT, 28, title, size=title_size, weight="bold")]
    x = LEFT
    for index, group in enumerate(groups):
        colour = COLOURS[index % len(COLOURS)]
        out.append(f'<circle cx="{x + 4}" cy="48" r="4" fill="{colour}"/>')
        out.append(text(x + 14, 52, group, colour=INK))
        x += 34 + 6.6 * len(group)
    for index, model in enumerate(models):
        own = [p[1:] for p in points if p[0] == model]
        kls = [p[3] for p in own]
        x0 = LEFT + index * (PANEL_WIDTH + LEFT)
        out.append(text(x0, TOP - 10, model, size=13, weight="bold"))
        out += panel(own, groups, x0, axis, bits_range, (min(kls) / 1.3, max(kls) * 1.3))
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv")
    parser.add_argument("--out", required=True, help="SVG to write")
    parser.add_argument("--title", default="KL divergence from the full-precision model, nats per token")
    args = parser.parse_args()
    svg = draw(*read(args.csv), args.title)
    with open(args.out, "w", encoding="utf-8") as file:
        file.write(svg)


if __name__ == "__main__":
    main()
