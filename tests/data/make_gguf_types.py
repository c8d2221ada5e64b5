#!/usr/bin/env python3
"""Writes gguf_types.bin: blocks of every quantized tensor type of GGUF and what ggml decodes them to.

    make_gguf_types.py LIBRARY OUTPUT

LIBRARY is a libggml-base.so. The Python package gguf decodes the blocks as well, where it can; a difference
ends the script. It also prints a hash of all points of each grid, which test_iq_decode.cpp has. The file,
little-endian:

    for every type
        u32 number of the type, blocks, bytes of a block, inputs of a block, blocks whose floats follow, 0
        f64 squared error of ggml's quantizer on ERROR_INPUTS Gaussian and on as many heavy-tailed floats
        the blocks: as quantized from the first floats of both kinds, then with extreme scales and codes
        the decoded floats of the first blocks
        u32 FNV-1a of the bytes of every 16 decoded floats of all blocks (of types with minima, 0 for -0)
"""
import ctypes
import struct
import sys

import gguf
import numpy as np

ERROR_INPUTS = 16384
FULL_INPUTS = 256  # whose floats are in the file
MINIMA = {"q4_1", "q5_1", "q2_K", "q4_K", "q5_K"}

# name, number, offsets of half-precision scales in a block
TYPES = [
    ("q4_1", 3, [0, 2]), ("q5_0", 6, [0]), ("q5_1", 7, [0, 2]), ("q2_K", 10, [80, 82]), ("q3_K", 11, [108]),
    ("q4_K", 12, [0, 2]), ("q5_K", 13, [0, 2]), ("q6_K", 14, [208]), ("q8_K", 15, None), ("iq2_xxs", 16, [0]),
    ("iq2_xs", 17, [0]), ("iq3_xxs", 18, [0]), ("iq1_s", 19, [0]), ("iq4_nl", 20, [0]), ("iq3_s", 21, [0]),
    ("iq2_s", 22, [0]), ("iq4_xs", 23, [0]), ("iq1_m", 29, None), ("tq1_0", 34, [52]), ("tq2_0", 35, [64]),
    ("mxfp4", 39, None), ("nvfp4", 40, None), ("q1_0", 41, [0]), ("q2_0", 42, [0]),
]
# name, number, points of the grid, coordinates of one, where a block has the upper bits of its first index
GRIDS = [("iq2_xxs", 16, 256, 8, None), ("iq2_xs", 17, 512, 8, 3), ("iq2_s", 22, 1024, 8, 66),
         ("iq3_xxs", 18, 256, 4, None), ("iq3_s", 21, 512, 4, 66), ("iq1_s", 19, 2048, 8, 34)]
# (bits of the scales, what all other bytes are; None: random)
EXTREMES = [(0x0000, None), (0x0001, 0xff), (0x03ff, None), (0x7bff, 0x00), (0x7bff, 0xff), (0xfbff, None),
            (0x0400, None), (0x7bff, None)]


