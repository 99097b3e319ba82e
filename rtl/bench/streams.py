"""Drives a module's streams a cycle at a time, with idle cycles and back-pressure.

Inputs are set while the clock is low and sampled when the logic has settled, so what is seen is
what the next rising edge acts on. Each output stream is held to AXI-Stream's rule: what is valid
and not taken stays, unchanged.
"""

import random

from cocotb.triggers import FallingEdge, ReadOnly

# Number of cycles, of 256, in which streams pause: never, sometimes, nearly always.
PACES = [(0, 0), (0, 100), (100, 0), (100, 100), (230, 30), (30, 230)]
# Number of cycles without progress after which a module counts as stuck.
PATIENCE = 2000


def pack(*fields):
    """A packed struct of (width, value), the first on top."""
    word = 0
    for width, value in fields:
        assert 0 <= value < 1 << width
        word = word << width | value
    return word


def unpack(word, *widths):
    """The fields of a packed struct, the first from the top."""
    fields = []
    for width in reversed(widths):
        fields.append(word & ((1 << width) - 1))
        word >>= width
    return fields[::-1]


def words(item):
    """An item as beats of 8 bytes: (data, keep, is_last), with random bytes after its end."""
    beats = []
    for at in range(0, len(item), 8):
        part = item[at : at + 8]
        data = int.from_bytes(part + b"\xa5" * (8 - len(part)), "little")
        beats.append((data, (1 << len(part)) - 1, int(at + 8 >= len(item))))
    return beats


class Source:
    """Offers beats, each a value for every one of `signals`."""

    def __init__(self, dut, valid, ready, signals, beats=()):
        self.valid, self.ready = getattr(dut, valid), getattr(dut, ready)
        self.signals = [getattr(dut, signal) for signal in signals]
        self.beats, self.is_offered = list(beats), False
        self.valid.value = 0

    def drive(self, idle):
        if self.is_offered or not self.beats or random.randrange(256) < idle:
            return
        self.is_offered = True
        for signal, value in zip(self.signals, self.beats[0]):
            signal.value = value

    def sample(self):
        if not (self.is_offered and int(self.ready.value)):
            return False
        self.is_offered = False
        self.beats.pop(0)
        return True


class Sink:
    """Takes beats. If a stream is not `is_stable`, an offered beat may change until it is taken."""

    def __init__(self, dut, valid, ready, signals, is_stable=True):
        self.valid, self.ready = getattr(dut, valid), getattr(dut, ready)
        self.signals = [getattr(dut, signal) for signal in signals]
        self.beats, self.waiting, self.is_stable = [], None, is_stable
        self.ready.value = 0

    def drive(self, back_pressure):
        self.ready.value = int(random.randrange(256) >= back_pressure)

    def sample(self):
        is_valid = int(self.valid.value)
        assert is_valid or self.waiting is None, "a beat was taken back"
        if not is_valid:
            return False
        beat = tuple(int(signal.value) for signal in self.signals)
        assert self.waiting in (None, beat), "a beat changed while it waited"
        is_taken = int(self.ready.value)
        self.waiting = None if is_taken or not self.is_stable else beat
        if is_taken:
            self.beats.append(beat)
        return bool(is_taken)


async def start(dut, **inputs):
    """Resets the module with these inputs."""
    dut.rst_ni.value = 0
    for name, value in inputs.items():
        getattr(dut, name).value = value
    for _ in range(3):
        await FallingEdge(dut.clk_i)
    dut.rst_ni.value = 1


async def run(dut, pace, sources, sinks, is_done, each_cycle=None):
    """Runs until `is_done`, then a few more cycles to detect surplus output."""
    idle, back_pressure = pace
    quiet, more = 0, 20
    while more:
        await FallingEdge(dut.clk_i)
        for source in sources:
            source.drive(idle)
            source.valid.value = int(source.is_offered)
        for sink in sinks:
            sink.drive(back_pressure)
        if each_cycle:
            each_cycle.drive()
        await ReadOnly()
        moved = [stream.sample() for stream in [*sources, *sinks]]
        if each_cycle:
            moved.append(each_cycle.sample())
        quiet = 0 if any(moved) else quiet + 1
        more = more - 1 if is_done() else 20
        assert quiet < PATIENCE, "stuck"
    await FallingEdge(dut.clk_i)
