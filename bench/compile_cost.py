#!/usr/bin/env python3
"""What programs that include crumb cost to compile: seconds of the compiler, memory, size of the object file.

    bench/compile_cost.py                                    c++ -O2, every file three times
    bench/compile_cost.py --compiler g++-12 --compiler clang++-19 --flags "-O3 -march=native"
    bench/compile_cost.py --include include --include ../other/include        two trees, by turns
    bench/compile_cost.py --only q4_0 --repeat 9

Seconds depend on the machine and on what else it does; units less so: one unit is what a function with a single
std::regex_search takes, compiled by the same compiler with the same flags right before and after. Figures are medians.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

REFERENCE = """
#include <regex>
#include <string>
bool found(const std::string& text, const std::string& pattern) {
    return std::regex_search(text, std::regex(pattern));
}
"""

HEADER = """
#include <crumb/crumb.hpp>
"""

PRODUCT = """
#include <crumb/crumb.hpp>
crumb::status multiply(std::span<const std::byte> weights, crumb::matrix_view<const float> x,
                       crumb::matrix_view<float> y, std::span<std::byte> scratch) {
    const auto packed = crumb::packed_view<crumb::FORMAT>::open(weights);
    if (!packed)
        return packed.error();
    const auto plan = crumb::linear<crumb::FORMAT>::plan(*packed);
    if (!plan)
        return plan.error();
    auto a = crumb::activations::create(scratch, plan->input_plan(), x.rows);
    if (!a)
        return a.error();
    a->quantize(x);
    plan->run(*a, y);
    return {};
}
"""

CACHE = """
#include <crumb/crumb.hpp>
crumb::status attend(std::size_t heads, const crumb::kv_cache_options& options,
                     std::span<std::byte> state, std::span<std::byte> page, std::span<std::byte> scratch,
                     crumb::matrix_view<const float> q, crumb::matrix_view<const float> k,
                     crumb::matrix_view<const float> v, crumb::matrix_view<float> y) {
    auto cache = crumb::kv_cache::create(options, state);
    const auto attention = crumb::kv_attention::plan(options, {.heads = heads});
    if (!cache || !attention)
        return cache ? attention.error() : cache.error();
    if (const crumb::status s = cache->add_page(page); !s)
        return s;
    if (const crumb::status s = cache->write(0, k, v); !s)
        return s;
    if (const crumb::status s = attention->run(q, *cache, 0, y, scratch); !s)
        return s;
    const crumb::status s = cache->advance(q.rows);
    cache->encode(scratch);
    return s;
}
"""

FOLDED = """
#include <crumb/crumb.hpp>
crumb::status feed_forward(const crumb::packed_view<crumb::q4_0>& fold,
                           const crumb::packed_view<crumb::u2>& predictor, const crumb::neuron_rows& neurons,
                           crumb::matrix_view<const float> x, crumb::matrix_view<float> y,
                           std::span<std::byte> scratch) {
    const auto folded = crumb::linear<crumb::q4_0>::plan(fold);
    const auto predicted = crumb::linear<crumb::u2>::plan(predictor);
    if (!folded || !predicted)
        return folded ? predicted.error() : folded.error();
    const crumb::folded_ffn_parts parts{
        .fold = *folded, .predictor = *predicted, .neurons = neurons, .activation = {}};
#if CRUMB_VERSION_MINOR > 1
    const auto network = crumb::folded_ffn::plan({x.cols, predicted->n(), y.cols}, parts);
#else
    const auto network = crumb::folded_ffn::plan(parts);
#endif
    if (!network)
        return network.error();
    network->run({x, y, scratch});
    return {};
}
"""

EVERYTHING = """
#include <crumb/compile.hpp>
CRUMB_COMPILE_ALL_KERNELS
"""


def example(include):
    """The README's first C++ block, as tests/consumer compiles it."""
    with open(os.path.join(include, "..", "README.md"), encoding="utf-8") as f:
        return re.search(r"\n```cpp\n(.*?)\n```", f.read(), re.DOTALL).group(1) + "\n"


