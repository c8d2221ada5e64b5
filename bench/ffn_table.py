#!/usr/bin/env python3
"""Measures folded feed-forward networks (TARDIS) by coverage and bits of the predictor, beside pruning.

  bench/ffn_table.py --crumb-lm build/lm/examples/crumb-lm --model F16.gguf --text test.txt \\
                     --calibrate calibration.txt --json ffn.json
  bench/ffn_table.py --json ffn.json

The second form prints the table of a file again. A run goes on where the file ends: rows in it are not measured again.
Everything but the networks runs in floats; tokens/s are those of continuing text, with the matrices as the file has them.
"""
import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time

PARAMETERS = ["0.50", "0.35", "0.30", "0.25"]  # what may be read per token
COVERAGES = ["0.95", "0.90", "0.85", "0.75"]   # of rows with 4 bits
BITS = {"u2": 2, "cb2": 2, "cb3": 3, "cb4": 4, "cb2s": 2}  # of the codes of predictors
CONTROLS = ["magnitude", "wanda", "ria"]
# GGUF's types of numbers, as struct knows them.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
COLUMNS = [("recipe", ""), ("parameters", "left, %"), ("perplexity", ""), ("KL", "nats"), ("fixed", "%"),
           ("missed", "%"), ("read", "KB/token"), ("speed", "tokens/s")]


def fail(message):
    sys.exit(f"ffn_table.py: {message}")


def read_metadata(path):
    """The numbers and strings among a GGUF file's keys."""
    try:
        with open(path, "rb") as file:
            def number(form):
                return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))[0]

            def value(of):
                if of == STRING:
                    return file.read(number("Q")).decode(errors="replace")
                if of == ARRAY:
                    of, count = number("I"), number("Q")
                    if of in NUMBERS:
                        file.seek(count * struct.calcsize("<" + NUMBERS[of]), os.SEEK_CUR)
                    else:
                        for _ in range(count):
                            value(of)
                    return None
                return number(NUMBERS[of])

            if file.read(4) != b"GGUF":
                fail(f"{path} is not a GGUF file")
            number("I")  # version
            number("Q")  # tensors
            return {value(STRING): value(number("I")) for _ in range(number("Q"))}
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except (struct.error, KeyError):
        fail(f"{path} is not a GGUF file, or cut off")


def read_shape(path):
    """Width and hidden width of a model's networks."""
    keys = read_metadata(path)
    arch = keys.get("general.architecture")
    try:
        return int(keys[f"{arch}.embedding_length"]), int(keys[f"{arch}.feed_forward_length"])
    except (KeyError, TypeError):
        fail(f"{path} does not say how wide its feed-forward networks are")


def plan():
    """All rows: (name, kind)."""
    rows = [("dense", "dense")]
    for p in PARAMETERS:
        rows += [(f"tardis:parameters={p}:predictor={f}:fold=f32:rows=f16", "folded")
                 for f in ("u2", "cb2", "cb3", "cb4")]
        rows += [(f"{by}:{1 - float(p):.2f}", "pruned") for by in CONTROLS]
    rows.append(("dense:q4_0", "dense"))
    return rows + [(f"tardis:coverage={c}:predictor=cb2s:rest=u2:fold=q4_0:rows=q4_0", "folded") for c in COVERAGES]


class Runner:
    def __init__(self, args):
        self.args = args

    def run(self, program, *command):
        """What crumb-lm or crumb-lab prints."""
        try:
            done = subprocess.run([program, *command], capture_output=True, text=True, check=False)
        except OSError as error:
            fail(f"cannot run {program}: {error.strerror}")
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise RuntimeError(lines[-1] if lines else f"{program} {command[0]} ended with {done.returncode}")
        return done.stdout

    def object(self, program, *command):
        text = self.run(program, *command, "--threads", str(self.args.threads), "--json")
        try:
            return json.loads(text)
        except ValueError:
            raise RuntimeError(f"{program} {command[0]} --json printed no JSON") from None

    def measured(self):
        """What is measured, and beside what."""
        return "--text", self.args.text, "--chunks", str(self.args.chunks), "--against", self.args.model

    def perplexity(self, model, *options):
        return self.object(self.args.crumb_lm, "perplexity", model, "--activations", "f32", *self.measured(),
                           *options)

    def speed(self, model, *options):
        """Of generation after text: what is fixed, and so the speed, depends on what the networks see."""
        with open(self.args.text, encoding="utf-8", errors="replace") as file:
            prompt = file.read(200)
        return self.object(self.args.crumb_lm, "generate", model, "--prompt", prompt, "-n", "300", "--seed", "1",
                           *options)

    def measure(self, name, kind, directory):
        if kind == "pruned":
            lab = os.path.join(os.path.dirname(self.args.crumb_lm), "crumb-lab")
            return {"perplexity": self.object(lab, "prune", self.args.model, "--by", name, "--calibrate",
                                              self.args.calibrate, *self.measured())}
        if kind == "dense":
            weights = ("--weights", "q4_0" if name.endswith("q4_0") else "stored")
            return {"perplexity": self.perplexity(self.args.model, *weights),
                    "speed": self.speed(self.args.model, *weights)}
        folded = os.path.join(directory, "folded.gguf")
        self.run(self.args.crumb_lm, "calibrate", self.args.model, "--ffn", name, "--text", self.args.calibrate,
                 "--chunks", str(self.args.calibrate_chunks), "--threads", str(self.args.threads), "--out", folded)
        return {"perplexity": self.perplexity(folded, "--weights", "f32", "--ffn", "tardis"),
                "speed": self.speed(folded, "--ffn", "tardis")}


