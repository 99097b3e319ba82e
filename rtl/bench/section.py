"""Benches of the modules around the critical section and the memory port: each is compared with a
short model, at every pace and with every key length that it supports."""

import os
import random

from package import (
    ACCESS, COMMAND, DELETE, GET, GETKQ, GETQ, INVALID, KIND_DELETE, KIND_GET, KIND_NONE,
    KIND_SET, META, META_OUT, NO_MEMORY, NOT_FOUND, OK, OP, RESPONSE, SET, SETQ, TOO_LARGE,
    VALUE_DRAIN, VALUE_READ, VALUE_WRITE, parameter, stripes, struct,
)
from streams import PACES, Sink, Source, run, start, unpack

# Number of cycles of a bench without streams, which has no natural end.
CYCLES = 2000


def happens(rest_of_256):
    return random.randrange(256) >= rest_of_256


def taken(dut, stream):
    valid, ready = (f"{stream}_valid_o", f"{stream}_ready_i")
    return int(getattr(dut, valid).value) and int(getattr(dut, ready).value)


class Cycles:
    """A bench without streams: a fixed number of cycles of `drive` and `sample`."""

    def __init__(self, dut, pace):
        self.dut, self.pace, self.left = dut, pace, CYCLES

    async def run(self):
        await run(self.dut, self.pace, [], [], lambda: self.left <= 0, self)

    def sample(self):
        self.left -= 1
        self.check()
        return True


class Level:
    """Counts entries of a queue; one in block RAM may hold two more in its output registers."""

    def __init__(self, dut):
        self.dut, self.level = dut, 0
        self.extra = 2 * int(os.environ.get("InBlock", 0))

    def drive(self):
        assert 0 <= self.level - int(self.dut.level_o.value) <= self.extra

    def sample(self):
        dut = self.dut
        self.level += int(dut.valid_i.value) & int(dut.ready_o.value)
        self.level -= int(dut.valid_o.value) & int(dut.ready_i.value)
        assert 0 <= self.level <= parameter("Depth") + self.extra
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


