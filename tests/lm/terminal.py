#!/usr/bin/env python3
"""`crumb-lm chat` on a terminal: Ctrl-C stops an answer, whose beginning stays in the conversation; between answers it
ends the program.

  terminal.py crumb-lm MODEL
"""

import os
import pty
import re
import select
import sys
import time


def main():
    program, model = sys.argv[1:]
    # Slow enough that an answer lasts for seconds.
    os.environ["CRUMB_ISA"] = "portable"
    child, terminal = pty.fork()
    if child == 0:
        os.execv(program, [program, "chat", model, "--template", "chatml", "--temperature", "0", "--activations", "f32",
                           "--threads", "1"])
    text = b""

    def read_until(pattern):
        nonlocal text
        end = time.monotonic() + 60
        while not (found := re.search(pattern, text, re.DOTALL)):
            if not select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
                sys.exit(f"no {pattern} in {text!r}")
            try:
                text += os.read(terminal, 4096)
            except OSError:  # the other side is closed
                sys.exit(f"ended without {pattern}: {text!r}")
        text = text[found.end():]
        return found

    def ask(message):
        os.write(terminal, message + b"\n")
        read_until(rb"\r\n.")  # behind its echo the answer begins
        begin = time.monotonic()
        os.write(terminal, b"\x03")
        answer = read_until(rb"(.*?)\r\n> ")[1]
        if time.monotonic() - begin > 10:
            sys.exit("the answer went on")
        # The context has room for 400 bytes of answer and more.
        if len(answer) > 300:
            sys.exit(f"an answer of {len(answer)} bytes was not stopped")

    read_until(b"> ")
    ask(b"Once upon a time")
    ask(b"And then?")
    os.write(terminal, b"\x03")
    totals = read_until(rb"prompts: +(\d+) tokens.*generation: +(\d+) tokens")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        sys.exit(f"exit status {status}")
    print(f"{int(totals[2])} tokens generated, stopped twice")


if __name__ == "__main__":
    main()
