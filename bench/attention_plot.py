#!/usr/bin/env python3
"""Draws the time of a decoding step against the length of the context, as an SVG, from crumb-bench's JSON.

  crumb-bench --benchmark_filter='attention/(f16|q8_0|pq4|pq2)/' --benchmark_out=bench.json
  bench/attention_plot.py bench.json --isa avx512_vbmi --out docs/attention.svg

A line is a codec, a point a row attention/<codec>/<isa>/heads:<H>/kv:<KV>/ctx:<T>: one step over one layer by one
thread. Both scales are logarithmic, so that lines of equal slope keep their factor, which the figure at their end
tells.
"""
import argparse
import json
import math
import re
import statistics
import sys
from xml.sax.saxutils import escape

ROW = re.compile(r"attention/([^/]+)/(\w+)/heads:(\d+)/kv:(\d+)/ctx:(\d+)$")
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
# By name and not by place in the file, so that pictures of several machines agree. They are readable on both grounds.
COLOURS = {"f16": "#7a828c", "q8_0": "#c4501b", "kivi4": "#8a6a00", "kivi2": "#a8742a", "pq4": "#1f7ac4",
           "pq3": "#7b5fc0", "pq2": "#12916c"}
OTHERS = ["#b0417a", "#5c7d1f", "#3a7f8c"]
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
WIDTH, HEIGHT = 860, 560
LEFT, RIGHT, TOP, BOTTOM = 78, 150, 92, 72  # margins of the plot
STYLE = """<style>
.ground { fill: #ffffff } .ink { fill: #1f2328 } .soft { fill: #59636e } .grid { stroke: #e4e7eb }
.frame { stroke: #b4bbc3; fill: none }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } .ink { fill: #e6edf3 } .soft { fill: #9198a1 } .grid { stroke: #262c34 }
.frame { stroke: #3d444d } }
</style>"""


def fail(message):
    sys.exit(f"attention_plot.py: {message}")


def read_rows(path):
    """The file's context, and seconds by (codec, isa, heads, kv heads, tokens): medians of repetitions."""
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
    samples = {}
    for row in listed:
        match = ROW.match(str(row.get("run_name", row.get("name", ""))))
        if not match or row.get("error_occurred") or row.get("run_type") == "aggregate":
            continue
        seconds = row.get("real_time", 0) * UNITS.get(row.get("time_unit"), 0)
        if seconds > 0:
            codec, isa, heads, kv_heads, tokens = match.groups()
            samples.setdefault((codec, isa, int(heads), int(kv_heads), int(tokens)), []).append(seconds)
    if not samples:
        fail(f"{path} has no row attention/...: let the filter of crumb-bench include 'attention'")
    return data.get("context", {}), {key: statistics.median(times) for key, times in samples.items()}


def choose(rows, args):
    """The lines to draw: {codec: [(tokens, seconds)]}, and the ISA."""
    shapes = sorted({key[2:4] for key in rows})
    if (args.heads, args.kv) not in shapes:
        fail(f"no rows with heads:{args.heads}/kv:{args.kv}; the file has "
             + ", ".join(f"heads:{h}/kv:{k}" for h, k in shapes))
    isas = list(dict.fromkeys(key[1] for key in rows))
    isa = args.isa or isas[0]
    lines = {}
    for (codec, of, heads, kv_heads, tokens), seconds in sorted(rows.items(), key=lambda row: row[0][4]):
        if of == isa and (heads, kv_heads) == (args.heads, args.kv) and codec in args.codec:
            lines.setdefault(codec, []).append((tokens, seconds))
    if not lines:
        fail(f"no row of {isa} for these options; the file has ISAs {', '.join(isas)} and codecs "
             + ", ".join(sorted({key[0] for key in rows})))
    return {codec: lines[codec] for codec in args.codec if codec in lines}, isa


def text(x, y, content, size=13, anchor="start", kind="ink", more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" class="{kind}" {more}>'
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


def tokens_name(tokens):
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def time_name(seconds):
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} \u00b5s"


