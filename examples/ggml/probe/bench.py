#!/usr/bin/env python3
"""Tokens per second of llama.cpp with the plug-in beside without, in processes that take turns.

  bench.py --probe llama_probe --plugin libggml-crumb.so --libs FOLDER MODEL... [--threads 1,2] [--rounds 5]
           [--prompt 512] [--generate 64] [--depth 0] [--batches 1,2,4,8,16,32,64,128,256,512] [--run 'chrt -f 10']

Prints medians over the rounds, and the median of the ratios of neighbouring runs.
"""

import argparse
import os
import pathlib
import shlex
import statistics
import subprocess


def measure(a, model, threads, plugin, environment):
    command = ([*shlex.split(a.run), str(a.probe)] +
               (["batches", model, threads, 1, *a.batches.split(",")] if a.batches
                else ["bench", model, threads, a.prompt, a.generate, 1, a.depth]))
    environment = dict(os.environ, LLAMA_LIBS=str(a.libs), **environment)
    environment.pop("GGML_BACKEND_PATH", None)
    if plugin:
        environment["GGML_BACKEND_PATH"] = str(plugin)
    done = subprocess.run([str(c) for c in command], env=environment, capture_output=True, text=True, check=True)
    return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}


def main():
    parser = argparse.ArgumentParser()
    for name in ("probe", "plugin", "libs"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("models", nargs="+", type=pathlib.Path)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--batches", default="", help="sizes of batches, instead of a prompt and a text")
    parser.add_argument("--set", default="", help="CRUMB_GGML of the runs with the plug-in")
    parser.add_argument("--run", default="", help="a command that runs the programs")
    a = parser.parse_args()
    print("| model | threads | | llama.cpp | with crumb | ratio |\n|---|---|---|---|---|---|")
    for model in a.models:
        for threads in a.threads.split(","):
            rounds = []
            for _ in range(a.rounds):
                rounds.append((measure(a, model, threads, None, {}),
                               measure(a, model, threads, a.plugin.resolve(), {"CRUMB_GGML": a.set})))
            for what in rounds[0][0]:
                without = statistics.median(r[0][what] for r in rounds)
                with_plugin = statistics.median(r[1][what] for r in rounds)
                ratio = statistics.median(r[1][what] / r[0][what] for r in rounds)
                print(f"| {model.stem} | {threads} | {what} | {without:.4g} | {with_plugin:.4g} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
