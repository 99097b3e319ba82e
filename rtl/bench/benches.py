"""Benches of single modules: idle cycles and back-pressure crossed with every length of a key or
of an item. `rtl/scripts/bench` runs them; each test has the name of the module it tests."""

import os
import random

import cocotb
from cocotb.clock import Clock

import front
import section
import several
from package import BEAT, DELETE, GET, META, META_OUT, NOOP, SET, parameter, stripes
from streams import PACES, Sink, Source, pack, run, start, unpack, words

MASK = 0xFFFF_FFFF


def split(beats, last=-1):
    """The items of a stream; `last` is the index of a beat's end-of-item flag."""
    items, item = [], []
    for beat in beats:
        item.append(beat)
        if beat[last]:
            items.append(item)
            item = []
    assert not item, "an item has no end"
    return items


def bytes_of(item, bus=8):
    """The bytes that an item's beats (data, keep, last) hold."""
    content = b""
    for data, keep, _ in item:
        content += bytes(data >> 8 * i & 0xFF for i in range(bus) if keep >> i & 1)
    return content


def wide(item, bus):
    """An item in beats of a wider bus."""
    beats = []
    for at in range(0, len(item), bus):
        part = item[at : at + bus]
        beats.append((int.from_bytes(part, "little"), (1 << len(part)) - 1,
                      int(at + bus >= len(item))))
    return beats


async def stream(dut, pace, bus, into, expected):
    await start(dut)
    signals = ("data", "keep", "last")
    source = Source(dut, "valid_i", "ready_o", [f"{name}_i" for name in signals], into)
    sink = Sink(dut, "valid_o", "ready_i", [f"{name}_o" for name in signals])
    await run(dut, pace, [source], [sink], lambda: len(sink.beats) >= expected)
    return [bytes_of(item, bus) for item in split(sink.beats)], len(sink.beats)


async def stream_narrow(dut):
    bus = parameter("BusBytes")
    items = [random.randbytes(length) for length in range(1, 4 * bus + 1)]
    for pace in PACES:
        random.shuffle(items)
        into = [beat for item in items for beat in wide(item, bus)]
        count = sum(len(words(item)) for item in items)
        assert await stream(dut, pace, 8, into, count) == (items, count)


async def stream_widen(dut):
    bus = parameter("BusBytes")
    items = [random.randbytes(length) for length in range(1, 4 * bus + 1)]
    for pace in PACES:
        random.shuffle(items)
        into = [beat for item in items for beat in words(item)]
        count = sum(len(wide(item, bus)) for item in items)
        assert await stream(dut, pace, bus, into, count) == (items, count)


class Tasks:
    """The shaper's tasks: (length, is kept), one at a time, and the result of each."""

    def __init__(self, dut, tasks):
        self.dut, self.tasks, self.wrong = dut, list(tasks), []

    def drive(self):
        self.dut.task_valid_i.value = int(bool(self.tasks))
        if self.tasks:
            self.dut.length_i.value, self.dut.keep_i.value = self.tasks[0]

    def sample(self):
        if not int(self.dut.task_pop_o.value):
            return False
        self.wrong.append(bool(int(self.dut.is_wrong_o.value)))
        self.tasks.pop(0)
        return True