def draw(context, lines, isa, args):
    points = [p for line in lines.values() for p in line]
    x0, x1 = math.log2(min(p[0] for p in points)) - 0.25, math.log2(max(p[0] for p in points)) + 0.1
    y0, y1 = math.log10(min(p[1] for p in points)) - 0.12, math.log10(max(p[1] for p in points)) + 0.12
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    place_x = lambda tokens: LEFT + (math.log2(tokens) - x0) / (x1 - x0) * (right - LEFT)
    place_y = lambda seconds: bottom - (math.log10(seconds) - y0) / (y1 - y0) * (bottom - TOP)
    cpu = context.get("cpu_model", "this CPU")
    title = f"Attention of one decoding step, {args.heads} query and {args.kv} key-value heads"
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
           f'height="{HEIGHT}" font-family="{FONT}" role="img">', f"<title>{escape(title)}</title>", STYLE,
           f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" class="ground"/>',
           text(LEFT, 36, title, 18, more='font-weight="600"'),
           text(LEFT, 62, f"one layer, heads of 128, one thread, {isa} on {cpu}; medians", 14, kind="soft")]
    for tokens in sorted({p[0] for p in points}):
        x = place_x(tokens)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" class="grid"/>')
        out.append(text(x, bottom + 20, tokens_name(tokens), 13, "middle", "soft"))
    for decade in range(math.floor(y0), math.ceil(y1) + 1):
        for step in (1, 2, 5):
            seconds = step * 10.0 ** decade
            if y0 <= math.log10(seconds) <= y1:
                y = place_y(seconds)
                out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="grid"/>')
                out.append(text(LEFT - 8, y + 4.5, f"{seconds * 1e3:g}", 13, "end", "soft"))
    out.append(f'<rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}" class="frame"/>')
    out.append(text((LEFT + right) / 2, bottom + 46, "tokens in the cache", 14, "middle"))
    out.append(text(0, 0, "milliseconds per step", 14, "middle",
                    more=f'transform="translate(26 {(TOP + bottom) / 2:.0f}) rotate(-90)"'))
    others = iter(OTHERS * len(lines))
    colours = {codec: COLOURS.get(codec) or next(others) for codec in lines}
    for codec, line in lines.items():
        at = [(place_x(t), place_y(s)) for t, s in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colours[codec]}" stroke-width="2.2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colours[codec]}"><title>'
                f"{escape(f'{codec}, {t} tokens: {time_name(s)}')}</title></circle>" for (x, y), (t, s) in zip(at, line)]
    # The legend stands where the lines end.
    ends = sorted((place_y(line[-1][1]), codec) for codec, line in lines.items())
    f16 = dict(lines.get("f16", []))
    for (y, codec), at in zip(ends, spread([y for y, _ in ends], 34, TOP + 8, bottom - 8)):
        x = place_x(lines[codec][-1][0])
        tokens, seconds = lines[codec][-1]
        out.append(f'<polyline points="{x + 6:.1f},{y:.1f} {right + 10},{at:.1f} {right + 16},{at:.1f}" fill="none" '
                   f'stroke="{colours[codec]}" opacity="0.6"/>')
        out.append(f'<text x="{right + 21}" y="{at + 1:.1f}" font-size="14" font-weight="600" '
                   f'fill="{colours[codec]}">{escape(codec)}</text>')
        faster = f", {f16[tokens] / seconds:.2g} \u00d7" if codec != "f16" and tokens in f16 else ""
        out.append(text(right + 21, at + 16, time_name(seconds) + faster, 12, kind="soft"))
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("json", help="what crumb-bench --benchmark_out=FILE wrote")
    parser.add_argument("--isa", help="default: the first in the file, which is the best of the CPU")
    parser.add_argument("--codec", nargs="+", metavar="CODEC", default=["f16", "q8_0", "pq4", "pq2"],
                        help="default: f16 q8_0 pq4 pq2")
    parser.add_argument("--heads", type=int, default=32, help="query heads; default: 32")
    parser.add_argument("--kv", type=int, default=8, help="key-value heads; default: 8")
    parser.add_argument("--out", default="attention.svg", help="default: attention.svg")
    args = parser.parse_args()
    context, rows = read_rows(args.json)
    lines, isa = choose(rows, args)
    try:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(draw(context, lines, isa, args))
    except OSError as error:
        fail(f"cannot write {args.out}: {error.strerror}")


if __name__ == "__main__":
    main()
