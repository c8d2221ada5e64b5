#!/usr/bin/env python3
"""Draws the results of crumb-bench as a roofline: an SVG, from the program's JSON.

  crumb-bench --benchmark_out=bench.json
  bench/roofline.py bench.json --isa avx512_vnni avx2 --format q4_0 q8_0 --out roofline.svg

x: multiply-accumulates per byte of packed weights; y: multiply-accumulates per second. The slope is the read
bandwidth of the level, horizontal lines are ceilings in registers: the dot instructions alone (MAC) and whole
groups of an exact product (mix). A point is a row of the JSON.
"""
import argparse
import json
import math
import re
import statistics
import sys
from xml.sax.saxutils import escape

ROW = re.compile(r"(linear|panels|plain)/(\w+)/(\w+)/m:(\d+)/n:(\d+)/k:(\d+)/(\w+)$")
COLOURS = {"avx512_vnni": "#0067b0", "avx2": "#c4501b", "neon_i8mm": "#0067b0", "neon_dotprod": "#c4501b",
           "neon": "#00805e", "portable": "#6b6b6b"}
KINDS = {"linear": "exact", "panels": "int8 panels", "plain": "plain baseline"}
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
WIDTH, HEIGHT = 1000, 660
LEFT, RIGHT, TOP, BOTTOM = 80, 226, 86, 104  # margins of the plot
INK, SOFT, GRID = "#1f2328", "#59636e", "#e4e7eb"


def fail(message):
    sys.exit(f"roofline.py: {message}")


