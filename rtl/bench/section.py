"""Benches of the modules around the critical section and the memory port: each is held to a model
of a few lines, at every pace and with every key length that goes through it."""

import random

from package import (
    DELETE, GET, GETKQ, GETQ, INVALID, KIND_DELETE, KIND_GET, KIND_NONE, KIND_SET, META, META_OUT,
    NO_MEMORY, NOT_FOUND, OK, OP, RESPONSE, SET, SETQ, parameter, stripes, struct,
)
from streams import PACES, Sink, Source, run, start

# Cycles of a bench that has no streams to come to an end.
CYCLES = 2000


def happens(rest_of_256):
    return random.randrange(256) >= rest_of_256


def taken(dut, stream):
    valid, ready = (f"{stream}_valid_o", f"{stream}_ready_i")
    return int(getattr(dut, valid).value) and int(getattr(dut, ready).value)


class Cycles:
    """A bench without streams: so many cycles of `drive` and `sample`."""

    def __init__(self, dut, pace):
        self.dut, self.pace, self.left = dut, pace, CYCLES

    async def run(self):
        await run(self.dut, self.pace, [], [], lambda: self.left <= 0, self)

    def sample(self):
        self.left -= 1
        self.check()
        return True


class Level:
    """Counts what lies in a queue."""

    def __init__(self, dut):
        self.dut, self.level = dut, 0

    def drive(self):
        assert int(self.dut.level_o.value) == self.level

    def sample(self):
        dut = self.dut
        self.level += int(dut.valid_i.value) & int(dut.ready_o.value)
        self.level -= int(dut.valid_o.value) & int(dut.ready_i.value)
        assert 0 <= self.level <= parameter("Depth")
        return False


async def fifo(dut):
    for pace in PACES:
        await start(dut)
        items = [(random.randrange(256),) for _ in range(500)]
        source = Source(dut, "valid_i", "ready_o", ["data_i"], items)
        sink = Sink(dut, "valid_o", "ready_i", ["data_o"])
        await run(dut, pace, [source], [sink], lambda: len(sink.beats) >= 500, Level(dut))
        assert sink.beats == items


class Credits(Cycles):
    lent, is_taking, is_giving = 0, 0, 0

    def drive(self):
        is_enough = int(self.dut.is_enough_o.value)
        assert is_enough == (self.lent + parameter("Step") <= parameter("Total"))
        self.is_taking = int(is_enough and happens(self.pace[0]))
        self.is_giving = int(self.lent > 0 and happens(self.pace[1]))
        self.dut.take_i.value, self.dut.give_back_i.value = self.is_taking, self.is_giving

    def check(self):
        self.lent += self.is_taking * parameter("Step") - self.is_giving


async def credits(dut):
    for pace in PACES:
        await start(dut, take_i=0, give_back_i=0)
        await Credits(dut, pace).run()


class Queues(Cycles):
    """The blocks of each class: those that were never lent, those that came back, those out."""

    def __init__(self, dut, pace):
        super().__init__(dut, pace)
        classes, shift, self.blocks = (parameter("Classes"), parameter("ClassShift"),
                                       2 ** parameter("BlockBits"))
        first = [2 ** (shift * (classes - 1))]
        for c in range(classes):
            first.append(first[-1] + (self.blocks << shift * c))
        self.free = [[first[c] + (i << shift * c) for i in range(self.blocks)]
                     for c in range(classes)]
        self.lent = [[] for _ in range(classes)]
        self.give_back = None

    def drive(self):
        dut, classes = self.dut, len(self.free)
        self.wanted = random.randrange(classes)
        self.is_taken = bool(self.free[self.wanted]) and happens(self.pace[0])
        dut.alloc_class_i.value, dut.alloc_take_i.value = self.wanted, int(self.is_taken)
        c = random.randrange(classes)
        self.give_back = None
        if self.lent[c] and happens(self.pace[1]):
            self.give_back = c, self.lent[c].pop(random.randrange(len(self.lent[c])))
            dut.free_class_i.value, dut.free_pointer_i.value = self.give_back
        dut.free_valid_i.value = int(self.give_back is not None)

    def check(self):
        dut, bits = self.dut, parameter("BlockBits") + 1
        free = self.free[self.wanted]
        assert int(dut.alloc_valid_o.value) == bool(free)
        left = int(dut.left_o.value)
        assert [left >> bits * c & (1 << bits) - 1 for c in range(len(self.free))] \
            == [len(addresses) for addresses in self.free]
        if self.is_taken:
            # Never used ones first, then those that came back, oldest first.
            assert int(dut.alloc_pointer_o.value) == free[0]
            self.lent[self.wanted].append(free.pop(0))
        if self.give_back:
            self.free[self.give_back[0]].append(self.give_back[1])


