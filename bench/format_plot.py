#!/usr/bin/env python3
"""Draws which format every matrix of a model has got, from the JSON of `crumb-lm quantize --size S --json` (or --bits), as
an SVG: a panel per file, a row per kind of matrix, a column per layer.

  crumb-lm quantize MODEL --size 60MB --calibrate TEXT --out q.gguf --json > q.json
  bench/format_plot.py "60 MB=q.json" --out docs/formats.svg
"""
import argparse
import json
import sys
from xml.sax.saxutils import escape

FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
INK, SOFT = "#1f2328", "#59636e"
# Light to dark by bits; what else a file has is grey.
COLOURS = {"cb2s": "#deebf7", "cb3": "#9ecae1", "cb4": "#4292c6", "q5_0": "#2171b5", "q8_0": "#08306b"}
OTHER = "#b8bcc2"
KINDS = ["attn_qkv", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
CELL, LEFT, TOP, GAP, LINE = 18, 110, 64, 30, 17


def fail(message):
    sys.exit(f"format_plot.py: {message}")


def read(argument):
    title, _, path = argument.rpartition("=")
    try:
        with open(path, encoding="utf-8") as file:
            formats = json.load(file)["formats"]
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except (ValueError, KeyError, TypeError):
        fail(f"{path} is not the JSON of `quantize --size` or `--bits`")
    return title or path, {tensor: name.lower() for tensor, name in formats.items()}


def text(x, y, content, size=12, anchor="start", colour=INK, weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
            f'font-weight="{weight}">{escape(content)}</text>')


def panel(y, title, formats):
    """The panel's elements and its end."""
    cells, kinds, layers = {}, [], 0
    for tensor, name in formats.items():
        parts = tensor.split(".")
        if parts[0] == "blk" and len(parts) == 4:
            cells[(parts[2], int(parts[1]))] = name
            layers = max(layers, int(parts[1]) + 1)
    kinds = [k for k in KINDS if any(kind == k for kind, _ in cells)]
    others = ", ".join(f"{t.removesuffix('.weight')} {name}" for t, name in formats.items() if not t.startswith("blk."))
    out = [text(LEFT, y, f"{title}: {others}", size=13, weight="bold")]
    y += 8
    for kind in kinds:
        out.append(text(LEFT - 8, y + 13, kind, size=11, anchor="end", colour=SOFT))
        for layer in range(layers):
            name = cells.get((kind, layer))
            if name is not None:
                out.append(f'<rect x="{LEFT + layer * CELL}" y="{y}" width="{CELL - 1}" height="{LINE - 1}" '
                           f'fill="{COLOURS.get(name, OTHER)}"><title>{escape(f"blk.{layer}.{kind}: {name}")}</title></rect>')
        y += LINE
    for layer in range(0, layers, 5):
        out.append(text(LEFT + (layer + 0.5) * CELL, y + 12, str(layer), size=10, anchor="middle", colour=SOFT))
    return out, y + 12, layers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="TITLE=JSON")
    parser.add_argument("--out", required=True, help="SVG to write")
    args = parser.parse_args()
    files = [read(argument) for argument in args.files]
    body, y, layers = [], TOP, 0
    for title, formats in files:
        own, y, count = panel(y, title, formats)
        body += own
        layers = max(layers, count)
        y += GAP
    width = LEFT + max(layers, 24) * CELL + 24
    used = {name for _, formats in files for name in formats.values()}
    names = [name for name in COLOURS if name in used] + sorted(used - set(COLOURS))
    legend, x = [], LEFT
    for name in names:
        legend.append(f'<rect x="{x}" y="20" width="14" height="14" fill="{COLOURS.get(name, OTHER)}"/>')
        legend.append(text(x + 20, 32, name))
        x += 40 + 7 * len(name)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y - GAP + 12}" font-family="{FONT}">',
           f'<rect width="{width}" height="{y - GAP + 12}" fill="#ffffff"/>', *legend, *body, "</svg>", ""]
    with open(args.out, "w", encoding="utf-8") as file:
        file.write("\n".join(svg))


if __name__ == "__main__":
    main()
