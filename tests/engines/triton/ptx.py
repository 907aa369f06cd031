"""Runs the few PTX instructions that `lanes.py` is written in, for the 32 lanes of a warp, in NumPy.

What a register of a matrix product holds in which lane is taken from the PTX ISA's figures of the
fragments of `mma.m16n8k16` and `mma.m16n8k4`: https://docs.nvidia.com/cuda/parallel-thread-execution/
"""

from __future__ import annotations

import re

import numpy as np

LANES = 32
GROUP, PLACE = np.arange(LANES) // 4, np.arange(LANES) % 4


def floats(bits: np.ndarray) -> np.ndarray:
    """32 bits as fp32."""
    return bits.astype(np.uint32).view(np.float32)


def bits(x: np.ndarray) -> np.ndarray:
    """fp32 as 32 bits."""
    return np.asarray(x, np.float32).view(np.uint32)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """fp32 rounded to bf16, the nearest and on a tie the even one, as 16 bits."""
    whole = bits(x).astype(np.uint64)
    return ((whole + 0x7FFF + ((whole >> 16) & 1)) >> 16).astype(np.uint32)


def bf16_halves(register: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The low and the high half, as fp32."""
    return floats((register & 0xFFFF) << 16), floats(register & np.uint32(0xFFFF0000))


class Warp:
    """Registers, predicates and memory of one warp; memory is a dict from addresses to numbers."""

    def __init__(self, operands: list[np.ndarray]) -> None:
        self.operands, self.registers = operands, {}
        self.memory: dict[int, float] = {}

    def read(self, name: str) -> np.ndarray:
        """A register, an operand of the asm, or an immediate."""
        name = name.strip()
        if name.startswith("$"):
            return self.operands[int(name[1:])]
        return self.registers[name] if name in self.registers else np.full(LANES, int(name))

    def write(self, name: str, x: np.ndarray) -> None:
        """Into a register; results of the asm are kept with its operands."""
        if name.startswith("$"):
            self.operands[int(name[1:])] = x
        else:
            self.registers[name] = x

    def run(self, text: str) -> None:
        """All statements in their order."""
        for line in text.strip("{}\n").split("\n"):
            statement = line.strip().rstrip(";")
            if statement.startswith(".reg"):
                continue
            active = np.ones(LANES, bool)
            if statement.startswith("@"):
                guard, statement = statement.split(" ", 1)
                active = self.registers[guard.lstrip("@!")] ^ guard.startswith("@!")
            self.step(statement, active)

    def step(self, statement: str, active: np.ndarray) -> None:
        """One statement."""
        name, rest = statement.split(" ", 1)
        if name.startswith("mma"):
            self.product(name, rest)
        elif name.startswith("red"):
            self.reduce(name, rest, active)
        else:
            self.compute(name, rest)

    def compute(self, name: str, rest: str) -> None:
        """What every lane does alone."""
        to, *given = [x.strip() for x in rest.split(",")]
        x = [self.read(y) for y in given]
        operations = {
            "mov.b32": lambda: x[0].astype(np.uint32),
            "cvt.rn.bf16x2.f32": lambda: to_bf16(x[0]) << 16 | to_bf16(x[1]),
            "add.f32": lambda: bits(floats(x[0]) + floats(x[1])),
            "mul.f32": lambda: bits(floats(x[0]) * as_floats(x[1])),
            "testp.finite.f32": lambda: np.isfinite(floats(x[0])),
            "cvt.f64.f32": lambda: floats(x[0]).astype(np.float64),
            "mul.f64": lambda: x[0] * x[1],
            "cvt.rzi.s64.f64": lambda: np.trunc(np.nan_to_num(x[0])).astype(np.int64),
        }
        with np.errstate(over="ignore", invalid="ignore"):
            self.write(to, operations[name]())

    def reduce(self, name: str, rest: str, active: np.ndarray) -> None:
        """Add to memory, or take the maximum."""
        place, value = re.fullmatch(r"\[(.*)\], (.*)", rest).groups()
        x = self.read(value)
        x = floats(x) if name.endswith("f32") else x
        for lane in np.flatnonzero(active):
            at, number = int(self.read(place)[lane]), x[lane].item()
            old = self.memory.get(at, 0)
            self.memory[at] = max(old, number) if ".max." in name else old + number

    def product(self, name: str, rest: str) -> None:
        """D = A B + C, in fp32 of operands as they are."""
        parts = [[x.strip() for x in part.split(",")] for part in re.findall(r"\{(.*?)\}", rest)]
        left, right = ([self.read(x) for x in part] for part in parts[1:3])
        if "m16n8k16" in name:
            a, b = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32)
            for i, register in enumerate(left):
                for half, x in enumerate(bf16_halves(register)):
                    a[GROUP + i % 2 * 8, 2 * PLACE + half + i // 2 * 8] = x
            for i, register in enumerate(right):
                for half, x in enumerate(bf16_halves(register)):
                    b[2 * PLACE + half + i * 8, GROUP] = x
        else:
            a, b = np.zeros((16, 4), np.float32), np.zeros((4, 8), np.float32)
            for i, register in enumerate(left):
                a[GROUP + i * 8, PLACE] = tf32(register)
            b[PLACE, GROUP] = tf32(right[0])
        product = a @ b
        for i, (to, c) in enumerate(zip(parts[0], parts[3], strict=True)):
            found = product[GROUP + i // 2 * 8, 2 * PLACE + i % 2]
            self.write(to, bits(found + floats(self.read(c))))


def tf32(register: np.ndarray) -> np.ndarray:
    """Cut to 10 bits after the leading one, as the hardware does."""
    return floats(register & np.uint32(0xFFFFE000))


def as_floats(x: np.ndarray) -> np.ndarray:
    """An operand that may be given as fp32 already."""
    return x if x.dtype == np.float32 else floats(x)
