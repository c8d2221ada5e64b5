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


class conversation:
    """A `crumb-lm chat` and what it has written since the last `read_until`."""

    def __init__(self, program, model):
        self.text = b""
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.execv(program, [program, "chat", model, "--template", "chatml", "--temperature", "0",
                               "--activations", "f32", "--threads", "1"])
        self.read_until(b"> ")

    def read_until(self, pattern):
        end = time.monotonic() + 60
        while not (found := re.search(pattern, self.text, re.DOTALL)):
            if not select.select([self.terminal], [], [], max(0, end - time.monotonic()))[0]:
                sys.exit(f"no {pattern} in {self.text!r}")
            try:
                self.text += os.read(self.terminal, 4096)
            except OSError:  # the other side is closed
                sys.exit(f"ended without {pattern}: {self.text!r}")
        self.text = self.text[found.end():]
        return found

    def ask(self, message):
        os.write(self.terminal, message + b"\n")
        self.read_until(rb"\r\n.")  # behind its echo the answer begins
        begin = time.monotonic()
        os.write(self.terminal, b"\x03")
        answer = self.read_until(rb"(.*?)\r\n> ")[1]
        if time.monotonic() - begin > 10:
            sys.exit("the answer went on")
        # The context has room for 400 bytes of answer and more.
        if len(answer) > 300:
            sys.exit(f"an answer of {len(answer)} bytes was not stopped")

    def end(self):
        """The number of tokens that were generated."""
        os.write(self.terminal, b"\x03")
        totals = self.read_until(rb"prompts: +(\d+) tokens.*generation: +(\d+) tokens")
        status = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        os.close(self.terminal)
        if status != 0:
            sys.exit(f"exit status {status}")
        return int(totals[2])


def main():
    program, model = sys.argv[1:]
    # Slow enough that an answer lasts for seconds.
    os.environ["CRUMB_ISA"] = "portable"
    talk = conversation(program, model)
    talk.ask(b"Once upon a time")
    talk.ask(b"And then?")
    print(f"{talk.end()} tokens generated, stopped twice")
    # Right after the prompt, when the program may not have begun to wait.
    for _ in range(30):
        conversation(program, model).end()


if __name__ == "__main__":
    main()
