#!/usr/bin/env python3
"""Instructions of crumb's products and of its attention on Arm, counted under qemu.

One command builds crumb-arm-count for AArch64 with each cross compiler that is installed, builds the counting
plugin, runs every (format, ISA, m) on the emulated CPU that has just that ISA, and prints a table. Each program runs
with one and with two repetitions; the difference is the product (`linear::run`) alone, without set-up. K is 4096, N
is 256. Every run checks its result in double precision and fails if another ISA than the named one was executed.

  instr/MAC    executed instructions of `run` per multiply-accumulate
  act          executed instructions of `activations::quantize` per element, counted apart
  cycles/MAC   with --mca: what llvm-mca predicts for the hot blocks, by core. It assumes that every load hits L1 and
               that nothing stalls between blocks: it compares kernels, it does not replace a board. In-order cores
               (cortex-a55) are modelled least well.
  ceiling      with --mca: cycles/MAC of the ISA's multiply-accumulate instruction alone, from independent registers

--attention counts steps of `kv_attention::run` over 2048 coded tokens and one kv head of 128 instead: per token and pair
of channels for one row, per multiply-accumulate for a chunk of a prompt of 128 rows.

Needs qemu-user, a C compiler, CMake, and aarch64-linux-gnu-g++ or clang++-19 with Debian's AArch64 libraries.
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
K, N = 4096, 256
# Nested weights by bits: their kernels look levels up, uniform ones like any others, so that one row counts both.
NESTED = ("nested:codebook:2", "nested:codebook:3", "nested:codebook:4")
LISTS = re.findall(r"define CRUMB_FOR_EACH_(?:RECORD_)?FORMAT\(F\)((?:.*\\\n)*.*)",
                   (ROOT / "include/crumb/format/list.hpp").read_text())
GROUPED, RECORDED = (re.findall(r"F\((\w+)\)", names) for names in LISTS)
FORMATS = (*GROUPED, *RECORDED, *NESTED)
# Formats without a plain baseline are counted for fewer m: for what decodes and for what has
# the time to expand weights.
EXACT_ROWS = {"neon": (1,), "neon_dotprod": (1, 16), "neon_i8mm": (1, 16)}
ROWS = (1, 2, 4, 8, 16)
PANEL_ROWS = (32, 128)
# The oldest CPU with each ISA: an instruction that leaks from a newer one is fatal there.
CPUS = {"neon": "cortex-a72", "neon_dotprod": "cortex-a76", "neon_i8mm": "max"}
COMPILERS = {
    "gcc": ("aarch64-linux-gnu-g++", "cmake/aarch64-linux-gnu.cmake"),
    "clang": ("clang++-19", "cmake/aarch64-linux-gnu-clang.cmake"),
}
ATTENTION = "crumb-arm-attention"
TOKENS, HEAD_SIZE = 2048, 128
CODECS = ("f16", "q8_0", "kivi4", "kivi2", "pq4", "pq3", "pq2")
QUERIES = (1, 4, 8)
PROMPT_CODECS, PROMPT_QUERIES, PROMPT_ROWS = ("f16", "pq4"), 4, 128
CORES = ("neoverse-n1", "neoverse-n2", "neoverse-v2", "cortex-a55")
# What an ISA's mac_peak in examples/lm/machine/ceilings.hpp repeats, and the products of one round.
CEILINGS = {
    "neon": (["smull v{d}.8h, v30.8b, v31.8b", "smlal2 v{d}.8h, v30.16b, v31.16b", "sadalp v{a}.4s, v{d}.8h"], 16),
    "neon_dotprod": (["sdot v{a}.4s, v30.16b, v31.16b"], 16),
    "neon_i8mm": (["smmla v{a}.4s, v30.16b, v31.16b"], 32),
}


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def build(name, directory, target, jobs):
    """A program built by a compiler, or None if that is not installed."""
    compiler, toolchain = COMPILERS[name]
    if shutil.which(compiler) is None:
        print(f"{compiler} is not installed: skipped")
        return None
    # Attention multiplies one format at most.
    kernels = ["-DCRUMB_KERNEL_FORMATS=q8_0"] if target == ATTENTION else []
    where = directory / (name + "-attention" if kernels else name)
    run(["cmake", "-S", ROOT, "-B", where, f"-DCMAKE_TOOLCHAIN_FILE={ROOT / toolchain}", "-DCMAKE_BUILD_TYPE=Release",
         "-DCRUMB_BUILD_TESTS=OFF", "-DCRUMB_BUILD_EXAMPLES=OFF", "-DCRUMB_BUILD_BENCH=OFF",
         "-DCRUMB_BUILD_ARM_COUNT=ON", "-DCRUMB_WERROR=OFF", *kernels])
    run(["cmake", "--build", where, "--target", target, "--parallel", jobs])
    return where / "bench" / target


def exact_formats(program):
    """The formats without a plain baseline, as the program knows them."""
    return {*run(["qemu-aarch64", program, "exact"]).split(), *NESTED}


def executed(program, plugin, cpu, arguments):
    """How often each address was executed."""
    with tempfile.NamedTemporaryFile(mode="r", suffix=".counts") as out:
        run(["qemu-aarch64", "-cpu", cpu, "-d", "plugin", "-plugin", f"{plugin},out={out.name}", program, *arguments])
        return {int(address, 16): int(count) for address, count in (line.split() for line in out)}


def repeated(program, plugin, cpu, *arguments):
    """Executions that one repetition adds, by address."""
    one, two = (executed(program, plugin, cpu, [*map(str, arguments), str(n)]) for n in (1, 2))
    difference = {a: c - one.get(a, 0) for a, c in two.items()}
    return {a: c for a, c in difference.items() if c > 0}


def disassembly(program):
    objdump = shutil.which("aarch64-linux-gnu-objdump") or shutil.which("llvm-objdump-19") or "llvm-objdump"
    lines = {}
    for line in run([objdump, "-d", "--no-show-raw-insn", program]).splitlines():
        found = re.match(r"\s*([0-9a-f]+):\s+(\S.*)$", line)
        if found:
            lines[int(found[1], 16)] = found[2].split("//")[0].strip()
    return lines


def blocks(counts):
    """Runs of neighbouring instructions that were executed equally often, the heaviest first."""
    found = []
    for address in sorted(counts):
        if found and address == found[-1][-1] + 4 and counts[address] == counts[found[-1][-1]]:
            found[-1].append(address)
        else:
            found.append([address])
    return sorted(found, key=lambda b: -len(b) * counts[b[0]])


def simulated(instructions, core, iterations=200):
    """Cycles of one pass through instructions, by llvm-mca."""
    text = []
    for line in instructions:
        line = re.sub(r"<[^>]*>", "", line).strip()
        if re.match(r"(b|b\.\w+|bl|cbn?z|tbn?z)\b", line):
            line = re.sub(r"\b(0x)?[0-9a-f]{4,}\s*$", "L0", line)
        # Neither an address computation nor a return matters for the cost of a loop.
        text.append("mov x9, x9" if line.startswith("adr") else "nop" if line.startswith("ret") else line)
    mca = shutil.which("llvm-mca-19") or "llvm-mca"
    done = subprocess.run([mca, "-mtriple=aarch64-linux-gnu", f"-mcpu={core}", "-mattr=+dotprod,+i8mm,+fullfp16",
                           f"-iterations={iterations}", "-skip-unsupported-instructions=lack-sched"],
                          input="L0:\n" + "\n".join(text) + "\n", capture_output=True, text=True)
    cycles = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    return int(cycles[1]) / iterations if cycles else None


def cycles(counts, lines, units, core):
    """Cycles per unit: blocks of at least 3 % of the instructions, scaled up to all of them."""
    total = sum(counts.values())
    cost = covered = 0
    for block in blocks(counts):
        share = len(block) * counts[block[0]] / total
        if share < 0.03:
            break
        predicted = simulated([lines[a] for a in block], core)
        if predicted is None:
            return None
        cost += predicted * counts[block[0]]
        covered += share
    return cost / covered / units


def lacks(core, isa):
    """Whether a core does not have an ISA; the simulator would accept its instructions all the same."""
    return isa == "neon_i8mm" and core in ("neoverse-n1", "cortex-a55")


def ceiling(isa, core):
    if lacks(core, isa):
        return None
    sequence, products = CEILINGS[isa]
    rounds = 12
    code = [line.format(a=i, d=12 + i) for line in sequence for i in range(rounds)]
    predicted = simulated(code, core)
    return predicted / (products * rounds) if predicted else None


def mode_and_weights(f):
    """("absorbed", "q4_0") of absorbed:q4_0; the mode of exact products is empty."""
    return ("", f) if f in NESTED else f.rpartition(":")[::2]


def quantized_for(f, formats):
    """Whose activations are counted: products of one mode share them, but for formats with records."""
    return f if mode_and_weights(f)[0] or f in RECORDED else formats[0]


def number(value, digits=4):
    return "-" if value is None else f"{value:.{digits}f}".lstrip("0")


def print_attention(programs, plugin, isas, jobs):
    """The table of --attention."""
    decoding = [(c, q, 1, "floats") for c in CODECS for q in QUERIES]
    prompts = [(c, PROMPT_QUERIES, PROMPT_ROWS, by) for c in PROMPT_CODECS for by in ("floats", "int8")]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        counts = {(name, i, case): pool.submit(repeated, program, plugin, CPUS[i], case[0], i, *case[1:])
                  for name, program in programs.items() for i in isas for case in decoding + prompts}

    def cells(case, units):
        return "".join(f"{number(sum(counts[n, i, case].result().values()) / units, 3):>{2 + max(10, len(i))}}"
                       for n in programs for i in isas)

    head = "".join(f"{i:>{2 + max(10, len(i))}}" for _ in programs for i in isas)
    by_compiler = "" if len(programs) == 1 else " (" + ", ".join(programs) + ")"
    print(f"{f'instr per token and channel pair{by_compiler}':48}{head}")
    for case in decoding:
        codec, queries = case[:2]
        print(f"{f'{codec}, queries per kv head: {queries}':48}{cells(case, TOKENS * HEAD_SIZE // 2)}")
    print(f"{f'instr/MAC{by_compiler}':48}{head}")
    for case in prompts:
        macs = 2 * HEAD_SIZE * case[1] * case[2] * (TOKENS + (case[2] + 1) / 2)
        print(f"{f'{case[0]}, prompt, {case[3]}':48}{cells(case, macs)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mca", action="store_true", help="predict cycles as well")
    parser.add_argument("--compiler", action="append", choices=COMPILERS, help="default: all that are installed")
    parser.add_argument("--format", action="append", choices=FORMATS, dest="formats")
    parser.add_argument("--isa", action="append", choices=CPUS, dest="isas")
    parser.add_argument("--rows", type=int, action="append", help="values of m")
    parser.add_argument("--attention", action="store_true", help="steps of attention instead of products")
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "arm-count")
    parser.add_argument("--dump", type=pathlib.Path, help="write the hot blocks of every row into this directory")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers or emulators at a time")
    options = parser.parse_args()
    formats, isas = options.formats or FORMATS, options.isas or list(CPUS)

    directory = options.build_dir.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    plugin = directory / "icount.so"
    run(["cc", "-shared", "-fPIC", "-O2", "-o", plugin, pathlib.Path(__file__).with_name("icount.c")])
    target = ATTENTION if options.attention else "crumb-arm-count"
    programs = {name: build(name, directory, target, str(options.jobs)) for name in options.compiler or COMPILERS}
    programs = {name: program for name, program in programs.items() if program}
    if not programs:
        sys.exit("no compiler for AArch64: install g++-aarch64-linux-gnu")
    if options.attention:
        return print_attention(programs, plugin, isas, options.jobs)
    lines = {name: disassembly(program) for name, program in programs.items()}
    exact = exact_formats(next(iter(programs.values())))
    uniform = [f for f in formats if f not in exact]

    # (format, kind, isa, m); the plain baseline takes the best ISA of its CPU and is linear in m.
    cases = [(f, "plain", i, 1) for i in isas for f in uniform if i != "neon_i8mm"]
    cases += [(f, "linear", i, m) for i in isas for f in formats
              for m in options.rows or (EXACT_ROWS[i] if f in exact else ROWS)]
    # One row after the other, so that m = 1 says it all.
    cases += [("absorbed:q4_0", "linear", i, 1) for i in isas if i != "neon" and "q4_0" in formats]
    cases += [("absorbed:u2", "linear", i, 1) for i in isas if i == "neon_i8mm" and "u2" in formats]
    cases += [(f"panels:{f}", "linear", i, m) for i in isas if i == "neon_i8mm" for f in uniform for m in PANEL_ROWS]
    jobs = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for name, program in programs.items():
            for f, kind, i, m in cases:
                isa = "plain" if kind == "plain" else i
                jobs[name, f, kind, i, m] = pool.submit(repeated, program, plugin, CPUS[i], f, isa, m)
            for f, kind, i, m in cases:
                act = quantized_for(f, formats)
                if kind == "linear" and (name, "act", act, i, m) not in jobs:
                    jobs[name, "act", act, i, m] = pool.submit(
                        repeated, program, plugin, CPUS[i], f"activations:{act}", i, m)
        predicted = {}
        if options.mca:
            for case in [(name, *c) for name in programs for c in cases]:
                counts = jobs[case].result()
                for core in CORES:
                    if lacks(core, case[3]):
                        continue
                    predicted[case, core] = pool.submit(cycles, counts, lines[case[0]], K * N * case[4], core)

    names = list(programs)
    width = 8 * len(names)
    head = f"{'':44}" + "instr/MAC".rjust(width) + "   " + "act instr/element".rjust(width)
    if options.mca:
        head += "   " + "".join(f"{c.split('-')[1] + ' cycles/MAC':>{max(width, 15)}}   " for c in CORES)
    print(head.rstrip())
    line = f"{'row':44}" + "".join(f"{n:>8}" for n in names) + "   " + "".join(f"{n:>8}" for n in names).rjust(
        max(width, 17))
    if options.mca:
        line += "   " + ("".join(f"{n:>8}" for n in names).rjust(max(width, 15)) + "   ") * len(CORES)
    print(line.rstrip())
    for f, kind, i, m in cases:
        prefix, name = mode_and_weights(f)
        line = f"{f'{kind}/{name}/{i}/m:{m}' + ('/' + prefix if prefix else ''):44}"
        counts = {name: jobs[name, f, kind, i, m].result() for name in names}
        line += "".join(f"{number(sum(counts[n].values()) / (K * N * m)):>8}" for n in names)
        act_of = quantized_for(f, formats)
        act = [number(sum(jobs[n, "act", act_of, i, m].result().values()) / (K * m), 2) if kind == "linear" else "" for n in names]
        line += "   " + "".join(f"{a:>8}" for a in act).rjust(max(width, 17))
        if options.mca:
            for core in CORES:
                values = [predicted.get(((n, f, kind, i, m), core)) for n in names]
                cells = "".join(f"{number(v.result() if v else None):>8}" for v in values)
                line += "   " + cells.rjust(max(width, 15))
        print(line.rstrip())
        if options.dump:
            for name in names:
                dump(options.dump, f"{name}_{kind}_{f.replace(':', '_')}_{i}_m{m}.s", counts[name], lines[name])
    if options.mca:
        for i in isas:
            line = f"{f'ceiling/mac/{i}':44}" + " " * (width + 3 + max(width, 17))
            for core in CORES:
                line += "   " + number(ceiling(i, core)).rjust(max(width, 15))
            print(line.rstrip())


def dump(directory, name, counts, lines):
    directory.mkdir(parents=True, exist_ok=True)
    total = sum(counts.values())
    with open(directory / name, "w") as out:
        operations = collections.Counter()
        for address, count in counts.items():
            operations[lines[address].split()[0]] += count
        out.write("// " + ", ".join(f"{op} {count / total:.1%}" for op, count in operations.most_common(20)) + "\n")
        for block in blocks(counts)[:8]:
            share = len(block) * counts[block[0]] / total
            out.write(f"// {len(block)} instructions, {counts[block[0]]} times, {share:.1%} of all\n")
            out.writelines(f"{a:x}: {lines[a]}\n" for a in block)


if __name__ == "__main__":
    main()