async def address_queues(dut):
    for pace in PACES:
        await start(dut, free_valid_i=0, alloc_take_i=0)
        await Queues(dut, pace).run()


def op_of(number, key_bytes, kind, bucket=0, check=0, now=0, **fields):
    opcode = {KIND_SET: SET, KIND_DELETE: DELETE}.get(kind, GET)
    request = (number, opcode, key_bytes, fields.get("vlen", 0), fields.get("flags", 0),
               fields.get("expiry", 0))
    meta = (kind, 0, fields.get("drain", 0), fields.get("status", OK))
    return struct(META + META_OUT + OP, *request, *meta, bucket, check, now)


class Entrance:
    """The writes in the critical section, which retire in order, at some time."""

    def __init__(self, dut, pace, requests):
        self.dut, self.pace, self.requests = dut, pace, list(requests)
        self.pending, self.now, self.entered = [], 0, []

    def drive(self):
        self.now += 1
        self.is_retiring = bool(self.pending) and happens(max(self.pace[1], 200))
        self.dut.now_i.value, self.dut.retire_i.value = self.now, int(self.is_retiring)

    def sample(self):
        dut = self.dut
        is_in = int(dut.meta_valid_i.value) and int(dut.meta_ready_o.value)
        if int(dut.meta_valid_i.value):
            number, key_bytes, kind, bucket, check = self.requests[0]
            is_write = kind in (KIND_SET, KIND_DELETE)
            is_here = not key_bytes or int(dut.hash_valid_i.value)
            waits = key_bytes and (bucket in self.pending or (
                is_write and len(self.pending) == parameter("Writers")))
            assert int(dut.stall_o.value) == bool(is_here and waits)
            assert not is_in or (is_here and not waits)
            if is_in:
                self.requests.pop(0)
                self.entered.append((number, key_bytes, kind, bucket, check, self.now))
                if is_write:
                    self.pending.append(bucket)
        if self.is_retiring:
            self.pending.pop(0)
        return is_in or self.is_retiring


async def concurrency_control(dut):
    """Each key length as read and as write, on buckets so few that they meet."""
    bits = parameter("BucketBits")
    for pace in PACES:
        await start(dut, now_i=0, retire_i=0)
        lengths = 2 * list(range(251))
        random.shuffle(lengths)
        requests, metas, hashes = [], [], []
        for number, key_bytes in enumerate(lengths):
            kind = random.choice([KIND_GET, KIND_SET, KIND_DELETE]) if key_bytes else KIND_NONE
            bucket, check = random.randrange(6), random.randrange(256)
            requests.append((number, key_bytes, kind, bucket, check))
            metas.append((op_of(number, key_bytes, kind) >> sum(OP),))
            if key_bytes:
                primary = bucket << 32 - bits | random.randrange(1 << 32 - bits)
                hashes.append((primary << 8 | check,))
        sources = [Source(dut, "meta_valid_i", "meta_ready_o", ["meta_i"], metas),
                   Source(dut, "hash_valid_i", "hash_ready_o", ["hash_i"], hashes)]
        sink = Sink(dut, "valid_o", "ready_i", ["op_o"])
        entrance = Entrance(dut, pace, requests)
        await run(dut, pace, sources, [sink], lambda: len(sink.beats) >= len(requests), entrance)
        for (op,), (number, key_bytes, kind, bucket, check, now) in zip(
                sink.beats, entrance.entered, strict=True):
            if key_bytes:
                assert op == op_of(number, key_bytes, kind, bucket, check, now)
            else:
                assert op >> sum(OP) == op_of(number, 0, kind) >> sum(OP)