async def shaper(dut):
    """Every length from 0 to 64: correct, too small and too large."""
    cases = [(named, max(sent, 0) if named else 0, keep) for named in range(65)
             for sent in (named, named - 1, named + 1, named - 8, named + 9, 1)
             for keep in (1, 1, 0)]
    # An item of no bytes sends no beats, so its length cannot be wrong.
    cases = [case for case in cases if case[0] == 0 or case[1] > 0]
    for pace in PACES[:4]:
        random.shuffle(cases)
        await start(dut, task_valid_i=0)
        items = [random.randbytes(sent) for _, sent, _ in cases]
        tasks = Tasks(dut, [(named, keep) for named, _, keep in cases])
        source = Source(dut, "valid_i", "ready_o", ["data_i", "strobe_i", "last_i"],
                        [beat for item in items for beat in words(item)])
        sink = Sink(dut, "valid_o", "ready_i", ["data_o", "last_o"])
        await run(dut, pace, [source], [sink], lambda: not tasks.tasks, tasks)
        assert tasks.wrong == [named != sent for named, sent, _ in cases]
        expected = [item[:named].ljust(-(-named // 8) * 8, b"\0")
                    for item, (named, _, keep) in zip(items, cases) if named and keep]
        found = [b"".join(data.to_bytes(8, "little") for data, _ in item)
                 for item in split(sink.beats)]
        assert found == expected


async def pre_processor(dut):
    """Each key length with a value of each length: valid, wrong length, too long or unknown."""
    longest, largest = parameter("KeyBytes"), parameter("ValueBytes")
    requests = []
    for number, key_bytes in enumerate(2 * list(range(0, longest + 3))):
        requests.append((SET, key_bytes, 3 * number % (largest + 9), 0))
        requests.append((GET, key_bytes, 0, 0))
        requests.append(([DELETE, NOOP, 0x77][number % 3], key_bytes, 0, 0))
        requests.append((SET, key_bytes, 1 + number, 1))
        # With a CAS id, or with a shape that the opcode does not have.
        requests.append((random.choice([GET, SET, DELETE]), key_bytes, 0, 0, 1, 0))
        requests.append(([GET, SET, DELETE, NOOP][number % 4], key_bytes, 0, 0, number % 3 == 0, 1))
    for pace in PACES:
        random.shuffle(requests)
        await start(dut)
        metas, keys, values = [], [], []
        expected, expected_keys, expected_values = [], [], []
        for number, (opcode, key_bytes, value_bytes, lies, *marks) in enumerate(requests):
            has_cas, is_misshapen = marks or (0, 0)
            key, value = random.randbytes(key_bytes), random.randbytes(value_bytes + lies)
            metas.append((pack(*zip(META, (number, opcode, key_bytes, value_bytes, 5, 6, has_cas,
                                           is_misshapen))),))
            keys += [(pack(*zip(BEAT, beat)),) for beat in words(key)]
            values += [(pack(*zip(BEAT, beat)),) for beat in words(value)]
            kind = {GET: 1, SET: 2, DELETE: 3}.get(opcode, 0)
            status, drain = (0x81 if opcode == 0x77 else 0), 0
            if kind and not 1 <= key_bytes <= longest:
                kind, status = 0, 4
            if kind > 1 and has_cas:
                kind, status = 0, 0x83
            if is_misshapen:
                kind, status = 0, 4
            if kind:
                expected_keys.append(key.ljust(-(-key_bytes // 8) * 8, b"\0"))
            if kind == 2 and value_bytes > largest:
                kind, status = 3, 3
            if kind == 2:
                padded = value[:value_bytes].ljust(-(-value_bytes // 8) * 8, b"\0")
                expected_values += [padded[at : at + 8] for at in range(0, len(padded), 8)]
            if kind and lies:
                kind, status, drain = 1, 4, int(kind == 2 and value_bytes > 0)
            expected.append((number, key_bytes if kind else 0, kind, 0, drain, status))
        sources = [
            Source(dut, "meta_valid_i", "meta_ready_o", ["meta_i"], metas),
            Source(dut, "key_valid_i", "key_ready_o", ["key_i"], keys),
            Source(dut, "val_valid_i", "val_ready_o", ["val_i"], values),
        ]
        meta = Sink(dut, "meta_valid_o", "meta_ready_i", ["meta_o"])
        key = Sink(dut, "key_valid_o", "key_ready_i", ["key_o"])
        value = Sink(dut, "val_valid_o", "val_ready_i", ["val_o"])
        await run(dut, pace, sources, [meta, key, value],
                  lambda: len(meta.beats) >= len(requests)
                  and len(value.beats) >= len(expected_values))
        found = [unpack(word, *META, *META_OUT) for (word,) in meta.beats]
        assert [(m[0], m[2], *m[8:]) for m in found] == expected
        key_beats = [unpack(word, 64, 8, 1) for (word,) in key.beats]
        found = [b"".join(beat[0].to_bytes(8, "little") for beat in item)
                 for item in split(key_beats)]
        assert found == expected_keys
        assert [word.to_bytes(8, "little") for (word,) in value.beats] == expected_values


def lookup3(key, seed=0):
    """hashlittle2 with the seed's halves as start values: (primary, secondary)."""
    def rotate(word, places):
        return (word << places | word >> (32 - places)) & MASK

    a = b = (0xDEAD_BEEF + len(key) + seed) & MASK
    c = (a + (seed >> 32)) & MASK
    blocks = [key[at : at + 12].ljust(12, b"\0") for at in range(0, len(key), 12)]
    for place, block in enumerate(blocks):
        x, y, z = (int.from_bytes(block[at : at + 4], "little") for at in (0, 4, 8))
        a, b, c = (a + x) & MASK, (b + y) & MASK, (c + z) & MASK
        if place + 1 < len(blocks):
            a = ((a - c) & MASK) ^ rotate(c, 4); c = (c + b) & MASK
            b = ((b - a) & MASK) ^ rotate(a, 6); a = (a + c) & MASK
            c = ((c - b) & MASK) ^ rotate(b, 8); b = (b + a) & MASK
            a = ((a - c) & MASK) ^ rotate(c, 16); c = (c + b) & MASK
            b = ((b - a) & MASK) ^ rotate(a, 19); a = (a + c) & MASK
            c = ((c - b) & MASK) ^ rotate(b, 4); b = (b + a) & MASK
    c = ((c ^ b) - rotate(b, 14)) & MASK
    a = ((a ^ c) - rotate(c, 11)) & MASK
    b = ((b ^ a) - rotate(a, 25)) & MASK
    c = ((c ^ b) - rotate(b, 16)) & MASK
    a = ((a ^ c) - rotate(c, 4)) & MASK
    b = ((b ^ a) - rotate(a, 14)) & MASK
    c = ((c ^ b) - rotate(b, 24)) & MASK
    return c, b


def key_beats(key):
    return [(pack((64, int.from_bytes(key[at : at + 8], "little")), (8, len(key)),
                  (1, int(at + 8 >= len(key)))),) for at in range(0, len(key), 8)]


async def hash_unit(dut):
    longest = parameter("KeyBytes")
    # Published: hashlittle("Four score and seven years ago", 30, 0).
    assert lookup3(b"Four score and seven years ago")[0] == 0x1777_0551
    for pace in PACES:
        keys = [random.randbytes(length) for length in range(1, longest + 1)]
        random.shuffle(keys)
        seed = random.choice([0, random.getrandbits(64)])
        await start(dut, seed_i=seed)
        source = Source(dut, "valid_i", "ready_o", ["key_i"],
                        [beat for key in keys for beat in key_beats(key)])
        sink = Sink(dut, "valid_o", "ready_i", ["hash_o"])
        await run(dut, pace, [source], [sink], lambda: len(sink.beats) >= len(keys))
        hashes = [lookup3(key, seed) for key in keys]
        expected = [(primary << 8 | secondary >> 24,) for primary, secondary in hashes]
        assert sink.beats == expected


async def key_striper(dut):
    """Each key length as the stripes of the lines that are read for it."""
    stripe, lines = parameter("StripeWords"), parameter("Lines")
    first, terms = parameter("KeyWord"), parameter("TermsWord")
    longest = 8 * (terms - first if terms > first else stripe * lines - first)
    for pace in PACES:
        keys = [random.randbytes(length) for length in range(1, longest + 1)]
        random.shuffle(keys)
        await start(dut)
        expected = []
        for key in keys:
            read = list(stripes(key, stripe, first, terms))
            expected += [(data, mask, int(line == read[-1][0])) for line, data, mask in read]
        source = Source(dut, "valid_i", "ready_o", ["key_i"],
                        [beat for key in keys for beat in key_beats(key)])
        sink = Sink(dut, "valid_o", "ready_i", ["stripe_o", "mask_o", "last_o"])
        await run(dut, pace, [source], [sink], lambda: len(sink.beats) >= len(expected))
        assert sink.beats == expected


def random_slot(key, check, now, shape):
    """A slot's locator, terms and key: the request's key, one that nearly equals it, or free."""
    klen, other = len(key), bytearray(key)
    if shape == "free":
        return 0, 0, random.randbytes(klen)
    if shape == "other key":
        other[random.randrange(klen)] ^= 1 << random.randrange(8)
    if shape == "other length":
        klen = klen % 250 + 1
    if shape == "other check":
        check ^= 1 << random.randrange(8)
    expiry = random.choice([0, 1, now - 1, now, now + 1, MASK])
    pointer = random.randrange(1, 1 << 48)
    return klen << 56 | check << 48 | pointer, random.randrange(1 << 24) << 32 | expiry, other


class Ages:
    """The log's verdict on each pointer, here by its two lowest bits."""

    def __init__(self, dut):
        self.dut = dut

    @staticmethod
    def is_overwritten(locator):
        return not locator & 1

    @staticmethod
    def is_young(locator):
        return locator & 2

    def drive(self):
        pointers = int(self.dut.pointers_o.value)
        old, young = 0, 0
        for slot in range(parameter("Slots")):
            old |= int(self.is_overwritten(pointers >> 48 * slot)) << slot
            young |= int(bool(self.is_young(pointers >> 48 * slot))) << slot
        self.dut.is_overwritten_i.value, self.dut.is_young_i.value = old, young

    def sample(self):
        return False


async def compare_unit(dut):
    """Each key length, four times, against slots with the key, with nearly the same key, or free;
    some requests in between have no key, and some of those are sweeps."""
    slots, per_beat = parameter("Slots"), parameter("SlotsPerBeat")
    stripe, lines = parameter("StripeWords"), parameter("Lines")
    first, terms = parameter("KeyWord"), parameter("TermsWord")
    longest = 8 * (terms - first if terms > first else stripe * lines - first)
    for pace in PACES:
        lengths = 4 * list(range(longest + 1)) + 20 * [0]
        random.shuffle(lengths)
        await start(dut)
        ops, stripe_beats, beats, expected = [], [], [], []
        for number, length in enumerate(lengths):
            key, check, now = random.randbytes(length), random.randrange(256), 1000 + number
            is_sweep = not length and number % 2
            kind = 1 if length else 3 if is_sweep else 0
            op = pack(*zip(META, (number, 0, length, 0, 0, 0, 0, 0)),
                      *zip(META_OUT, (kind, 0, 0, 0)), (32, 0), (8, check), (32, now), (7, 0))
            ops.append((op,))
            if not length and not is_sweep:
                expected.append((op, 0))
                continue
            shapes = random.choices(["free", "other key", "other length", "other check"], k=slots)
            if is_sweep:
                key = random.randbytes(5)
            elif random.random() < 0.7:
                shapes[random.randrange(slots)] = "same"
            records, verdicts = [], [0, 0, 0, 0, 0, 0]
            for slot, shape in enumerate(shapes):
                locator, term, held = random_slot(key, check, now, shape)
                words_of = {word: random.getrandbits(64) for word in range(stripe * lines)}
                for at in range(0, len(held), 8):
                    part = bytes(held[at : at + 8])
                    words_of[first + at // 8] = int.from_bytes(part, "little")
                words_of |= {0: locator, terms: term}
                records.append(words_of)
                ends = term & MASK
                is_old = shape != "free" and Ages.is_overwritten(locator)
                for place, bit in enumerate([shape == "same" and not is_old, shape == "free",
                                             0 < ends <= now or is_old, Ages.is_young(locator)]):
                    verdicts[place] |= int(bool(bit)) << slot
                verdicts[4] |= locator << 64 * slot
                verdicts[5] |= term << 64 * slot
            read = list(stripes(key, stripe, first, terms))
            if is_sweep:
                read = [(line, 0, 0) for line in sorted({0, terms // stripe})]
            for line, data, mask in read:
                if not is_sweep:
                    stripe_beats.append((data, mask, int(line == read[-1][0])))
                for group in range(0, slots, per_beat):
                    place = [(slot, word) for slot in range(group, group + per_beat)
                             for word in range(line * stripe, (line + 1) * stripe)]
                    beats.append((sum(records[slot][word] << 64 * i
                                      for i, (slot, word) in enumerate(place)),))
            expected.append((op, *verdicts))
        sources = [
            Source(dut, "op_valid_i", "op_ready_o", ["op_i"], ops),
            Source(dut, "stripe_valid_i", "stripe_ready_o",
                   ["stripe_i", "mask_i", "stripe_last_i"], stripe_beats),
            Source(dut, "beat_valid_i", "beat_ready_o", ["beat_i"], beats),
        ]
        sink = Sink(dut, "valid_o", "ready_i",
                    ["op_o", "match_o", "free_o", "expired_o", "young_o", "locators_o",
                     "terms_o"])
        await run(dut, pace, sources, [sink], lambda: len(sink.beats) >= len(ops), Ages(dut))
        assert [beat[: len(want)] for beat, want in zip(sink.beats, expected)] == expected


class ValueMemory:
    """The memory behind the value store: returns what was written, some cycles later."""

    def __init__(self, dut, back_pressure):
        self.dut, self.back_pressure = dut, back_pressure
        self.words, self.returns, self.time = {}, [], 0
        self.beat_words = parameter("BeatWords")

    def drive(self):
        self.time += 1
        self.dut.access_ready_i.value = int(random.randrange(256) >= self.back_pressure)
        is_due = bool(self.returns) and self.returns[0][0] <= self.time
        self.dut.return_valid_i.value = int(is_due)
        if is_due:
            self.dut.return_i.value = self.returns.pop(0)[1]

    def sample(self):
        dut = self.dut
        if not (int(dut.access_valid_o.value) and int(dut.access_ready_i.value)):
            return False
        address, size = int(dut.access_address_o.value), self.beat_words
        assert address < 1 << parameter("LogBits")
        if int(dut.access_write_o.value):
            data, mask = int(dut.access_data_o.value), int(dut.access_mask_o.value)
            for i in range(size):
                if mask >> i & 1:
                    self.words[address, i] = data >> 64 * i & (1 << 64) - 1
        else:
            data = sum(self.words.get((address, i), 0) << 64 * i for i in range(size))
            due = max(self.time + random.randrange(1, 40),
                      self.returns[-1][0] if self.returns else 0)
            self.returns.append((due, data))
        return True


async def value_store(dut):
    """Values of each length, in a place each: written, drained or read, in random order. One of
    them goes around the end of the log."""
    room, longest = 16, 150
    first = (7 << parameter("LogBits")) - 2 - room * (longest // 2)
    for pace in PACES:
        await start(dut, return_valid_i=0)
        stored = {}
        commands, values, flags, found = [], [], [], []
        tasks = [(1, length) for length in range(longest + 1)] * 2
        tasks += [(0, length) for length in range(longest + 1)] * 2
        tasks += [(2, length) for length in range(0, longest, 7)]
        random.shuffle(tasks)
        for kind, length in tasks:
            value, flag = random.randbytes(length), random.randrange(1 << 32)
            if kind == 0 and length not in stored:
                continue
            commands.append((pack((2, kind), (48, first + room * length), (24, length),
                                  (32, flag)),))
            if kind:
                values += [(beat[0],) for beat in words(value)]
            if kind == 1:
                stored[length] = (words(value), value, flag)
            if kind == 0:
                flags.append((stored[length][2],))
                found.append(stored[length][1])
        sources = [
            Source(dut, "command_valid_i", "command_ready_o", ["command_i"], commands),
            Source(dut, "val_valid_i", "val_ready_o", ["val_i"], values),
        ]
        flag_sink = Sink(dut, "flags_valid_o", "flags_ready_i", ["flags_o"])
        value_sink = Sink(dut, "val_valid_o", "val_ready_i", ["val_o"])
        beats = sum(len(words(value)) for value in found)
        await run(dut, pace, sources, [flag_sink, value_sink],
                  lambda: len(flag_sink.beats) >= len(flags) and not sources[0].beats
                  and len(value_sink.beats) >= beats, ValueMemory(dut, pace[1]))
        assert flag_sink.beats == flags
        beats = [unpack(word, *BEAT) for (word,) in value_sink.beats]
        assert [bytes_of(item) for item in split(beats)] == [v for v in found if v]


@cocotb.test()
async def bench(dut):
    """Runs the bench of the module that was built."""
    random.seed(1)
    cocotb.start_soon(Clock(dut.clk_i, 2, units="ns").start())
    module = os.environ["MODULE_UNDER_TEST"]
    benches = [globals(), vars(section), vars(front), vars(several)]
    await next(names[module] for names in benches if module in names)(dut)