class Random:
    """The upper bits of a linear congruential generator."""

    def __init__(self, seed):
        self.state = seed

    def bits16(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return self.state >> 48

    def normal(self):
        """A sum of twelve uniform integers: 65536 times a nearly standard normal number."""
        return sum(self.bits16() for _ in range(12)) - 6 * 65535

    def gaussian(self):
        return np.float32(self.normal() / 65536)

    def heavy_tailed(self):
        """Student's t with 3 degrees of freedom."""
        numerator = self.normal()
        squares = sum(self.normal() ** 2 for _ in range(3))
        return np.float32(np.float64(numerator) / np.sqrt(np.float64(squares) / 3))


class Ggml:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.ggml_blck_size.restype = ctypes.c_int64
        self.library.ggml_type_size.restype = ctypes.c_size_t
        self.library.ggml_type_name.restype = ctypes.c_char_p
        self.library.ggml_quantize_chunk.restype = ctypes.c_size_t

    def quantize(self, number, x, importance):
        """A row of a type."""
        inputs, size = self.library.ggml_blck_size(number), self.library.ggml_type_size(number)
        out = np.zeros(x.size // inputs * size, dtype=np.uint8)
        pointer = ctypes.c_void_p(importance.ctypes.data) if importance is not None else None
        written = self.library.ggml_quantize_chunk(
            number, ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(0),
            ctypes.c_int64(1), ctypes.c_int64(x.size), pointer)
        assert written == out.size
        return out

    def decode(self, name, number, row):
        inputs, size = self.library.ggml_blck_size(number), self.library.ggml_type_size(number)
        out = np.zeros(row.size // size * inputs, dtype=np.float32)
        getattr(self.library, "dequantize_row_" + name)(
            ctypes.c_void_p(row.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(out.size))
        return out


def with_scale(name, offsets, block, bits, index):
    """Puts an extreme scale into a block."""
    if offsets is not None:
        for offset in offsets:
            block[offset:offset + 2] = list(struct.pack("<H", bits))
        if len(offsets) == 2 and index % 2 == 1:  # a minimum of the other sign
            block[offsets[1] + 1] ^= 0x80
    elif name == "q8_K":
        scale = [0.0, 1e-45, 2.0**-126, 2.0**120, -2.0**120, 3.4e38 / 128, 1.0, -1e-3][index]
        block[:4] = list(struct.pack("<f", scale))
    elif name == "iq1_m":  # four bits of the scale in the top of each of four numbers
        for i in range(4):
            block[48 + 2 * i + 1] = (block[48 + 2 * i + 1] & 15) | (bits >> 4 * i & 15) << 4
    elif name == "mxfp4":
        block[0] = [0, 1, 2, 3, 252, 253, 254, 127][index]
    elif name == "nvfp4":
        block[:4] = [[0, 1, 7, 8], [0x7e, 0x7d, 0x38, 0x0f], [0, 0, 0, 0], [0x7e] * 4, [1] * 4,
                     [0x30, 2, 3, 4], [0x78, 0x77, 0x70, 0x6f], [5, 6, 9, 0x10]][index]
    else:
        raise ValueError(name)


def fnv(data):
    value = 2166136261
    for byte in data:
        value = (value ^ byte) * 16777619 % 2**32
    return value


def main(library, output):
    ggml = Ggml(library)
    source = Random(1)
    kinds = [np.array([source.gaussian() for _ in range(ERROR_INPUTS)], dtype=np.float32),
             np.array([source.heavy_tailed() for _ in range(ERROR_INPUTS)], dtype=np.float32)]
    random = Random(2)
    with open(output, "wb") as file:
        for name, number, offsets in TYPES:
            assert ggml.library.ggml_type_name(number).decode() == name
            inputs, size = ggml.library.ggml_blck_size(number), ggml.library.ggml_type_size(number)
            taken = max(256, inputs)
            ones = np.ones(ERROR_INPUTS, dtype=np.float32) if name.startswith(("iq1", "iq2")) else None
            rows, errors = [], []
            for x in kinds:
                if name == "q8_K":
                    row = np.zeros(ERROR_INPUTS // inputs * size, dtype=np.uint8)
                    ggml.library.quantize_row_q8_K_ref(
                        ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(row.ctypes.data),
                        ctypes.c_int64(ERROR_INPUTS))
                else:
                    row = ggml.quantize(number, x, ones)
                difference = ggml.decode(name, number, row).astype(np.float64) - x.astype(np.float64)
                errors.append(float(np.sum(difference**2)))
                rows.append(row[:taken // inputs * size])
            for index, (bits, filling) in enumerate(EXTREMES):
                block = np.array([random.bits16() & 255 if filling is None else filling for _ in range(size)],
                                 dtype=np.uint8)
                with_scale(name, offsets, block, bits, index)
                rows.append(block)
            row = np.concatenate(rows)
            floats = ggml.decode(name, number, row)
            try:
                with np.errstate(over="ignore"):  # MXFP4's largest scale times its largest codes is infinite
                    other = gguf.quants.dequantize(row, gguf.GGMLQuantizationType(number)).reshape(-1)
                assert np.array_equal(floats, other), name
            except (NotImplementedError, ValueError) as missing:
                print(name, "is not decoded by gguf:", missing or "no class")
            if name in MINIMA:
                floats = floats + np.float32(0)
            blocks, full = row.size // size, FULL_INPUTS // inputs
            file.write(struct.pack("<6I2d", number, blocks, size, inputs, full, 0, *errors))
            file.write(row.tobytes())
            file.write(floats[:full * inputs].tobytes())
            for group in floats.reshape(-1, 16):
                file.write(struct.pack("<I", fnv(group.tobytes())))
            print(name, blocks, "blocks, errors", *errors)
    for name, number, points, size, upper in GRIDS:
        print(f"{points} points of {name}: {grid_hash(ggml, name, number, points, size, upper):#010x}")


def grid_hash(ggml, name, number, points, size, upper):
    """Of the points under the scale that a half of 1 makes, in order."""
    data = b""
    for index in range(points):
        block = np.zeros(ggml.library.ggml_type_size(number), dtype=np.uint8)
        block[1], block[2] = 0x3c, index & 255
        if upper is not None:
            block[upper] = index >> 8
        data += ggml.decode(name, number, block)[:size].tobytes()
    return fnv(data)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
