"""Benches of the modules around several tables: frames to lanes, lanes to tables in the order of
the frames, and answers back in that order."""

import random

from package import BEAT, GET, META, parameter, struct
from streams import PACES, Sink, Source, run, start, unpack, words


class Part:
    """The part of a packed port that belongs to one lane or table."""

    driven = {}   # value driven onto each port

    def __init__(self, handle, place, width):
        self.handle, self.shift, self.mask = handle, place * width, (1 << width) - 1

    @property
    def value(self):
        return int(self.handle.value) >> self.shift & self.mask

    @value.setter
    def value(self, value):
        before = self.driven.get(self.handle._path, 0) & ~(self.mask << self.shift)
        self.driven[self.handle._path] = before | int(value) << self.shift
        self.handle.value = self.driven[self.handle._path]


class Lane:
    """The ports of one lane or table of `dut`, with these widths."""

    def __init__(self, dut, place, **widths):
        for name, width in widths.items():
            setattr(self, name, Part(getattr(dut, name), place, width))


def wide(content, bus, bad=0):
    """A frame in beats of a wide bus: (data, keep, last, bad)."""
    beats = []
    for at in range(0, len(content), bus):
        part = content[at : at + bus]
        beats.append((int.from_bytes(part, "little"), (1 << len(part)) - 1,
                      int(at + bus >= len(content)), bad))
    return beats


def joined(beats, bus=8):
    """Joins beats (data, keep, last) into frames."""
    frames, content = [], b""
    for data, keep, last in beats:
        content += bytes(data >> 8 * i & 0xFF for i in range(bus) if keep >> i & 1)
        if last:
            frames.append(content)
            content = b""
    assert not content, "a frame has no end"
    return frames


class Port:
    """The wide port, which never waits, and the lanes, which return turns after a random time."""

    def __init__(self, dut, pace, frames):
        self.dut, self.pace, self.lanes = dut, pace, parameter("Lanes")
        self.frames = [wide(content, parameter("BusBytes"), bad) for content, bad in frames]
        self.at, self.given, self.lost = [0, 0], [], 0
        self.found = [[] for _ in range(self.lanes)]
        self.inside, self.turns = [0] * self.lanes, [0] * self.lanes
        self.parts = [Lane(dut, i, valid_o=1, data_o=64, keep_o=8, last_o=1, bad_o=1, turn_i=1)
                      for i in range(self.lanes)]

    def drive(self):
        dut, (place, beat) = self.dut, self.at
        self.is_offered = place < len(self.frames) and random.randrange(256) >= self.pace[0]
        dut.valid_i.value = int(self.is_offered)
        if self.is_offered:
            dut.data_i.value, dut.keep_i.value, dut.last_i.value, dut.bad_i.value = (
                self.frames[place][beat])
        self.taken = [int(self.turns[i] > 0 and random.randrange(256) >= max(self.pace[1], 64))
                      for i in range(self.lanes)]
        for part, turn in zip(self.parts, self.taken):
            part.turn_i.value = turn

    def sample(self):
        for i, part in enumerate(self.parts):
            self.inside[i] -= self.taken[i]
            self.turns[i] -= self.taken[i]
            if part.valid_o.value:
                last = part.last_o.value
                self.found[i].append((part.data_o.value, part.keep_o.value, last,
                                      part.bad_o.value if last else 0))
                self.turns[i] += last
        if self.is_offered:
            place, beat = self.at
            is_last = beat + 1 == len(self.frames[place])
            self.at = [place + is_last, 0 if is_last else beat + 1]
            if is_last and int(self.dut.overflow_o.value):
                self.lost += 1
            elif is_last:
                # Lanes are used in turn, whatever was lost in between.
                self.inside[len(self.given) % self.lanes] += 1
                self.given.append(place)
        assert max(self.inside) <= parameter("Frames")
        return self.is_offered or any(self.taken)