def load(path):
    """What a file has measured."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except ValueError as error:
        fail(f"{path} is not JSON ({error})")
    if not isinstance(data, dict) or not all(isinstance(data.get(k), dict) for k in ("settings", "rows")):
        fail(f"{path} was not written by this script")
    return data


def save(path, data):
    """Replaces the file at once, so that one that is interrupted stays whole."""
    try:
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.write("\n")
        os.replace(path + ".tmp", path)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")


def measure(args, rows):
    """The file's content with all rows measured, and whether all could be."""
    width, hidden = read_shape(args.model)
    settings = {"model": args.model, "text": args.text, "calibrate": args.calibrate, "chunks": args.chunks,
                "calibrate_chunks": args.calibrate_chunks, "threads": args.threads, "width": width, "hidden": hidden}
    data = load(args.json) if args.json and os.path.exists(args.json) else {"settings": settings, "rows": {}}
    for key, value in settings.items():
        if data["settings"].get(key) != value:
            fail(f"{args.json} was measured with {key} {data['settings'].get(key)}, not {value}: name another file")
    runner = Runner(args)
    left = [row for row in rows if row[0] not in data["rows"]]
    complete = True
    with tempfile.TemporaryDirectory() as directory:
        for index, (name, kind) in enumerate(left, 1):
            print(f"[{index}/{len(left)}] {name} ", end="", file=sys.stderr, flush=True)
            start = time.monotonic()
            try:
                data["rows"][name] = runner.measure(name, kind, directory)
            except RuntimeError as error:
                print(f"failed: {error}", file=sys.stderr)
                complete = False
                continue
            print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)
            if args.json:
                save(args.json, data)
    return data, complete


def parameters_left(name, kind, result, settings):
    """As TARDIS counts: C and the fixed neurons in halves, the predictor at the bits of its codes."""
    if kind == "dense":
        return 1.0
    if kind == "pruned":
        return result["ffn_parameters_left"]
    bits = BITS[re.search("predictor=([^:]+)", name)[1]]
    return settings["width"] / (2 * settings["hidden"]) + bits / 32 + result["fixed"]


def cells(name, kind, row, settings):
    result, speed = row["perplexity"], row.get("speed", {})

    def shown(value, form, factor=1.0):
        return "-" if value is None else format(value * factor, form)

    # Zeros of pruned matrices are read like other weights.
    read = None if kind == "pruned" else result.get("ffn_bytes_per_token")
    return [name, shown(parameters_left(name, kind, result, settings), ".1f", 100), shown(result["ppl"], ".4f"),
            shown(result["kl_divergence"], ".5f"), shown(result.get("fixed"), ".2f", 100),
            shown(result.get("missed"), ".3f", 100), shown(read, ".1f", 1e-3),
            shown(speed.get("tokens_per_second"), ".0f")]


def print_table(data, rows, path):
    settings = data["settings"]
    try:
        lines = [cells(name, kind, data["rows"][name], settings) for name, kind in rows if name in data["rows"]]
        print(f"{settings['model']}: networks of {settings['width']} x {settings['hidden']}, "
              f"{settings['chunks'] or 'all'} windows of {settings['text']}, folded on "
              f"{settings['calibrate_chunks']} of {settings['calibrate']}; threads: {settings['threads'] or 'all'}\n")
    except (KeyError, TypeError) as error:
        fail(f"{path or 'crumb-lm'}: {error} is missing")
    lines = [[c[0] for c in COLUMNS], [c[1] for c in COLUMNS]] + lines
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    for line in lines:
        print("  ".join([line[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(line[1:], widths[1:])]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crumb-lm", metavar="BINARY", help="without it, the table of --json FILE is printed")
    parser.add_argument("--model", help="GGUF file with halves or floats, architecture gpt2")
    parser.add_argument("--text", help="file to measure on")
    parser.add_argument("--calibrate", metavar="TEXT", help="file to fold and prune on")
    parser.add_argument("--chunks", type=int, default=64, help="windows to measure on; 0: all; default: 64")
    parser.add_argument("--calibrate-chunks", type=int, default=64, help="windows to fold on; default: 64")
    parser.add_argument("--threads", type=int, default=1, help="0: all cores; default: 1")
    parser.add_argument("--json", metavar="FILE", help="keeps what crumb-lm printed")
    parser.add_argument("--only", metavar="REGEX", default="", help="rows whose names have a match in them")
    args = parser.parse_args()
    try:
        rows = [row for row in plan() if re.search(args.only, row[0])]
    except re.error as error:
        fail(f"--only: {error}")
    if not rows:
        fail("--only fits none of " + ", ".join(name for name, _ in plan()))
    complete = True
    if args.crumb_lm:
        for option in ("model", "text", "calibrate"):
            if not getattr(args, option):
                fail(f"--{option} is needed to measure")
        data, complete = measure(args, rows)
    elif args.json:
        data = load(args.json)
    else:
        fail("either --crumb-lm, to measure, or --json, to print, is needed")
    print_table(data, rows, args.json)
    if not complete:
        sys.exit(1)


if __name__ == "__main__":
    main()