def cases(include, isa):
    """(name, source, macros) of all files; those that a tree has no headers for are left out."""
    one = [f"CRUMB_SINGLE_ISA={isa}"]
    files = [
        ("crumb.hpp, no plan", HEADER),
        ("q4_0", PRODUCT.replace("FORMAT", "q4_0")),
        ("cb2s", PRODUCT.replace("FORMAT", "cb2s")),
        ("README's example", example(include)),
        ("cache and attention", CACHE),
        ("folded network", FOLDED),
    ]
    listed = [(name, source, []) for name, source in files]
    listed += [(f"{name}, {isa} only", source, one) for name, source in files if name in ("q4_0", "cache and attention")]
    if os.path.exists(os.path.join(include, "crumb", "compile.hpp")):
        listed += [(f"{name}, compiled kernels", source, ["CRUMB_COMPILED_KERNELS"]) for name, source in files]
        listed += [("all kernels, once", EVERYTHING, [])]
    return listed


def compile_once(command, source, directory):
    """(user seconds, peak MB, object kB) of one run of the compiler."""
    path = os.path.join(directory, "source.cpp")
    target = os.path.join(directory, "source.o")
    with open(path, "w", encoding="utf-8") as f:
        f.write(source)
    process = subprocess.Popen([*command, "-c", path, "-o", target])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"failed: {shlex.join(command)} with the source\n{source}")
    peak = used.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    return used.ru_utime, peak, os.path.getsize(target) / 1024


def measure(compiler, options, directory):
    """One dictionary per include directory and file, in the order of `cases`."""
    command = [*shlex.split(compiler), "-std=c++20", *shlex.split(options.flags)]
    machine = subprocess.run([command[0], "-dumpmachine"], capture_output=True, text=True, check=True).stdout
    isa = "neon_dotprod" if re.match("aarch64|arm64", machine) else "avx2"
    systems = [f"-isystem{d}" for d in options.system]

    rows = []
    for include in options.include:
        for name, source, macros in cases(include, isa):
            if options.only and not any(part in name for part in options.only):
                continue
            flags = [f"-I{include}", *systems, *(f"-D{m}" for m in macros)]
            rows.append({"compiler": compiler, "include": include, "file": name, "source": source,
                         "command": [*command, *flags], "seconds": [], "units": []})
    references = []
    for _ in range(options.repeat):
        before = compile_once(command, REFERENCE, directory)[0]
        references.append(before)
        for row in rows:
            seconds, row["peak_mb"], row["object_kb"] = compile_once(row["command"], row["source"], directory)
            after = compile_once(command, REFERENCE, directory)[0]
            row["seconds"].append(seconds)
            row["units"].append(2 * seconds / (before + after))
            references.append(after)
            before = after
    for row in rows:
        del row["source"]
        row["command"] = shlex.join(row["command"])
        row["seconds"] = statistics.median(row["seconds"])
        row["units"] = statistics.median(row["units"])
    return rows, statistics.median(references)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--compiler", action="append", help="a command; may be given several times (default: c++)")
    parser.add_argument("--flags", default="-O2", help="default: -O2")
    parser.add_argument("--include", action="append", metavar="DIR",
                        help="directory that contains crumb/, with its README.md beside it; may be given several times")
    parser.add_argument("--system", action="append", default=[], metavar="DIR",
                        help="where xsimd is, if the compiler does not find it by itself")
    parser.add_argument("--only", action="append", metavar="TEXT", help="files with this in their name; may be given "
                        "several times")
    parser.add_argument("--repeat", type=int, default=3, help="times that each file is compiled (default: 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args()
    options.include = options.include or [os.path.normpath(os.path.join(here, "..", "include"))]
    if options.repeat < 1:
        parser.error("--repeat is at least 1")

    results = []
    with tempfile.TemporaryDirectory() as directory:
        for compiler in options.compiler or ["c++"]:
            rows, reference = measure(compiler, options, directory)
            results.append({"compiler": compiler, "flags": options.flags, "repeat": options.repeat,
                            "reference_seconds": reference, "files": rows})
            if options.json:
                continue
            for include in options.include:
                print(f"\n{compiler} {options.flags}, {include}; 1 unit = {reference:.2f} s")
                print(f"{'file':40} {'user s':>8} {'units':>8} {'peak MB':>9} {'object kB':>10}")
                for row in rows:
                    if row["include"] == include:
                        print(f"{row['file']:40} {row['seconds']:8.2f} {row['units']:8.2f} {row['peak_mb']:9.0f} "
                              f"{row['object_kb']:10.0f}")
                sys.stdout.flush()
    if options.json:
        json.dump(results, sys.stdout, indent=2)
        print()


if __name__ == "__main__":
    main()
