#!/usr/bin/env python3
"""Draws what the neurons of feed-forward networks see, and what a line costs each, as two SVGs.

  crumb-lm calibrate MODEL --ffn tardis --text TEXT --out FILE --distributions model.csv
  bench/ffn_plot.py model.csv --name model --out-inputs inputs.svg --out-errors errors.svg

The first shows the densities of the inputs of activation functions, a line per neuron of the first and of the last
layer (TARDIS, figure 5), and per layer which share of its range holds most of a neuron's inputs (table 1), which is
printed as well. The second shows the squared errors that lines leave in the outputs, by layer and by neuron (figure
6).
"""
import argparse
import csv
import math
import statistics
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from attention_plot import FONT, STYLE, spread, text

LINES = ["#1f7ac4", "#c4501b", "#12916c", "#7b5fc0", "#8a6a00"]  # readable on both grounds
DEPTHS = [(31, 122, 196), (18, 145, 108), (196, 80, 27)]  # colours of the first, the middle and the last layer
TOP_SHARE = 0.1  # of a layer's neurons, whose share of its error is told
LISTED = 12      # most layers in a legend or in a row of the table
PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP, GAP = 370, 300, 72, 104, 76


def fail(message):
    sys.exit(f"ffn_plot.py: {message}")


def read(path):
    """{kind: {layer: {neuron: [(x, y)]}}}"""
    kinds = {"density": {}, "share": {}, "error": {}}
    try:
        with open(path, encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                try:
                    x, y = float(row["x"]), float(row["y"])
                    if not math.isfinite(x + y):
                        raise ValueError
                    neurons = kinds[row["kind"]].setdefault(int(row["layer"]), {})
                    neurons.setdefault(int(row["neuron"]), []).append((x, y))
                except (KeyError, TypeError, ValueError):
                    fail(f"{path}, line {number} is not of crumb-lm calibrate --distributions")
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except (UnicodeDecodeError, csv.Error):
        fail(f"{path} is not a CSV")
    for kind, layers in kinds.items():
        if not layers:
            fail(f"{path} has no rows of kind {kind}")
    return kinds


def steps(low, high, most):
    """Round numbers from low to high, at most so many."""
    least = (high - low) / most
    step = 10.0 ** math.floor(math.log10(least))
    step *= next(f for f in (1, 2, 5, 10) if f * step >= least * 0.999)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def label(value):
    """Of a tick: round, and short enough for the margin."""
    plain = f"{value:.6g}"
    return plain if len(plain) <= 5 else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")


def begin(width, height, title, below):
    return [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="{FONT}" role="img">', f"<title>{escape(title)}</title>", STYLE,
            f'<rect width="{width}" height="{height}" rx="8" class="ground"/>',
            text(LEFT, 34, title, 18, more='font-weight="600"'), text(LEFT, 58, below, 14, kind="soft")]


def frame(x0, title, x_title, y_title):
    """What all panels have: frame and titles."""
    return [text(x0, TOP - 12, title, 14, more='font-weight="600"'),
            f'<rect x="{x0}" y="{TOP}" width="{PANEL_WIDTH}" height="{PANEL_HEIGHT}" class="frame"/>',
            text(x0 + PANEL_WIDTH / 2, TOP + PANEL_HEIGHT + 42, x_title, 13, "middle"),
            text(0, 0, y_title, 13, "middle",
                 more=f'transform="translate({x0 - 50} {TOP + PANEL_HEIGHT / 2:.0f}) rotate(-90)"')]


def rule_x(x, label):
    return [f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + PANEL_HEIGHT}" class="grid"/>',
            text(x, TOP + PANEL_HEIGHT + 20, label, 12, "middle", "soft")]


def rule_y(x0, y, label):
    return [f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + PANEL_WIDTH}" y2="{y:.1f}" class="grid"/>',
            text(x0 - 8, y + 4, label, 12, "end", "soft")]


def density_panel(neurons, title, x0):
    points = [p for line in neurons.values() for p in line]
    top = max(p[1] for p in points) * 1.05 or 1.0
    # The tails of the widest neurons would leave little room for what is not flat.
    tall = [p[0] for p in points if p[1] > 0.004 * top]
    low, high = min(tall), max(tall)
    low, high = low - 0.03 * (high - low or 1), high + 0.03 * (high - low or 1)
    place_x = lambda x: x0 + (x - low) / (high - low) * PANEL_WIDTH
    place_y = lambda y: TOP + PANEL_HEIGHT * (1 - y / top)
    out = []
    for x in steps(low, high, 8):
        out += rule_x(place_x(x), label(x))
    for y in steps(0, top, 6):
        out += rule_y(x0, place_y(y), label(y))
    for index, (neuron, line) in enumerate(sorted(neurons.items())):
        path = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in sorted(line) if low <= x <= high)
        out.append(f'<polyline points="{path}" fill="none" stroke="{LINES[index % len(LINES)]}" opacity="0.7">'
                   f'<title>neuron {neuron}</title></polyline>')
    return out + frame(x0, title, "input of the activation function", "density")


