#!/usr/bin/env python3
"""An unmodified llama.cpp with the plug-in beside the same without: same texts, same perplexity, whatever the type of
the weights, the number of threads, contexts and sequences.

  check.py --probe llama_probe --plugin libggml-crumb.so --libs FOLDER --models FOLDER [--lm crumb-lm] [--quick]
           [--runner qemu-...]

Texts are the likeliest tokens. Two of them may part only where both engines find the two tokens equally likely up to
NEAR_TIE: the quantized activations of either differ from exact ones by more than that (docs/numerics.md).
"""

import argparse
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

NEAR_TIE = 0.1  # nats
PERPLEXITY = 0.003  # of the other's
TYPES = "q4_0 q4_1 q5_0 q5_1 q2_K q3_K q4_K q5_K q6_K iq4_nl iq4_xs mxfp4 nvfp4 tq1_0 tq2_0 q1_0 q2_0".split()
PROMPTS = [
    "It was a dark evening, and the",
    "The old man sat down by the fire and",
    "She had never seen such a thing in all her life; and yet",
]

failures = []


def check(holds, what):
    print(("ok      " if holds else "FAILED  ") + what, flush=True)
    if not holds:
        failures.append(what)


class Probe:
    def __init__(self, arguments):
        self.a = arguments

    def run(self, *command, plugin=False, environment=None, fails=False):
        environment = dict(os.environ, LLAMA_LIBS=str(self.a.libs), **(environment or {}))
        environment.pop("GGML_BACKEND_PATH", None)
        if plugin:
            environment["GGML_BACKEND_PATH"] = str(self.a.plugin)
        done = subprocess.run(
            shlex.split(self.a.runner) + [str(self.a.probe), *map(str, command)],
            env=environment, capture_output=True, text=True, timeout=1500)
        if (done.returncode != 0) != fails:
            check(False, f"{' '.join(map(str, command))}: returned {done.returncode}\n{done.stderr[-2000:]}")
        return done.stdout, done.stderr


def texts_of(output):
    """Texts as lists of steps; a step is a list of (token, log probability), the likeliest first."""
    texts, steps = [], []
    for line in output.splitlines():
        if line == "end":
            texts.append(steps)
            steps = []
        else:
            pairs = (pair.split(":") for pair in line.split())
            steps.append([(int(token), float(value)) for token, value in pairs])
    return texts


def difference(one, other):
    """Why two texts are not the same; nothing if they are, or part at a near tie."""
    for i, (a, b) in enumerate(zip(one, other)):
        if not all(math.isfinite(value) for _, value in a + b):
            return f"token {i} is not finite"
        if a[0][0] == b[0][0]:
            continue
        gap = lambda step, loser: step[0][1] - dict(step).get(loser, -math.inf)
        gaps = gap(a, b[0][0]), gap(b, a[0][0])
        return None if max(gaps) < NEAR_TIE else f"token {i} differs, {gaps[0]:.3f} and {gaps[1]:.3f} nats apart"
    return None if len(one) == len(other) and one else "another number of tokens"


def same_texts(what, without, with_plugin):
    one, other = texts_of(without[0]), texts_of(with_plugin[0])
    reasons = [r for a, b in zip(one, other) if (r := difference(a, b))]
    check(len(one) == len(other) > 0 and not reasons, f"{what}: {len(one)} texts" + "".join(f"; {r}" for r in reasons))


def same_as_crumb_lm(what, lm, file, prompts, tokens, output):
    """Texts of a vocabulary of bytes are those of crumb-lm, or part at a near tie of the plug-in."""
    for prompt, steps in zip(prompts, texts_of(output[0]), strict=True):
        done = subprocess.run([lm, "generate", file, "-p", prompt, "-n", str(tokens), "--temperature", "0", "--json"],
                              capture_output=True, check=True)
        expected = json.loads(done.stdout)["text"].encode()
        parts = [i for i, step in enumerate(steps) if step[0][0] != expected[i]]
        gap = steps[parts[0]][0][1] - dict(steps[parts[0]]).get(expected[parts[0]], -math.inf) if parts else 0
        check(len(steps) == len(expected) and gap < NEAR_TIE, f"{what}: the text of crumb-lm behind '{prompt}'" +
              (f", as far as token {parts[0]}, {gap:.3f} nats apart" if parts else ""))


def with_weights_of_another_file(a, probe, llama, gpt2, prompts, tokens):
    with tempfile.TemporaryDirectory() as folder:
        for name, count in ("cb2s", 42), ("nested:2-4", 42):
            file = pathlib.Path(folder) / "packed.gguf"
            subprocess.run([a.lm, "quantize", llama, "--weights", name, "--chunks", "2", "--sweeps", "0", "--out", file],
                           capture_output=True, check=True)
            environment = {"CRUMB_GGML": f"weights={file}"}
            out = probe.run("greedy", llama, 1, tokens, *prompts, plugin=True, environment=environment)
            check(f"crumb: {count} tensors of weights replaced" in out[1], f"{name}: {count} tensors are replaced")
            same_as_crumb_lm(name, a.lm, file, prompts, tokens, out)
        out = probe.run("greedy", gpt2, 1, 1, prompts[0], plugin=True, environment=environment, fails=True)
        check("made of another model" in out[1], "weights of another model")
        for wrong, message in (f"{folder}/nothing.gguf", "cannot open"), (llama, "has no packed weights"):
            out = probe.run("greedy", llama, 1, 1, prompts[0], plugin=True, environment={"CRUMB_GGML": f"weights={wrong}"})
            check(message in out[1] and "packed, " not in out[1], f"weights={wrong}: {message}")