class Log(Cycles):
    """The ring of beats, each with the position of the value that was appended there last."""

    def __init__(self, dut, pace):
        super().__init__(dut, pace)
        self.size, self.largest = 1 << parameter("LogBits"), parameter("Largest")
        self.head, self.values, self.ring, self.swept = 1, [(1, 0)], {}, 0

    def drive(self):
        dut = self.dut
        self.is_appended = happens(self.pace[0])
        self.beats = random.randint(0 if random.random() < 0.1 else 1, self.largest)
        dut.append_i.value, dut.beats_i.value = int(self.is_appended), self.beats
        # The latest ones, and those near the limits of what is whole and what is young.
        def age(value):
            return self.head - value[0]
        near = [value for value in self.values if min(
            abs(age(value) - self.size), abs(age(value) - self.size // 2)) <= 2]
        self.asked = [random.choice(random.choice([near, self.values]) or self.values)
                      for _ in range(parameter("Slots"))]
        dut.pointers_i.value = sum(self.stored(position) << 48 * i
                                   for i, (position, _) in enumerate(self.asked))
        self.is_swept = int(dut.sweep_valid_o.value) and happens(self.pace[1])
        dut.sweep_taken_i.value = int(self.is_swept)

    def stored(self, position):
        return position % (1 << parameter("PositionBits"))

    def check(self):
        dut = self.dut
        assert int(dut.head_o.value) == self.stored(self.head)
        # While half of all positions are appended, every bucket has its turn.
        bits = parameter("BucketBits")
        turn = self.head >> parameter("PositionBits") - 1 - bits
        assert int(dut.sweep_valid_o.value) == ((turn - self.swept) % (1 << bits) != 0)
        assert int(dut.sweep_bucket_o.value) == self.swept % (1 << bits)
        self.swept += self.is_swept
        overwritten, young = int(dut.is_overwritten_o.value), int(dut.is_young_o.value)
        for i, (position, beats) in enumerate(self.asked):
            is_whole = all(self.ring.get(place % self.size) == position
                           for place in range(position, position + beats))
            age = self.head - position
            # What is whole may be given up one beat early.
            assert is_whole or overwritten >> i & 1
            assert overwritten >> i & 1 == (age >= self.size)
            assert young >> i & 1 == (age < self.size // 2)
        if self.is_appended:
            for place in range(self.head, self.head + self.beats):
                self.ring[place % self.size] = self.head
            if self.beats:
                self.values.append((self.head, self.beats))
            self.values = [value for value in self.values
                           if self.head - value[0] < 3 * self.size]
            self.head += self.beats


async def value_log(dut):
    for pace in PACES:
        await start(dut, append_i=0, beats_i=0, pointers_i=0, sweep_taken_i=0)
        await Log(dut, pace).run()


def op_of(number, key_bytes, kind, bucket=0, check=0, now=0, **fields):
    opcode = {KIND_SET: SET, KIND_DELETE: DELETE}.get(kind, GET)
    request = (number, opcode, key_bytes, fields.get("vlen", 0), fields.get("flags", 0),
               fields.get("expiry", 0), 0, 0)
    meta = (kind, 0, fields.get("drain", 0), fields.get("status", OK))
    forwarded = int(fields.get("is_forwarded", 0)), fields.get("station", 0)
    return struct(META + META_OUT + OP, *request, *meta, bucket, check, now, *forwarded)


def tag_of(bucket):
    """The unit in which conflicts are detected: the bucket, or the counter that it hashes to."""
    bits = int(os.environ.get("CounterBits", 0))
    tag = 0
    while bits and bucket:
        tag, bucket = tag ^ bucket & (1 << bits) - 1, bucket >> bits
    return tag | bucket


class Entrance:
    """The writes in the critical section, which retire in order, after a random time; and sweeps,
    which go first."""

    def __init__(self, dut, pace, requests):
        self.dut, self.pace, self.requests = dut, pace, list(requests)
        self.pending, self.sweeps, self.now, self.entered, self.sweep = [], [], 0, [], None

    def drive(self):
        self.now += 1
        if self.sweep is None and self.requests and happens(240):
            self.sweep = random.randrange(6)
        self.dut.sweep_valid_i.value = int(self.sweep is not None)
        self.dut.sweep_bucket_i.value = self.sweep or 0
        self.is_retiring = bool(self.pending) and happens(max(self.pace[1], 200))
        self.dut.now_i.value, self.dut.retire_i.value = self.now, int(self.is_retiring)

    def sample(self):
        dut = self.dut
        is_in = int(dut.meta_valid_i.value) and int(dut.meta_ready_o.value)
        if self.sweep is not None:
            assert not is_in and not int(dut.stall_o.value)
            if int(dut.sweep_ready_o.value):
                tag = tag_of(self.sweep)
                assert tag not in self.pending and len(self.pending) < parameter("Writers")
                self.entered.append((self.sweep,))
                self.pending.append(tag)
                self.sweeps.append(True)
                self.sweep, is_in = None, True
        elif int(dut.meta_valid_i.value):
            number, key_bytes, kind, bucket, check, repeats = self.requests[0]
            is_write = kind in (KIND_SET, KIND_DELETE)
            is_here = not key_bytes or int(dut.hash_valid_i.value)
            tag = tag_of(bucket)
            is_busy, may_forward = tag in self.pending, repeats and not any(self.sweeps)
            waits = key_bytes and (is_busy and not may_forward or (
                is_write and len(self.pending) == parameter("Writers")))
            assert int(dut.stall_o.value) == bool(is_here and waits)
            assert not is_in or (is_here and not waits)
            if is_in:
                self.requests.pop(0)
                is_forwarded = int(bool(key_bytes and is_busy and may_forward))
                self.entered.append((number, key_bytes, kind, bucket, check, self.now,
                                     is_forwarded))
                if is_write:
                    self.pending.append(tag)
                    self.sweeps.append(False)
        if self.is_retiring:
            self.pending.pop(0)
            self.sweeps.pop(0)
        return is_in or self.is_retiring


async def concurrency_control(dut):
    """Each key length as read and as write, on few enough buckets to conflict."""
    bits = parameter("BucketBits")
    for pace in PACES:
        await start(dut, now_i=0, retire_i=0, sweep_valid_i=0, sweep_bucket_i=0)
        lengths = 2 * list(range(251))
        random.shuffle(lengths)
        requests, metas, hashes = [], [], []
        for number, key_bytes in enumerate(lengths):
            kind = random.choice([KIND_GET, KIND_SET, KIND_DELETE]) if key_bytes else KIND_NONE
            bucket, check = random.randrange(6), random.randrange(256)
            repeats = random.randrange(2)
            requests.append((number, key_bytes, kind, bucket, check, repeats))
            metas.append((op_of(number, key_bytes, kind) >> sum(OP),))
            if key_bytes:
                primary = bucket << 32 - bits | random.randrange(1 << 32 - bits)
                hashes.append((primary << 8 | check, bucket, repeats))
        sources = [Source(dut, "meta_valid_i", "meta_ready_o", ["meta_i"], metas),
                   Source(dut, "hash_valid_i", "hash_ready_o",
                          ["hash_i", "station_i", "is_repeated_i"], hashes)]
        sink = Sink(dut, "valid_o", "ready_i", ["op_o"])
        entrance = Entrance(dut, pace, requests)
        await run(dut, pace, sources, [sink], lambda: not entrance.requests
                  and len(sink.beats) >= len(entrance.entered), entrance)
        for (op,), entered in zip(sink.beats, entrance.entered, strict=True):
            if len(entered) == 1:
                fields = unpack(op, *META, *META_OUT, *OP)
                _, _, klen, *_, kind, _, drain, _, bucket, _, now, is_forwarded, _ = fields
                assert not is_forwarded
                assert (klen, kind, drain, bucket, now) == (0, KIND_DELETE, 0, *entered, 0)
                continue
            number, key_bytes, kind, bucket, check, now, is_forwarded = entered
            if key_bytes:
                assert op == op_of(number, key_bytes, kind, bucket, check, now, station=bucket,
                                   is_forwarded=is_forwarded)
            else:
                assert op >> sum(OP) == op_of(number, 0, kind) >> sum(OP)


class Returns:
    """Beats in flight: they arrive and are taken after a random time."""

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
    """Words of a stripe, index of the key's first word and of the terms, and the longest key."""
    stripe, lines = parameter("StripeWords"), parameter("Lines")
    first, terms = parameter("KeyWord"), parameter("TermsWord")
    return (stripe, first, terms), 8 * ((terms if terms > first else stripe * lines) - first)


def sweep_lines(shape):
    """The lines of a bucket that a sweep reads."""
    return sorted({0, shape[2] // shape[0]})


async def read_unit(dut):
    """Each key length: its lines and the terms' line, never more than there is room for; a sweep's
    are those of locators and terms."""
    shape, longest = layout()
    for pace in PACES:
        await start(dut, beat_taken_i=0)
        lengths = 3 * list(range(longest + 1)) + 20 * [0]
        random.shuffle(lengths)
        ops, addresses = [], []
        for number, key_bytes in enumerate(lengths):
            bucket = random.randrange(1 << 20)
            kind = KIND_GET if key_bytes else random.choice([KIND_NONE, KIND_DELETE])
            ops.append((op_of(number, key_bytes, kind, bucket),))
            lines = [line for line, *_ in stripes(bytes(key_bytes), *shape)] if key_bytes else \
                sweep_lines(shape) if kind == KIND_DELETE else []
            for line in lines:
                line += bucket * parameter("Lines")
                addresses.append((line * parameter("LineBeats"),))
        source = Source(dut, "valid_i", "ready_o", ["op_i"], ops)
        sinks = [Sink(dut, "op_valid_o", "op_ready_i", ["op_o"]),
                 Sink(dut, "read_valid_o", "read_ready_i", ["read_address_o"])]
        await run(dut, pace, [source], sinks, lambda: len(sinks[1].beats) >= len(addresses)
                  and len(sinks[0].beats) >= len(ops), Returns(dut, pace))
        assert [sink.beats for sink in sinks] == [ops, addresses]


class Verdicts:
    """Inputs of the write unit apart from its request, and outputs apart from its streams."""

    def __init__(self, dut, source, cases):
        self.dut, self.source, self.cases = dut, source, list(cases)
        self.at, self.retired, self.appended = 0, 0, []

    def drive(self):
        dut = self.dut
        case = self.cases[min(self.at, len(self.cases) - 1)]
        stripe, mask = case["stripes"].get(int(dut.line_o.value), (0, 0))
        dut.stripe_i.value, dut.mask_i.value = stripe, mask
        dut.head_i.value = case["head"]

    def sample(self):
        dut = self.dut
        self.retired += int(dut.retire_o.value)
        if int(dut.append_o.value):
            self.appended.append((self.at, int(dut.beats_o.value)))
        self.at += int(dut.valid_i.value) & int(dut.ready_o.value)
        return False


def beats_of(value_bytes):
    return -(-(value_bytes + 8) // (8 * parameter("StripeWords") * parameter("SlotsPerBeat")))


def random_case(number, key_bytes, shape):
    """A request, the slots of its bucket, and where the log goes on."""
    slots, now, check = parameter("Slots"), 1000, random.randrange(256)
    kind = random.choice([KIND_GET, KIND_SET, KIND_SET, KIND_DELETE] if key_bytes
                         else [KIND_NONE, KIND_DELETE])
    status = random.choice([OK, OK, OK, INVALID]) if kind == KIND_GET else OK
    if kind == KIND_DELETE and key_bytes and random.random() < 0.2:
        status = TOO_LARGE
    key = random.randbytes(key_bytes)
    case = {
        "number": number, "kind": kind, "status": status, "check": check, "key": key,
        "vlen": random.choice([0, 1, 55, 56, 57, 89, 200, 1024]),
        "flags": random.randrange(1 << 32),
        "expiry": random.choice([0, 2000]), "drain": int(status == INVALID and number % 2),
        "head": random.randrange(1, 1 << 48),
        "stripes": {line: (data, mask) for line, data, mask in stripes(key, *shape)}
        if key else {},
    }
    has_free, matched = random.random() < 0.5, random.randrange(2 * slots)
    case["slots"] = []
    for slot in range(slots):
        is_free = has_free and slot != matched and random.random() < 0.4
        expiry = random.choice([0, 0, 1000, 1001]) if has_free else 0
        case["slots"].append((0, 0, 0, 0) if is_free else (
            random.randrange(1, 1 << 48), random.choice([0, 50, 56, 88, 150, 1024]), expiry,
            int(slot == matched and bool(key_bytes))))
    case["expired"] = [0 < expiry <= now for _, _, expiry, _ in case["slots"]]
    case["young"] = [random.randrange(2) for _ in case["slots"]]
    case["op"] = op_of(number, key_bytes, kind, number, check, now, vlen=case["vlen"],
                       flags=case["flags"], expiry=case["expiry"], drain=case["drain"],
                       status=status)
    return case


def verdict_of(case):
    """A case in the form in which the comparators report it."""
    def bits(flags):
        return sum(int(flag) << slot for slot, flag in enumerate(flags))

    slots = case["slots"]
    locators = [pointer and 7 << 56 | pointer for pointer, *_ in slots]
    terms = [length << 32 | expiry for _, length, expiry, _ in slots]
    return (case["op"], bits(slot[3] for slot in slots), bits(not slot[0] for slot in slots),
            bits(case["expired"]), bits(case["young"]),
            sum(word << 64 * i for i, word in enumerate(locators)),
            sum(word << 64 * i for i, word in enumerate(terms)))


def carry_out(case, evicts, shape):
    """Applies the rules of docs/pipeline.md: (status, slot that holds the item or None, the beats
    that are appended or None, words of the bucket that change, the value's position)."""
    slots, expired, kind = case["slots"], case["expired"], case["kind"]
    matched = next((i for i, slot in enumerate(slots) if slot[3]), None)
    is_hit = matched is not None and not expired[matched]
    if kind in (KIND_NONE, KIND_GET):
        status = NOT_FOUND if kind == KIND_GET and case["status"] == OK and not is_hit \
            else case["status"]
        return status, matched, None, {}, None
    freed = [i for i in range(len(slots)) if expired[i] and i != matched]
    words, target, appended, position, status = {}, None, None, None, case["status"]
    if kind == KIND_DELETE:
        freed += [matched] if matched is not None else []
        status = status or (OK if is_hit else NOT_FOUND)
    else:
        available = [i for i in range(len(slots)) if not slots[i][0] or expired[i]]
        target = matched if matched is not None else min(available, default=None)
        if target is None and evicts:
            target = case["check"] % len(slots)
        beats = beats_of(case["vlen"])
        if target is None:
            status = NO_MEMORY
        elif matched is not None and case["young"][matched] \
                and beats <= beats_of(slots[matched][1]):
            position = slots[matched][0]
        else:
            appended, position = beats, case["head"]
    for slot in freed:
        words |= {(slot, 0): 0, (slot, shape[2]): 0}
    if target is not None:
        key = case["key"]
        words[target, 0] = len(key) << 56 | case["check"] << 48 | position
        words[target, shape[2]] = case["vlen"] << 32 | case["expiry"]
        if matched is None:
            words |= {(target, shape[1] + at // 8): int.from_bytes(key[at : at + 8], "little")
                      for at in range(0, len(key), 8)}
    return status, matched, appended, words, position


def say(case, outcome, table_only):
    """The answer, and the command to the value store, if any."""
    status, matched, _, _, position = outcome
    kind, vlen = case["kind"], case["vlen"]
    hit = int(kind == KIND_GET and status == OK)
    old = case["slots"][matched] if matched is not None else (0, 0)
    pointer = old[0] if hit else position if kind == KIND_SET and status == OK else 0
    opcode = {KIND_SET: SET, KIND_DELETE: DELETE}.get(kind, GET)
    answer = (case["number"], opcode, 0, hit, status, old[1] if hit else 0, 0, pointer,
              1000)
    command = None
    if hit and not table_only:
        command = (VALUE_READ, old[0], old[1])
    elif kind == KIND_SET and status == OK and not table_only:
        command = (VALUE_WRITE, position, vlen)
    elif (kind == KIND_SET and vlen) or (case["drain"] and (vlen or not table_only)):
        command = (VALUE_DRAIN, None, vlen)
    return answer, command


async def write_unit(dut):
    """Each key length, with every kind of request on every kind of bucket: what is appended to the
    log, the memory's content afterwards, the answers and the commands to the value store."""
    shape, longest = layout()
    lines = parameter("Lines")
    per_beat = parameter("SlotsPerBeat")
    line_beats = parameter("Slots") // per_beat
    for turn, pace in enumerate(PACES):
        evicts, table_only = turn % 2, int(turn in (2, 5))
        await start(dut, evict_i=evicts, table_only_i=table_only)
        lengths = 4 * list(range(longest + 1)) + 40 * [0]
        random.shuffle(lengths)
        cases = [random_case(*numbered, shape) for numbered in enumerate(lengths)]
        source = Source(dut, "valid_i", "ready_o", ["op_i", "match_i", "free_i", "expired_i",
                        "young_i", "locators_i", "terms_i"], [verdict_of(case) for case in cases])
        write = Sink(dut, "write_valid_o", "write_ready_i",
                     [f"write_{name}_o" for name in ("address", "data", "mask", "last")])
        # These two streams advance together, so each is valid only while the other is ready.
        value = Sink(dut, "value_valid_o", "value_ready_i", ["value_o"], is_stable=False)
        answers = Sink(dut, "response_valid_o", "response_ready_i", ["response_o"],
                       is_stable=False)
        verdicts = Verdicts(dut, source, cases)
        await run(dut, pace, [source], [write, value, answers],
                  lambda: verdicts.at >= len(cases), verdicts)
        outcomes = [carry_out(case, evicts, shape) for case in cases]
        # A sweep is not answered.
        spoken = [say(case, outcome, table_only) for case, outcome in zip(cases, outcomes)
                  if case["key"] or case["kind"] == KIND_NONE]
        assert [tuple(unpack(word, *RESPONSE)) for (word,) in answers.beats] \
            == [answer for answer, _ in spoken]
        commands = [command for _, command in spoken if command]
        found = [unpack(word, *COMMAND)[:3] for (word,) in value.beats]
        assert [(kind, None if kind == VALUE_DRAIN else pointer, vlen)
                for kind, pointer, vlen in found] == commands
        assert verdicts.appended == [(number, 0 if table_only else outcome[2])
                                     for number, outcome in enumerate(outcomes) if outcome[2]]
        assert verdicts.retired == sum(case["kind"] in (KIND_SET, KIND_DELETE) for case in cases)
        expected, written = {}, {}
        for bucket, outcome in enumerate(outcomes):
            for (slot, word), content in outcome[3].items():
                line, place = divmod(word, shape[0])
                beat = (bucket * lines + line) * line_beats + slot // per_beat
                expected[beat, slot % per_beat * shape[0] + place] = content
        for address, data, mask, _ in write.beats:
            for i in range(per_beat * shape[0]):
                if mask >> i & 1:
                    written[address, i] = data >> 64 * i & (1 << 64) - 1
        assert written == expected
        assert [last for *_, last in write.beats] \
            == [int(address % line_beats == line_beats - 1) for address, *_ in write.beats]


class Priorities:
    """Which of the three may be accepted: a line already begun, then writes, values and reads."""

    def __init__(self, dut):
        self.dut, self.is_inside = dut, False

    def drive(self):
        pass

    def sample(self):
        dut = self.dut
        if not taken(dut, "mem"):
            return False
        is_write, is_value = (int(getattr(dut, f"{name}_valid_i").value)
                              for name in ("write", "value"))
        picked = "write" if is_write else "value" if is_value else "read"
        assert not (self.is_inside and picked != "write"), "a line was interrupted"
        for name in ("write", "value", "read"):
            assert int(getattr(dut, f"{name}_ready_o").value) == (name == picked)
        if picked == "write":
            self.is_inside = not int(dut.write_last_i.value)
        return True


async def memory_arbiter(dut):
    """Three clients at once: the order and content of each are preserved."""
    width, words = 64 * parameter("BeatWords"), parameter("BeatWords")
    line_beats = parameter("LineBeats")
    for pace in PACES:
        await start(dut)
        reads = [(random.randrange(1 << 20),) for _ in range(200)]
        writes = [(random.randrange(1 << 20), random.getrandbits(width),
                   random.getrandbits(words), int(beat == line_beats - 1))
                  for _ in range(100) for beat in range(line_beats)]
        values = [(random.randrange(2), random.randrange(1 << 20), random.getrandbits(width),
                   random.getrandbits(words)) for _ in range(200)]
        sources = [Source(dut, f"{name}_valid_i", f"{name}_ready_o",
                          [f"{name}_{signal}_i" for signal in signals], beats)
                   for name, signals, beats in (
                       ("read", ["address"], reads),
                       ("write", ["address", "data", "mask", "last"], writes),
                       ("value", ["write", "address", "data", "mask"], values))]
        # An offer may change until it is taken: a later client may have priority.
        sink = Sink(dut, "mem_valid_o", "mem_ready_i",
                    ["mem_o", "mem_data_o", "mem_mask_o"], is_stable=False)
        total = len(reads) + len(writes) + len(values)
        await run(dut, pace, sources, [sink], lambda: len(sink.beats) >= total, Priorities(dut))
        found = {"read": [], "write": [], "value": []}
        for access, data, mask in sink.beats:
            is_write, last, is_value, count, address = unpack(access, *ACCESS)
            if is_value:
                assert last and count == 1
                found["value"].append((is_write, address - parameter("TableBeats"), data, mask))
            elif is_write:
                found["write"].append((address, data, mask, last))
            else:
                assert count == line_beats
                found["read"].append((address,))
        assert found == {"read": reads, "write": writes, "value": values}


async def post_processor(dut):
    """Answers of every kind, with values of each length or without: quiet answers end here."""
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


async def table_clear(dut):
    """Every bucket's locators and terms are cleared: each beat once, and nothing else."""
    lines, line_beats, terms = parameter("Lines"), parameter("LineBeats"), parameter("TermsLine")
    for pace in PACES:
        await start(dut)
        expected = [((bucket * lines + line) * line_beats + beat, int(beat == line_beats - 1))
                    for bucket in range(2 ** parameter("BucketBits"))
                    for line in sorted({0, terms}) for beat in range(line_beats)]
        sink = Sink(dut, "write_valid_o", "write_ready_i", ["write_address_o", "write_last_o"])
        await run(dut, pace, [], [sink], lambda: int(dut.is_done_o.value))
        assert sink.beats == expected