def mean_shares(layers):
    """The share of inputs that intervals hold, and by layer the mean share of its range that a neuron's takes."""
    held = {x for neurons in layers.values() for line in neurons.values() for x, _ in line}
    if len(held) != 1:
        fail("rows of kind share have more than one x")
    return held.pop(), {layer: statistics.mean(line[0][1] for line in neurons.values())
                        for layer, neurons in sorted(layers.items())}


def share_table(layers):
    """What the table is of, and its lines of (layer, percent)."""
    held, shares = mean_shares(layers)
    cells = [(str(layer), f"{100 * share:.1f}") for layer, share in shares.items()]
    caption = (f"shortest interval with {100 * held:g} % of a neuron's inputs, in % of the range of all of them: mean "
               f"{100 * statistics.mean(shares.values()):.1f}, by layer")
    return caption, [cells[i:i + LISTED] for i in range(0, len(cells), LISTED)]


def draw_inputs(kinds, name):
    caption, lines = share_table(kinds["share"])
    shown = sorted(kinds["density"].items())
    shown = [shown[0], shown[-1]] if len(shown) > 1 else shown
    width = LEFT + 2 * PANEL_WIDTH + GAP + 24
    table = TOP + PANEL_HEIGHT + 76
    height = table + 24 + 48 * len(lines)
    most = max(len(neurons) for _, neurons in shown)
    out = begin(width, height, f"Inputs of activation functions{', ' + name if name else ''}",
                f"kernel density estimates, a line per neuron, {most} neurons of a layer")
    for place, (layer, neurons) in enumerate(shown):
        out += density_panel(neurons, f"layer {layer}", LEFT + place * (PANEL_WIDTH + GAP))
    out.append(text(LEFT, table, caption, 13))
    step = (width - LEFT - 24 - 60) / LISTED
    for row, line in enumerate(lines):
        y = table + 26 + 48 * row
        out.append(text(LEFT, y, "layer", 13, kind="soft"))
        out.append(text(LEFT, y + 19, "%", 13, kind="soft"))
        for column, (head, value) in enumerate(line):
            x = LEFT + 60 + (column + 0.7) * step
            out.append(text(x, y, head, 13, "end", "soft"))
            out.append(text(x, y + 19, value, 13, "end"))
    return "\n".join(out + ["</svg>", ""])


def print_shares(kinds):
    caption, lines = share_table(kinds["share"])
    print(caption)
    for line in lines:
        print("layer" + "".join(f"{head:>7}" for head, _ in line))
        print("%    " + "".join(f"{value:>7}" for _, value in line))


def layer_colour(index, count):
    at = index / max(1, count - 1) * (len(DEPTHS) - 1)
    part = min(int(at), len(DEPTHS) - 2)
    return "#" + "".join(f"{round(a + (b - a) * (at - part)):02x}" for a, b in zip(DEPTHS[part], DEPTHS[part + 1]))


def layer_panel(sums, x0):
    """The sums of the layers as bars."""
    top = max(sums.values()) * 1.12 or 1.0
    place_y = lambda y: TOP + PANEL_HEIGHT * (1 - y / top)
    out = []
    for y in steps(0, top, 6):
        out += rule_y(x0, place_y(y), label(y))
    step = PANEL_WIDTH / len(sums)
    for index, (layer, total) in enumerate(sums.items()):
        x, y = x0 + (index + 0.5) * step, place_y(total)
        out.append(f'<rect x="{x - 0.36 * step:.1f}" y="{y:.1f}" width="{0.72 * step:.1f}" '
                   f'height="{TOP + PANEL_HEIGHT - y:.1f}" fill="{layer_colour(index, len(sums))}">'
                   f"<title>layer {layer}: {total:.4g}</title></rect>")
        if index % math.ceil(len(sums) / LISTED) == 0:
            out.append(text(x, TOP + PANEL_HEIGHT + 20, str(layer), 12, "middle", "soft"))
        if step >= 36:
            out.append(text(x, y - 6, f"{total:.0f}" if total >= 10 else f"{total:#.2g}", 12, "middle"))
    return out + frame(x0, "(a) sum over the neurons", "layer", "squared error of the outputs")