def perplexity_of(output):
    return float(re.search(r"perplexity ([0-9.]+)", output[0]).group(1))


def main():
    parser = argparse.ArgumentParser()
    for name in ("probe", "plugin", "libs", "models"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--lm", type=pathlib.Path, help="crumb-lm: files that it has quantized are tried too")
    parser.add_argument("--runner", default="", help="what runs the probe: an emulator")
    parser.add_argument("--quick", action="store_true", help="few types and tokens, for an emulator")
    a = parser.parse_args()
    a.plugin = a.plugin.resolve()
    probe = Probe(a)
    tokens = 6 if a.quick else 32
    prompts = PROMPTS[:1] if a.quick else PROMPTS
    llama, gpt2 = sorted(a.models.glob("*llama*.gguf"))[0], sorted(a.models.glob("*gpt2*.gguf"))[0]

    out = probe.run("greedy", llama, 1, 1, PROMPTS[0], plugin=True)
    check(re.search(r"crumb: \w+, [1-9]\d* tensors of weights packed", out[1]) is not None, "says what it has packed")
    out = probe.run("greedy", llama, 1, 1, PROMPTS[0], plugin=True, environment={"CRUMB_GGML": "off"})
    check("packed" not in out[1], "CRUMB_GGML=off")
    out = probe.run("greedy", llama, 1, 1, PROMPTS[0], plugin=True, environment={"CRUMB_GGML": "verbos"})
    check("verbos" in out[1] and "packed" not in out[1], "a word that there is not in CRUMB_GGML")
    out = probe.run("greedy", llama, 1, 1, PROMPTS[0], plugin=True, environment={"CRUMB_GGML": "types=q4_0"})
    check("crumb:" in out[1] and ", 0 tensors" in out[1], "CRUMB_GGML=types= without the model's type")
    out = probe.run("greedy", llama, 1, 1, PROMPTS[0], plugin=True, environment={"CRUMB_ISA": "none"})
    check("CRUMB_ISA is 'none'" in out[1], "an ISA that there is not")

    # Threads of ggml's own look for each other all the time, which takes minutes on a busy machine: there one is
    # enough, as the text does not depend on their number.
    def greedy(model, threads, **how):
        return probe.run("greedy", model, threads, tokens, *prompts, **how)

    for model in (gpt2, llama):
        without = greedy(model, 1)
        for threads in (1,) if a.quick else (1, 2, 3):
            same_texts(f"{model.name}, {threads} threads", without, greedy(model, threads, plugin=True))
    isas = () if a.quick else ("avx2", "portable")
    for variant in [{"CRUMB_GGML": "products"}, *({"CRUMB_ISA": isa} for isa in isas)]:
        same_texts(str(variant), without, greedy(llama, 1, plugin=True, environment=variant))

    for cache in ("q8_0",) if a.quick else ("q8_0", "q4_0"):
        environment = {"PROBE_CACHE": cache}
        same_texts(f"a cache of {cache}", greedy(llama, 1, environment=environment),
                   greedy(llama, 1, plugin=True, environment=environment))
    if a.lm:
        with_weights_of_another_file(a, probe, llama, gpt2, prompts, tokens)

    with tempfile.TemporaryDirectory() as folder:
        for name in TYPES[:1] if a.quick else TYPES:
            file = pathlib.Path(folder) / f"{name}.gguf"
            probe.run("quantize", llama, name, file)
            with_plugin = greedy(file, 1, plugin=True)
            same_texts(name, greedy(file, 1), with_plugin)
            check(", 43 tensors" in with_plugin[1] or a.quick, f"{name}: all matrices are taken")

    if not a.quick:
        docs = pathlib.Path(__file__).resolve().parents[2] / "docs"
        with tempfile.NamedTemporaryFile() as text:
            text.write(b"".join((docs / f"{name}.md").read_bytes() for name in ("architecture", "products", "layouts")))
            text.flush()
            for model in (llama, gpt2):
                command = ("perplexity", model, 1, 16, text.name)
                without, with_plugin = (perplexity_of(probe.run(*command, plugin=p)) for p in (False, True))
                check(abs(with_plugin / without - 1) <= PERPLEXITY,
                      f"perplexity of {model.name}: {without:.4f}, with the plug-in {with_plugin:.4f}")
    for unified in "01":
        command = ("sequences", llama, 1, tokens // 2, *PROMPTS[:2 if a.quick else 3])
        environment = {"PROBE_UNIFIED": unified}
        same_texts(f"sequences in one batch, {'one cache' if unified == '1' else 'a cache each'}",
                   probe.run(*command, environment=environment),
                   probe.run(*command, plugin=True, environment=environment))
    if not a.quick:
        command = (tokens // 2, PROMPTS[0], gpt2)
        one, other = probe.run("contexts", llama, 1, *command), probe.run("contexts", llama, 2, *command, plugin=True)
        same_texts("contexts, one after the other and two at once", one, other)
        texts = [[step[0][0] for step in text] for text in texts_of(other[0])]
        check(all(text == texts[0] for text in texts), "contexts: every one the same text")

    print(f"{len(failures)} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
