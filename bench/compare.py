#!/usr/bin/env python3
"""Compares two JSON files of crumb-bench row by row.

A row's speedup is its time in A divided by that in B: above 1, B is faster. With repetitions, times are their medians.
Rows that the CPU of a file lacks and rows that failed count as absent. The geometric means are over the rows that both
files have, by the first part of their names.
"""
import argparse
import json
import math
import re
import statistics
import sys

MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


def fail(message):
    sys.exit(f"compare.py: {message}")


def read(path):
    """The context of a file, and microseconds by row."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        fail(f"{path} is no JSON, or its end is missing: {error}")
    try:
        samples, medians = {}, {}
        for run in content["benchmarks"]:
            if run.get("error_occurred"):
                continue
            name, unit = run["run_name"], MICROSECONDS[run["time_unit"]]
            if run.get("run_type") != "aggregate":
                samples.setdefault(name, []).append(float(run["real_time"]) * unit)
            elif run["aggregate_name"] == "median":
                medians[name] = float(run["real_time"]) * unit
        # A file of aggregates only has no samples.
        times = {name: statistics.median(values) for name, values in samples.items()} | medians
        return dict(content["context"]), {name: time for name, time in times.items() if time > 0}
    except (AttributeError, KeyError, TypeError, ValueError):
        fail(f"{path} is JSON, but not of crumb-bench (written by --benchmark_out)")


def describe(letter, path, context):
    names = (context.get(key) for key in ("board", "phone", "cpu_model", "cpu_parts"))
    machine = next((name for name in names if name and name != "unknown"), "unknown machine")
    details = [machine, f"crumb {context.get('crumb_version', '?')}", context.get("crumb_commit"), context.get("date"),
               "pinned to " + context["pinned_to"] if "pinned_to" in context else None]
    print(f"{letter}: {path}: {', '.join(d for d in details if d)}")


def only(letter, names):
    if names:
        print(f"\nonly in {letter}:")
        for name in names:
            print(f"  {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", metavar="A.json")
    parser.add_argument("b", metavar="B.json")
    parser.add_argument("--filter", default="", metavar="REGEX", help="only rows whose names have a match in them")
    options = parser.parse_args()
    try:
        wanted = re.compile(options.filter)
    except re.error as error:
        fail(f"--filter {options.filter}: {error}")
    (context_a, a), (context_b, b) = read(options.a), read(options.b)
    a, b = ({name: time for name, time in rows.items() if wanted.search(name)} for rows in (a, b))
    both = [name for name in a if name in b]
    if not a and not b:
        fail("neither file has such rows")

    describe("A", options.a, context_a)
    describe("B", options.b, context_b)
    if both:
        width = max(map(len, both))
        print(f"\n{'row':{width}}  {'A':>13}  {'B':>13}  speedup")
        for name in both:
            print(f"{name:{width}}  {a[name]:10.1f} us  {b[name]:10.1f} us  {a[name] / b[name]:6.2f}x")
        groups = {}
        for name in both:
            groups.setdefault(name.split("/")[0], []).append(math.log(a[name] / b[name]))
        width = max(map(len, (*groups, "geometric mean of")))
        print(f"\n{'geometric mean of':{width}}  rows  speedup")
        for group, logarithms in groups.items():
            print(f"{group:{width}}  {len(logarithms):4}  {math.exp(statistics.fmean(logarithms)):6.2f}x")
    only("A", [name for name in a if name not in b])
    only("B", [name for name in b if name not in a])


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.stderr.close()