def neuron_panel(layers, x0):
    """The errors of the neurons of every layer, ascending; a legend at its right."""
    errors = {layer: sorted(line[0][1] for line in neurons.values()) for layer, neurons in layers.items()}
    seen = [e for line in errors.values() for e in line if e > 0]
    if not seen:
        fail("all errors are zero")
    # Those that are nearly zero would take most of the scale.
    high = math.log10(max(seen)) + 0.15
    low = max(math.log10(min(seen)) - 0.15, high - 9)
    place_x = lambda share: x0 + share * PANEL_WIDTH
    place_y = lambda e: TOP + PANEL_HEIGHT * (high - math.log10(e)) / (high - low)
    out = []
    for percent in (0, 25, 50, 75, 90, 100):
        out += rule_x(place_x(percent / 100), str(percent))
    for decade in range(math.ceil(low), math.floor(high) + 1):
        y = place_y(10.0 ** decade)
        out.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + PANEL_WIDTH}" y2="{y:.1f}" class="grid"/>')
        out.append(f'<text x="{x0 - 8}" y="{y + 4:.1f}" font-size="12" text-anchor="end" class="soft">10'
                   f'<tspan dy="-4" font-size="9">{decade}</tspan></text>')
    legend, every = [], math.ceil(len(errors) / LISTED)
    for index, (layer, line) in enumerate(errors.items()):
        colour = layer_colour(index, len(errors))
        path = " ".join(f"{place_x((i + 0.5) / len(line)):.1f},{place_y(e):.1f}" for i, e in enumerate(line)
                        if e >= 10 ** low)
        count = max(1, round(TOP_SHARE * len(line)))
        share = sum(line[-count:]) / (sum(line) or 1)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"><title>layer {layer}'
                   "</title></polyline>")
        if index % every == 0 or index + 1 == len(errors):
            legend.append((layer, colour, share))
    x = x0 + PANEL_WIDTH + 14
    out.append(text(x, TOP + 12, "share of the", 12, kind="soft"))
    out.append(text(x, TOP + 27, f"top {100 * TOP_SHARE:g} %", 12, kind="soft"))
    heights = spread([TOP + 50 + 20 * i for i in range(len(legend))], 17, TOP + 50, TOP + PANEL_HEIGHT)
    for (layer, colour, share), y in zip(legend, heights):
        out.append(f'<line x1="{x}" x2="{x + 16}" y1="{y - 4:.1f}" y2="{y - 4:.1f}" stroke="{colour}" '
                   'stroke-width="2.4"/>')
        out.append(text(x + 22, y, f"layer {layer}", 12))
        out.append(text(x + 116, y, f"{100 * share:.0f} %", 12, "end"))
    return out + frame(x0, "(b) neurons of each layer, ascending", "neurons, %", "squared error of the outputs")


def draw_errors(kinds, name):
    layers = dict(sorted(kinds["error"].items()))
    covered = statistics.mean(line[0][0] for neurons in layers.values() for line in neurons.values())
    sums = {layer: sum(line[0][1] for line in neurons.values()) for layer, neurons in layers.items()}
    width, height = LEFT + 2 * PANEL_WIDTH + GAP + 148, TOP + PANEL_HEIGHT + 64
    out = begin(width, height, f"Errors of lines in place of activation functions{', ' + name if name else ''}",
                f"a line over {100 * covered:.0f} % of the inputs of a neuron, the others exact; mean over tokens")
    out += layer_panel(sums, LEFT) + neuron_panel(layers, LEFT + PANEL_WIDTH + GAP)
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("csv", help="what crumb-lm calibrate --distributions FILE wrote")
    parser.add_argument("--name", help="of the model; default: that of the file")
    parser.add_argument("--out-inputs", default="inputs.svg", help="default: inputs.svg")
    parser.add_argument("--out-errors", default="errors.svg", help="default: errors.svg")
    args = parser.parse_args()
    kinds = read(args.csv)
    name = Path(args.csv).stem if args.name is None else args.name
    for path, picture in ((args.out_inputs, draw_inputs(kinds, name)), (args.out_errors, draw_errors(kinds, name))):
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(picture)
        except OSError as error:
            fail(f"cannot write {path}: {error.strerror}")
    print_shares(kinds)


if __name__ == "__main__":
    main()