def read_rows(path):
    """The file's context, and its rows by name: medians, where there are repetitions."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except ValueError as error:
        fail(f"{path} is not JSON ({error}); write it with crumb-bench --benchmark_out={path}")
    listed = data.get("benchmarks") if isinstance(data, dict) else None
    if not isinstance(listed, list) or not all(isinstance(row, dict) for row in listed):
        fail(f"{path} is JSON, but not of crumb-bench: it has no list \"benchmarks\" of rows")
    medians, samples = {}, {}
    for row in listed:
        name = row.get("run_name", row.get("name", ""))
        if row.get("error_occurred"):
            continue
        if row.get("run_type") != "aggregate":
            samples.setdefault(name, []).append(row)
        elif row.get("aggregate_name") == "median":
            medians[name] = row
    for name, rows in samples.items():
        keys = [k for k, v in rows[0].items() if isinstance(v, (int, float)) and not isinstance(v, bool)]
        medians.setdefault(name, {k: statistics.median(r[k] for r in rows if k in r) for k in keys})
    return data.get("context", {}), medians


def ceiling(rows, name, counter):
    row = rows.get(name)
    return row[counter] if row and row.get(counter) else None


def of_codes(rows, kind, isa, fmt):
    """A ceiling of an ISA for a format: its own of 4-bit codes, where there is one. That of the mix is its fraction
    of the MAC ceiling, measured beside it, times the MAC ceiling in the picture."""
    counter = {"mac": "mac_per_second", "mix": "of_mac_peak"}[kind]
    own = ceiling(rows, f"ceiling/{kind}/{isa}/4bit", counter) if fmt.startswith("q4") else None
    value = own or ceiling(rows, f"ceiling/{kind}/{isa}", counter)
    return value and (value if kind == "mac" else value * of_codes(rows, "mac", isa, fmt))


def collect(rows, args):
    """Roof of the level, roofs of ISAs as (rate, kind, isa, formats), points."""
    bandwidth = ceiling(rows, f"ceiling/read_bandwidth/{args.level}", "bytes_per_second")
    if bandwidth is None:
        fail(f"no row ceiling/read_bandwidth/{args.level}: let the filter of crumb-bench include 'ceiling'")
    points, seen = [], set()
    for name, row in rows.items():
        match = ROW.match(name)
        if not match or not row.get("mac_per_second") or not row.get("bytes_per_second"):
            continue
        kind, fmt, isa, m, _, _, level = match.groups()
        seen.add((kind, fmt, isa, level))
        if level != args.level or kind not in args.kind:
            continue
        if (args.isa and isa not in args.isa) or (args.format and fmt not in args.format):
            continue
        rate = row["mac_per_second"]
        if args.beside:
            # What the row reached of the ceiling that it came closest to, of the ceiling in the picture.
            of = [(row.get("of_read_bandwidth", 0), rate / row["bytes_per_second"] * bandwidth),
                  (row.get("of_mac_peak", 0), of_codes(rows, "mac", isa, fmt if kind != "panels" else "q8")),
                  (row.get("of_mix", 0), of_codes(rows, "mix", isa, fmt))]
            fraction, roof = max((f, r) for f, r in of if r)
            rate = fraction * roof if fraction else rate
        points.append({"kind": kind, "format": fmt, "isa": isa, "m": int(m), "y": rate / 1e9,
                       "x": row["mac_per_second"] / row["bytes_per_second"]})
    if not points:
        there = sorted({"/".join((k, f, i)) + f" ({level})" for k, f, i, level in seen})
        fail("no row to draw for these options; the file has " + (", ".join(there) or "no products at all"))
    order = list(COLOURS)
    isas = sorted({p["isa"] for p in points}, key=lambda i: order.index(i) if i in order else 99)
    formats = sorted({p["format"] for p in points})
    roofs = []
    for isa in isas:
        if of_codes(rows, "mac", isa, formats[0]) is None:
            fail(f"no row ceiling/mac/{isa}: let the filter of crumb-bench include 'ceiling'")
        for kind in ("mac", "mix"):
            of = [(f, of_codes(rows, kind, isa, f)) for f in formats]
            of = [(f, rate / 1e9) for f, rate in of if rate]
            if of and max(r for _, r in of) / min(r for _, r in of) < 1.05:
                of = [("", statistics.mean(r for _, r in of))]
            roofs += [(rate, kind, isa, f) for f, rate in of]
    return bandwidth / 1e9, roofs, points, isas, formats


def shape(index, x, y, r, style):
    """A marker of about equal area for each format."""
    if index == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" {style}/>'
    if index == 1:
        s = r * 0.9
        return f'<rect x="{x - s:.1f}" y="{y - s:.1f}" width="{2 * s:.1f}" height="{2 * s:.1f}" {style}/>'
    corners = [(0, -1.25), (1.15, 0.8), (-1.15, 0.8)] if index == 2 else [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)]
    path = " ".join(f"{x + r * a:.1f},{y + r * b:.1f}" for a, b in corners)
    return f'<polygon points="{path}" {style}/>'


def marker_style(kind, colour):
    if kind == "plain":
        return f'fill="{colour}" fill-opacity="0.3"'
    return f'fill="{colour if kind == "linear" else "#ffffff"}" stroke="{colour}" stroke-width="1.6"'


def text(x, y, content, size=13, anchor="start", fill=INK, more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" {more}>'
            f"{escape(content)}</text>")


def spread(wanted, gap, least, most):
    """Positions near the wanted ones (ascending), at least `gap` apart, within the limits."""
    at = []
    for y in wanted:
        at.append(max(y, at[-1] + gap) if at else max(y, least))
    limit = most
    for i in reversed(range(len(at))):
        at[i] = min(at[i], limit)
        limit = at[i] - gap
    return at


class picture:
    def __init__(self, bandwidth, roofs, points):
        xs = [p["x"] for p in points]
        self.x0 = math.floor(math.log2(min(xs)) - 0.3)
        self.x1 = math.ceil(math.log2(max(xs)) + 0.3)
        low = min([p["y"] for p in points] + [bandwidth * 2.0 ** self.x0])
        high = max([r[0] for r in roofs] + [p["y"] for p in points])
        self.y0, self.y1 = math.log10(low) - 0.08, math.log10(high) + 0.09
        self.right, self.bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(self, value):
        return LEFT + (math.log2(value) - self.x0) / (self.x1 - self.x0) * (self.right - LEFT)

    def y(self, value):
        return self.bottom - (math.log10(value) - self.y0) / (self.y1 - self.y0) * (self.bottom - TOP)


def grid(p):
    out = []
    for e in range(p.x0, p.x1 + 1):
        x = p.x(2.0 ** e)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{p.bottom}" stroke="{GRID}"/>')
        out.append(text(x, p.bottom + 19, f"{2 ** e}" if e >= 0 else f"1/{2 ** -e}", 13, "middle", SOFT))
    for decade in range(math.floor(p.y0), math.ceil(p.y1) + 1):
        for step in (1, 2, 5):
            value = step * 10.0 ** decade
            if p.y0 <= math.log10(value) <= p.y1:
                y = p.y(value)
                out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{p.right}" y2="{y:.1f}" stroke="{GRID}"/>')
                out.append(text(LEFT - 8, y + 4.5, f"{value:g}", 13, "end", SOFT))
    out.append(f'<rect x="{LEFT}" y="{TOP}" width="{p.right - LEFT}" height="{p.bottom - TOP}" fill="none" '
               f'stroke="#b4bbc3"/>')
    out.append(text((LEFT + p.right) / 2, p.bottom + 42, "multiply-accumulates per byte of packed weights (MAC/B)",
                    14, "middle"))
    out.append(text(0, 0, "10\u2079 multiply-accumulates per second (GMAC/s)", 14, "middle", INK,
                    f'transform="translate(26 {(TOP + p.bottom) / 2:.0f}) rotate(-90)"'))
    return out


def draw_roofs(p, bandwidth, roofs):
    """The lines, and the segments and boxes that labels keep away from."""
    out, lines, taken = [], [], []
    top = max(r[0] for r in roofs)
    begin = max(2.0 ** p.x0, 10.0 ** p.y0 / bandwidth)
    end = min(top / bandwidth, 2.0 ** p.x1)
    lines.append((p.x(begin), p.y(bandwidth * begin), p.x(end), p.y(bandwidth * end)))
    out.append('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" stroke-width="2"/>'.format(
        *lines[0], INK))
    angle = math.degrees(math.atan2(lines[0][3] - lines[0][1], lines[0][2] - lines[0][0]))
    a, b = lines[0][:2], lines[0][2:]
    x, y = a[0] + 0.66 * (b[0] - a[0]), a[1] + 0.66 * (b[1] - a[1])
    out.append(text(0, 0, f"read bandwidth: {bandwidth:.1f} GB/s", 13, "middle", INK,
                    f'transform="translate({x:.1f} {y:.1f}) rotate({angle:.1f}) translate(0 -9)"'))
    dx, dy = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    for along in range(-88, 89, 8):
        cx, cy = x + along * dx + 14 * dy, y + along * dy - 14 * dx
        taken.append((cx - 6, cy - 6, cx + 6, cy + 6))
    roofs = sorted(roofs, reverse=True)
    label_y = spread([p.y(r[0]) for r in roofs], 17, TOP + 4, p.bottom)
    for (rate, kind, isa, fmt), at in zip(roofs, label_y):
        colour, y, x = COLOURS.get(isa, SOFT), p.y(rate), p.x(max(rate / bandwidth, 2.0 ** p.x0))
        dash = "" if kind == "mac" else ' stroke-dasharray="7 4"'
        lines.append((x, y, p.right, y))
        out.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{p.right}" y2="{y:.1f}" stroke="{colour}" '
                   f'stroke-width="1.6"{dash}/>')
        out.append(f'<polyline points="{p.right},{y:.1f} {p.right + 8},{at:.1f} {p.right + 13},{at:.1f}" '
                   f'fill="none" stroke="{colour}"/>')
        name = {"mac": "MAC", "mix": "mix"}[kind] + (f", {fmt}" if fmt else "")
        out.append(text(p.right + 17, at + 4.5, f"{isa} {name}: {rate:.0f}", 13, "start", colour))
    return out, lines, taken


def crosses(box, line):
    """Whether a segment (horizontal or rising) passes through a box."""
    x0, y0, x1, y1 = line
    for i in range(41):
        x, y = x0 + (x1 - x0) * i / 40, y0 + (y1 - y0) * i / 40
        if box[0] - 1 < x < box[2] + 1 and box[1] < y < box[3]:
            return True
    return y0 == y1 and x0 < box[2] and x1 > box[0] and box[1] < y0 < box[3]


def draw_points(p, points, formats, lines, boxes):
    out, series = [], {}
    for point in sorted(points, key=lambda q: q["m"]):
        series.setdefault((point["kind"], point["isa"], point["format"]), []).append(point)
    for (kind, isa, _), members in series.items():
        at = [(p.x(q["x"]), p.y(q["y"])) for q in members]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        dash = {"linear": "", "panels": ' stroke-dasharray="1 3"', "plain": ' stroke-dasharray="4 4"'}[kind]
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS.get(isa, SOFT)}" '
                   f'stroke-width="1.2" opacity="0.45"{dash}/>')
        boxes += [(x - 6, y - 6, x + 6, y + 6) for x, y in at]
    labels = {}
    for (kind, isa, fmt), members in series.items():
        colour = COLOURS.get(isa, SOFT)
        style = marker_style(kind, colour)
        for q in members:
            out.append(shape(formats.index(fmt), p.x(q["x"]), p.y(q["y"]), 4.6, style))
            label = (p.y(q["y"]), p.x(q["x"]), str(q["m"]), colour)
            labels[isa, fmt, q["m"]] = min(label, labels.get((isa, fmt, q["m"]), label))
    # One label for points in a column. It goes where it touches nothing, nearest first, or is left out.
    for y, x, content, colour in sorted(labels.values()):
        w, h = 7.2 * len(content), 10
        places = [(0, -13), (0, 14), (-8 - w / 2, 0), (9 + w / 2, 0), (-7 - w / 2, -9), (8 + w / 2, 9),
                  (8 + w / 2, -9), (-7 - w / 2, 9), (0, -18), (0, 19)]
        for dx, dy in places:
            box = (x + dx - w / 2, y + dy - h / 2, x + dx + w / 2, y + dy + h / 2)
            if box[0] < LEFT + 2 or box[2] > p.right - 2 or box[1] < TOP + 2 or box[3] > p.bottom - 2:
                continue
            hit = any(box[0] < b[2] and box[2] > b[0] and box[1] < b[3] and box[3] > b[1] for b in boxes)
            if not hit and not any(crosses(box, line) for line in lines):
                boxes.append(box)
                out.append(text(x + dx, y + dy + 4, content, 12, "middle", colour,
                                'stroke="#ffffff" stroke-width="3" paint-order="stroke"'))
                break
    return out


def legend(points, isas, formats):
    """A line below the plot."""
    kinds = [k for k in KINDS if any(q["kind"] == k for q in points)]
    x, y, out = LEFT, HEIGHT - 24, []

    def entry(symbol, name, gap=22):
        nonlocal x
        out.append(symbol(x + 6))
        out.append(text(x + 18, y + 4.5, name))
        x += 18 + 7.3 * len(name) + gap

    for isa in isas:
        entry(lambda at: f'<rect x="{at - 6:.1f}" y="{y - 6}" width="12" height="12" rx="2" '
                         f'fill="{COLOURS.get(isa, SOFT)}"/>', isa)
    x += 14
    for i, fmt in enumerate(formats):
        entry(lambda at: shape(i, at, y, 4.6, marker_style("linear", SOFT)), fmt)
    x += 14
    for kind in kinds:
        entry(lambda at: shape(0, at, y, 4.6, marker_style(kind, SOFT)), KINDS[kind])
    x += 14
    out.append(text(x, y + 4.5, "figures: rows m of activations", 13, "start", SOFT))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("json", help="what crumb-bench --benchmark_out=FILE wrote")
    parser.add_argument("--isa", nargs="+", metavar="ISA", help="only these; default: all in the file")
    parser.add_argument("--format", nargs="+", metavar="FORMAT", help="only these; default: all in the file")
    parser.add_argument("--kind", nargs="+", choices=list(KINDS), default=["linear", "panels"],
                        help="kinds of rows; default: linear panels")
    parser.add_argument("--level", choices=["dram", "l2"], default="dram", help="where weights come from")
    parser.add_argument("--beside", action="store_true",
                        help="place points by their fraction of the ceilings measured beside them, for machines "
                             "that drift within a run")
    parser.add_argument("--out", default="roofline.svg", help="default: roofline.svg")
    args = parser.parse_args()
    context, rows = read_rows(args.json)
    bandwidth, roofs, points, isas, formats = collect(rows, args)
    p = picture(bandwidth, roofs, points)
    lines, segments, taken = draw_roofs(p, bandwidth, roofs)
    where = "memory" if args.level == "dram" else "the second-level cache"
    note = "fractions of the ceilings beside each row" if args.beside else "medians"
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
           f'height="{HEIGHT}" font-family="{FONT}" role="img">',
           f"<title>Roofline of crumb on {escape(context.get('cpu_model', 'this CPU'))}</title>",
           f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
           text(LEFT, 36, f"crumb on {context.get('cpu_model', 'this CPU')}", 19, "start", INK,
                'font-weight="600"'),
           text(LEFT, 62, f"one thread, weights from {where}, activations quantized on the way; {note}", 14,
                "start", SOFT)]
    out += grid(p) + lines + draw_points(p, points, formats, segments, taken)
    out += legend(points, isas, formats)
    out.append("</svg>")
    try:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write("\n".join(out) + "\n")
    except OSError as error:
        fail(f"cannot write {args.out}: {error.strerror}")


if __name__ == "__main__":
    main()
