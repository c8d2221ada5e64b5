#!/usr/bin/env python3
"""Copies the first layers of a GGUF model: what takes minutes to train or measure takes seconds.

  cut_model.py MODEL LAYERS OUT
"""
import struct
import sys

sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of the types of values
string, array = 8, 9


class reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form):
        value, = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def skip_value(self, kind):
        if kind == string:
            self.text()
        elif kind == array:
            kind, count = self.number("I"), self.number("Q")
            if kind in sizes:
                self.at += count * sizes[kind]
            else:
                for _ in range(count):
                    self.skip_value(kind)
        else:
            self.at += sizes[kind]

    def text(self):
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size:self.at]


def main(model, layers, out):
    with open(model, "rb") as f:
        data = f.read()
    r = reader(data)
    magic, version, tensors, keys = r.number("4s"), r.number("I"), r.number("Q"), r.number("Q")
    head, alignment = bytearray(), 32
    for _ in range(keys):
        begin = r.at
        key, kind = r.text(), r.number("I")
        value = r.at
        r.skip_value(kind)
        if key == b"general.alignment":
            alignment, = struct.unpack_from("<I", data, value)
        head += data[begin:value]
        head += struct.pack("<I", layers) if key.endswith(b".block_count") else data[value:r.at]

    infos = []  # name, the bytes between name and offset, offset
    for _ in range(tensors):
        name, begin = r.text(), r.at
        rank = r.number("I")
        r.at += 8 * rank + 4
        infos.append((name, data[begin:r.at], r.number("Q")))
    start = -(-r.at // alignment) * alignment
    ends = dict(zip(sorted(i[2] for i in infos), sorted(i[2] for i in infos)[1:] + [len(data) - start]))
    body, kept = bytearray(), 0
    for name, shape, offset in infos:
        if name.startswith(b"blk.") and int(name.split(b".")[1]) >= layers:
            continue
        head += struct.pack("<Q", len(name)) + name + shape + struct.pack("<Q", len(body))
        body += data[start + offset:start + ends[offset]]
        body += bytes(-len(body) % alignment)
        kept += 1
    head = magic + struct.pack("<IQQ", version, kept, keys) + head
    with open(out, "wb") as f:
        f.write(head + bytes(-len(head) % alignment) + body)


main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