class Returns:
    """Beats on their way: they come, and are taken, at some time."""

    def __init__(self, dut, pace):
        self.dut, self.pace, self.out = dut, pace, 0

    def drive(self):
        self.is_taken = self.out > 0 and happens(self.pace[1])
        self.dut.beat_taken_i.value = int(self.is_taken)

    def sample(self):
        if taken(self.dut, "read"):
            self.out += parameter("LineBeats")
            assert self.out <= parameter("ReturnBeats"), "asked for more than there is room for"
        self.out -= self.is_taken
        return self.is_taken


def layout():
    """Words of a stripe, the key's first word and the terms' word; and the longest key."""
    stripe, lines = parameter("StripeWords"), parameter("Lines")
    first, terms = parameter("KeyWord"), parameter("TermsWord")
    return (stripe, first, terms), 8 * ((terms if terms > first else stripe * lines) - first)


async def read_unit(dut):
    """Each key length: its lines and the terms' line, in order, never more than fit."""
    shape, longest = layout()
    for pace in PACES:
        await start(dut, beat_taken_i=0)
        lengths = 3 * list(range(longest + 1))
        random.shuffle(lengths)
        ops, addresses = [], []
        for number, key_bytes in enumerate(lengths):
            bucket = random.randrange(1 << 20)
            kind = KIND_GET if key_bytes else KIND_NONE
            ops.append((op_of(number, key_bytes, kind, bucket),))
            for line, _, _ in stripes(bytes(key_bytes), *shape) if key_bytes else ():
                line += bucket * parameter("Lines")
                addresses.append((line * parameter("LineBeats"),))
        source = Source(dut, "valid_i", "ready_o", ["op_i"], ops)
        sinks = [Sink(dut, "op_valid_o", "op_ready_i", ["op_o"]),
                 Sink(dut, "read_valid_o", "read_ready_i", ["read_address_o"])]
        await run(dut, pace, [source], sinks, lambda: len(sinks[1].beats) >= len(addresses)
                  and len(sinks[0].beats) >= len(ops), Returns(dut, pace))
        assert [sink.beats for sink in sinks] == [ops, addresses]


async def post_processor(dut):
    """Answers of every kind, with values of each length or without: what is quiet ends here."""
    for turn, pace in enumerate(PACES):
        table_only = turn % 2
        await start(dut, table_only_i=table_only)
        responses, flags, expected = [], [], []
        for number in range(600):
            opcode = random.choice([GET, GETQ, GETKQ, SET, SETQ, DELETE])
            is_get, quiet = opcode in (GET, GETQ, GETKQ), int(opcode in (GETQ, GETKQ, SETQ))
            status = random.choice([OK, OK, NOT_FOUND, INVALID, NO_MEMORY])
            hit = int(is_get and status == OK)
            flag = random.randrange(1 << 32)
            if hit and not table_only:
                flags.append((flag,))
            fields = [number, opcode, quiet, hit, status, number if hit else 0, 0,
                      random.randrange(1 << 48), number]
            responses.append((struct(RESPONSE, *fields),))
            if quiet and ((is_get and status == NOT_FOUND) or (status == OK and not hit)):
                continue
            fields[6] = flag if hit and not table_only else 0
            expected.append((struct(RESPONSE, *fields),))
        sources = [
            Source(dut, "response_valid_i", "response_ready_o", ["response_i"], responses),
            Source(dut, "flags_valid_i", "flags_ready_o", ["flags_i"], flags),
        ]
        sink = Sink(dut, "valid_o", "ready_i", ["response_o"])
        await run(dut, pace, sources, [sink], lambda: len(sink.beats) >= len(expected)
                  and not any(source.beats for source in sources))
        assert sink.beats == expected