async def frame_spreader(dut):
    """Frames of every length, some broken, some longer than the limit."""
    bus, longest, lanes = parameter("BusBytes"), 1518, parameter("Lanes")
    room = -(-longest // bus) * bus
    for pace in PACES:
        Part.driven.clear()
        await start(dut, valid_i=0, turn_i=0)
        lengths = [*range(1, 4 * bus), 60, 60, 1514, longest, room + 1, 3000, 60, 60]
        random.shuffle(lengths)
        frames = [(random.randbytes(length), int(random.random() < 0.1)) for length in lengths]
        port = Port(dut, pace, frames)
        await run(dut, pace, [], [], lambda: port.at[0] == len(frames) and not any(port.turns)
                  and not any(port.inside), port)
        assert port.lost + len(port.given) == len(frames)
        # A lane whose turns are rarely taken is full of frames.
        assert port.lost > 0 or pace[1] < 200
        for lane in range(lanes):
            found = joined([beat[:3] for beat in port.found[lane]])
            bads = [bad for *_, last, bad in port.found[lane] if last]
            expected = [frames[place] for place in port.given[lane::lanes]]
            assert found == [content[:room] for content, _ in expected]
            assert bads == [int(bad or len(content) > room) for content, bad in expected]


async def sequencer(dut):
    """Turns of lanes, with and without requests, to tables at random."""
    lanes, tables = parameter("Lanes"), parameter("Tables")
    lane_width, table_width = (max(1, (count - 1).bit_length()) for count in (lanes, tables))
    for pace in PACES:
        Part.driven.clear()
        await start(dut, turn_valid_i=0, pick_ready_i=0)
        turns = [(int(random.random() < 0.8), random.randrange(tables)) for _ in range(600)]
        sources = [Source(Lane(dut, i, turn_valid_i=1, turn_ready_o=1, turn_has_request_i=1,
                               turn_table_i=table_width),
                          "turn_valid_i", "turn_ready_o", ["turn_has_request_i", "turn_table_i"],
                          turns[i::lanes]) for i in range(lanes)]
        picks = [Sink(Lane(dut, i, pick_valid_o=1, pick_ready_i=1, pick_o=lane_width),
                      "pick_valid_o", "pick_ready_i", ["pick_o"]) for i in range(tables)]
        order = Sink(dut, "order_valid_o", "order_ready_i", ["order_o"])
        asked = [(place % lanes, table) for place, (has, table) in enumerate(turns) if has]
        await run(dut, pace, sources, [*picks, order], lambda: not any(
            source.beats for source in sources) and len(order.beats) >= len(asked))
        assert order.beats == [(table,) for _, table in asked]
        for table, sink in enumerate(picks):
            assert sink.beats == [(lane,) for lane, wanted in asked if wanted == table]


async def lane_arbiter(dut):
    """Keys and values of many lengths, of lanes in the order in which they are picked."""
    lanes = parameter("Lanes")
    lane_width = max(1, (lanes - 1).bit_length())
    for pace in PACES:
        Part.driven.clear()
        await start(dut, valid_i=0, key_valid_i=0, val_valid_i=0)
        requests = []
        for place, key_bytes in enumerate(random.sample(range(120), 120)):
            value = random.randbytes(random.choice([0, 0, 5, 30]))
            meta = struct(META, place, GET, key_bytes, len(value), 0, 0, 0, 0)
            requests.append((random.randrange(lanes), meta, random.getrandbits(153),
                             random.randbytes(key_bytes), value))
        sources = [Source(dut, "pick_valid_i", "pick_ready_o", ["pick_i"],
                          [(lane,) for lane, *_ in requests])]
        for i in range(lanes):
            mine = [request for request in requests if request[0] == i]
            ports = Lane(dut, i, valid_i=1, ready_o=1, request_i=sum(META), client_i=153,
                         key_valid_i=1, key_ready_o=1, key_i=sum(BEAT), val_valid_i=1,
                         val_ready_o=1, val_i=sum(BEAT))
            sources.append(Source(ports, "valid_i", "ready_o", ["request_i", "client_i"],
                                  [request[1:3] for request in mine]))
            for name, place in (("key", 3), ("val", 4)):
                beats = [(struct(BEAT, *beat),) for request in mine
                         for beat in words(request[place])]
                sources.append(Source(ports, f"{name}_valid_i", f"{name}_ready_o", [f"{name}_i"],
                                      beats))
        sinks = [Sink(dut, f"{name}_valid_o", f"{name}_ready_i", [f"{name}_o"],
                      is_stable=name in ("key", "val"))
                 for name in ("meta", "client", "key", "val")]
        await run(dut, pace, sources, sinks, lambda: not any(source.beats for source in sources))
        assert sinks[0].beats == [request[1:2] for request in requests]
        assert sinks[1].beats == [request[2:3] for request in requests]
        for sink, place in zip(sinks[2:], (3, 4)):
            beats = [unpack(beat, *BEAT) for beat, in sink.beats]
            assert joined(beats) == [request[place] for request in requests if request[place]]


class Outcomes:
    """Each table's result for its requests: a frame, whose beats follow, or nothing."""

    def __init__(self, dut, pace, plans, sources, sink):
        self.dut, self.pace, self.plans, self.sources, self.sink = dut, pace, plans, sources, sink
        self.parts = [Lane(dut, i, begun_i=1, ended_i=1) for i in range(len(plans))]
        self.waiting, self.is_inside = [0] * len(plans), False

    def drive(self):
        for i, (part, plan, source) in enumerate(zip(self.parts, self.plans, self.sources)):
            is_moving = (plan and not source.beats and self.waiting[i] < parameter("Answers")
                         and random.randrange(256) >= self.pace[0])
            content = plan[0] if is_moving else None
            part.begun_i.value = int(content is not None)
            part.ended_i.value = int(bool(is_moving) and content is None)
            if is_moving:
                plan.pop(0)
                self.waiting[i] += 1
                source.beats += words(content) if content is not None else []

    def sample(self):
        dut = self.dut
        is_valid, is_taken = int(dut.valid_o.value), int(dut.ready_i.value)
        assert is_valid or not self.is_inside, "a frame pauses"
        if is_valid and is_taken:
            self.is_inside = not int(dut.last_o.value)
        if int(dut.order_valid_i.value) and int(dut.order_ready_o.value):
            self.waiting[int(dut.order_i.value)] -= 1
        return False


async def frame_collector(dut):
    """Frames of every length, and requests without one, from tables in a random order."""
    bus, tables = parameter("BusBytes"), parameter("Tables")
    for pace in PACES:
        Part.driven.clear()
        await start(dut, valid_i=0, begun_i=0, ended_i=0)
        lengths = [*range(1, 60 + 4 * bus), 1100]
        answers = [(random.randrange(tables), random.randbytes(length)) for length in lengths]
        answers += [(random.randrange(tables), None) for _ in range(80)]
        random.shuffle(answers)
        order = Source(dut, "order_valid_i", "order_ready_o", ["order_i"],
                       [(table,) for table, _ in answers])
        sources = [Source(Lane(dut, i, valid_i=1, ready_o=1, data_i=64, keep_i=8, last_i=1),
                          "valid_i", "ready_o", ["data_i", "keep_i", "last_i"])
                   for i in range(tables)]
        sink = Sink(dut, "valid_o", "ready_i", ["data_o", "keep_o", "last_o"])
        plans = [[content for table, content in answers if table == i] for i in range(tables)]
        await run(dut, pace, [order, *sources], [sink], lambda: not order.beats,
                  Outcomes(dut, pace, plans, sources, sink))
        assert joined(sink.beats, bus) == [content for _, content in answers if content is not None]
