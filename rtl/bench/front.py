"""Benches of the Ethernet front end: frames of every key length, valid and invalid in every way,
with and without memcached's datagram header."""

import random

from package import (
    BEAT, DELETE, GET, GETK, GETKQ, INVALID, META, NOOP, NOT_FOUND, OK, RESPONSE, SET, SETQ,
    VERSION, parameter, struct,
)
from streams import PACES, Sink, Source, run, start, unpack, words

OWN_MAC, OWN_IP, OWN_PORT, NOW = 0x020000000001, 0x0A000001, 11211, 5000
OURS = {"mac_i": OWN_MAC, "ip_i": OWN_IP, "port_i": OWN_PORT}
CLIENT = (48, 32, 16, 16, 32, 8, 1)  # mac, ip, port, frame id, opaque, klen, wants_key


def station():
    """A client that can be answered: (mac, ip, port)."""
    network = random.choice([1, 10, 126, 128, 192, 223])
    return (random.getrandbits(48) & ~(1 << 40), network << 24 | random.getrandbits(24),
            random.randrange(1, 1 << 16))


def ones_sum(content):
    content += b"\0" * (len(content) % 2)
    total = sum(int.from_bytes(content[at : at + 2], "big") for at in range(0, len(content), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def number(value, size):
    return value.to_bytes(size, "big")


def packet(opcode, extras, key, value, opaque, magic=0x80, body=None, cas=0):
    body = len(extras + key + value) if body is None else body
    return (bytes([magic, opcode]) + number(len(key), 2) + bytes([len(extras), 0, 0, 0])
            + number(body, 4) + number(opaque, 4) + number(cas, 8) + extras + key + value)


def frame(payload, client, **wrong):
    """A frame to the hardware with `payload`; `wrong` names the defect to put into it."""
    mac, ip, port = client
    pseudo = number(ip, 4) + number(wrong.get("ip", OWN_IP), 4) + bytes([0, 17])
    udp_bytes = 8 + len(payload) + wrong.get("udp_bytes", 0)
    udp = number(port, 2) + number(wrong.get("port", OWN_PORT), 2) + number(udp_bytes, 2)
    checksum = 0
    if wrong.get("has_checksum", True):
        checksum = 0xFFFF - ones_sum(pseudo + number(udp_bytes, 2) + udp + bytes(2) + payload)
        checksum = (checksum or 0xFFFF) ^ wrong.get("udp_sum", 0)
    ip_bytes = wrong.get("ip_bytes", 20 + 8 + len(payload))
    head = (bytes([wrong.get("version", 0x45), 0]) + number(ip_bytes, 2) + bytes(2)
            + number(wrong.get("fragment", 0x4000), 2) + bytes([64, wrong.get("protocol", 17)])
            + bytes(2) + number(ip, 4) + number(wrong.get("ip", OWN_IP), 4))
    sum_of_head = 0xFFFF - ones_sum(head) ^ wrong.get("ip_sum", 0)
    head = head[:10] + number(sum_of_head, 2) + head[12:]
    content = (number(wrong.get("to", OWN_MAC), 6) + number(mac, 6)
               + number(wrong.get("type", 0x0800), 2) + head + udp + number(checksum, 2) + payload)
    content = content[: wrong.get("cut", len(content))]
    # The padding of a short frame is arbitrary, and no checksum covers it.
    return content + random.randbytes(max(0, 60 - len(content)))


class Mac:
    """Offers frames, and never waits."""

    def __init__(self, dut, pace, frames):
        self.dut, self.pace = dut, pace
        self.beats = [(*beat, bad) for content, bad in frames for beat in words(content)]
        self.lost = {"overflow": 0, "broken": 0}

    def drive(self):
        is_offered = bool(self.beats) and random.randrange(256) >= self.pace[0]
        self.is_offered = is_offered
        self.dut.valid_i.value = int(is_offered)
        if is_offered:
            data, keep, last, bad = self.beats[0]
            self.dut.data_i.value, self.dut.keep_i.value = data, keep
            self.dut.last_i.value, self.dut.bad_i.value = last, bad

    def sample(self):
        for name in self.lost:
            self.lost[name] += int(getattr(self.dut, f"{name}_o").value)
        if self.is_offered:
            self.beats.pop(0)
        return self.is_offered


async def frame_buffer(dut):
    """Frames of every length, valid and not: frames that come out are whole, in order, with their
    length and verdict; all others were counted."""
    for pace in PACES:
        await start(dut, valid_i=0)
        frames, verdicts = [], []
        for size in range(300):
            client = tuple(random.getrandbits(bits) for bits in (48, 32, 16))
            wrong = random.choice([{}, {}, {"has_checksum": False}, {"udp_sum": 1 << size % 16},
                                   {"ip_sum": 1 << size % 16}])
            content = frame(random.randbytes(size), client, **wrong)
            bad = int(random.random() < 0.1)
            frames.append((content, bad))
            verdicts.append(int("udp_sum" not in wrong and "ip_sum" not in wrong))
        mac = Mac(dut, pace, frames)
        sink = Sink(dut, "valid_o", "ready_i", ["data_o", "last_o", "bytes_o", "is_sound_o"])
        await run(dut, pace, [], [sink], lambda: not mac.beats and sink.waiting is None
                  and not int(dut.valid_o.value), mac)
        assert mac.lost["broken"] == sum(bad for _, bad in frames)
        expected = iter((content, sound) for (content, bad), sound in zip(frames, verdicts)
                        if not bad)
        kept, content = 0, b""
        for data, last, size, sound in sink.beats:
            content += data.to_bytes(8, "little")
            if last:
                # Lost frames are whole frames between two received ones.
                assert any(found == (content[:size], sound) for found in expected)
                kept, content = kept + 1, b""
        assert not content
        assert kept + mac.lost["overflow"] + mac.lost["broken"] == len(frames)
        # A reader as fast as the wire loses nothing; a slow one loses frames.
        assert mac.lost["overflow"] == 0 or pace[1] > 0
        assert mac.lost["overflow"] > 0 or pace[1] < 200


class Drops:
    """Counts dropped frames by cause."""

    def __init__(self, dut):
        self.dut, self.dropped = dut, {"other": 0, "unsound": 0, "malformed": 0}

    def drive(self):
        pass

    def sample(self):
        before = sum(self.dropped.values())
        for name in self.dropped:
            self.dropped[name] += int(getattr(self.dut, f"{name}_o").value)
        return sum(self.dropped.values()) > before


def wrong_frames(payload, client, has_header):
    """A frame for each possible defect: (frame, whether checksums are right, cause)."""
    for cause, wrong in [
        ("other", {"type": 0x86DD}), ("other", {"version": 0x46}), ("other", {"protocol": 6}),
        ("other", {"fragment": 0x2000}), ("other", {"fragment": 3}), ("other", {"port": 11212}),
        ("other", {"ip": OWN_IP + 1}), ("other", {"to": OWN_MAC + 1}),
        ("other", {"to": 0xFFFFFFFFFFFF}), ("unsound", {"ip_sum": 8}), ("unsound", {"udp_sum": 4}),
        ("malformed", {"udp_bytes": 4}), ("malformed", {"udp_bytes": 65_000}),
        ("malformed", {"cut": 62}), ("malformed", {"cut": 70 + 8 * has_header}),
    ]:
        yield frame(payload, client, **wrong), int(cause != "unsound"), cause
    mac, ip, port = client
    for forged in [(1 << 40 | mac, ip, port), (OWN_MAC, ip, port), (mac, OWN_IP, port),
                   (mac, 0xFFFFFFFF, port), (mac, 0xE0000001, port), (mac, 0x7F000001, port),
                   (mac, 0, port), (mac, ip, 0)]:
        yield frame(payload, forged), 1, "other"
    # A datagram so long that its packet's length begins again from 0.
    datagram = 65_530
    body = datagram - 32 - 8 * has_header
    header = payload[: 8 * has_header]
    vast = header + packet(SET, bytes(8), b"some key", bytes(40), 0, body=body)
    yield (frame(vast, client, has_checksum=False, udp_bytes=datagram - 8 - len(vast),
                 ip_bytes=datagram + 20 & 0xFFFF), 1, "malformed")


async def request_parser(dut):
    """Each key length as GET, DELETE and SET of a value, and frames that are not requests."""
    for turn, pace in enumerate(PACES):
        has_header = turn % 2
        await start(dut, **OURS, has_header_i=has_header, now_i=NOW)
        lengths = list(range(256))
        random.shuffle(lengths)
        beats, metas, clients, keys, values = [], [], [], [], []
        dropped = {"other": 0, "unsound": 0, "malformed": 0}

        def offer(content, sound):
            last = len(content) - 1 >> 3
            for at, (data, _, _) in enumerate(words(content)):
                beats.append((data, int(at == last), len(content), sound))

        for frame_id, key_bytes in enumerate(lengths):
            client = station()
            opaque, key = random.getrandbits(32), random.randbytes(key_bytes)
            header = number(frame_id, 2) + number(0, 2) + number(1, 2) + bytes(2)
            header = header if has_header else b""
            opcode = random.choice([GET, GETK, GETKQ, SET, SETQ, DELETE, NOOP, 0x77])
            cas = random.choice([0, 1 << random.randrange(64)])
            is_set = opcode in (SET, SETQ)
            value = random.randbytes(random.choice([0, 1, 7, 8, 9, 100])) if is_set else b""
            flags, expiry = random.getrandbits(32), random.choice([0, 1, 2_592_000, 2_592_001])
            extras = number(flags, 4) + number(expiry, 4) if is_set else b""
            if opcode == NOOP:
                key = b""
            said = header + packet(opcode, extras, key, value, opaque, cas=cas)
            offer(frame(said, client, has_checksum=random.random() < 0.5), 1)
            is_known = opcode != 0x77
            ends = NOW + expiry if 0 < expiry <= 2_592_000 else expiry
            metas.append((struct(META, 0, opcode, len(key) if is_known else 0, len(value),
                                 flags if is_set else 0, ends if is_set else 0, int(cas != 0), 0),))
            frame_field = frame_id if has_header else 0x80 << 8 | opcode
            wants_key = opcode in (GETK, GETKQ) and 0 < key_bytes < 255
            clients.append((struct(CLIENT, *client, frame_field, opaque,
                                   len(key) if is_known else 0, int(wants_key)),))
            if is_known:
                keys.append(key)
                values.append(value)
            if key_bytes % 8 == 0:
                said = header + packet(GET, b"", b"some key", b"", opaque)
                for content, sound, cause in wrong_frames(said, client, has_header):
                    dropped[cause] += 1
                    offer(content, sound)
            for opcode, extras, named, value in (
                    (GET, b"", key, b"v"), (GETK, bytes(8), key, b""), (SET, b"", key, b""),
                    (SETQ, bytes(4), key, b"value"), (DELETE, b"\0", key, b""),
                    (NOOP, b"", b"k", b""), (VERSION, b"", b"", b"v")):
                if key_bytes % 16 == 1:
                    offer(frame(header + packet(opcode, extras, named, value, 7), client), 1)
                    metas.append((struct(META, 0, opcode, 0, 0, 0, 0, 0, 1),))
                    frame_field = frame_id if has_header else 0x80 << 8 | opcode
                    clients.append((struct(CLIENT, *client, frame_field, 7, 0, 0),))
            for malformed in (packet(GET, b"", key, b"", 0, magic=0x81),
                              packet(GET, b"", key, b"", 0, body=key_bytes + 1),
                              packet(SET, bytes(8), key, b"v", 0, body=len(key) + 8),
                              packet(SET, bytes(8), key, b"v", 0, body=len(key) + 10),
                              b"", b"\x80"):
                if key_bytes % 16 == 1:
                    dropped["malformed"] += 1
                    offer(frame(header + malformed, client), 1)
        source = Source(dut, "frame_valid_i", "frame_ready_o",
                        [f"frame_{name}_i" for name in ("data", "last", "bytes", "sound")], beats)
        meta = Sink(dut, "meta_valid_o", "meta_ready_i", ["meta_o"])
        client_sink = Sink(dut, "client_valid_o", "client_ready_i", ["client_o"], is_stable=False)
        items = [Sink(dut, f"{name}_valid_o", f"{name}_ready_i", [f"{name}_o"])
                 for name in ("key", "val")]
        drops = Drops(dut)
        counts = [sum(len(words(content)) for content in contents) for contents in (keys, values)]
        await run(dut, pace, [source], [meta, client_sink, *items], lambda: not source.beats
                  and not source.is_offered
                  and all(len(sink.beats) >= count for sink, count in zip(items, counts)), drops)
        assert drops.dropped == dropped, (drops.dropped, dropped)
        assert [meta.beats, client_sink.beats] == [metas, clients]
        for sink, expected in zip(items, (keys, values)):
            found, item = [], b""
            for data, keep, last in (unpack(word, *BEAT) for (word,) in sink.beats):
                item += bytes(data >> 8 * i & 0xFF for i in range(8) if keep >> i & 1)
                if last:
                    found.append(item)
                    item = b""
            assert found == [content for content in expected if content]


class Ends:
    """Ends some requests without an answer, in request order, in place of the post-processor."""

    def __init__(self, dut, plan):
        self.dut, self.plan, self.inside = dut, plan, 0

    def drive(self):
        self.is_ending = self.inside > 0 and not self.plan[0]
        self.dut.ended_i.value = int(self.is_ending)

    def sample(self):
        dut = self.dut
        self.inside += int(dut.client_valid_i.value) & int(dut.client_ready_o.value)
        has_left = self.is_ending or int(dut.meta_valid_i.value) & int(dut.meta_ready_o.value)
        if has_left:
            self.plan.pop(0)
            self.inside -= 1
        return bool(has_left)


class Answers(Source):
    """Offers answers, each of which waits until all earlier requests have ended."""

    plan = None

    def drive(self, idle):
        if self.plan and self.plan[0]:
            super().drive(idle)


async def response_formatter(dut):
    """Values of each length, and answers without one: each a valid frame to its own client."""
    for turn, pace in enumerate(PACES):
        has_header = turn % 2
        await start(dut, **OURS, has_header_i=has_header, ended_i=0)
        lengths = 2 * list(range(80)) + [600, 1024]
        random.shuffle(lengths)
        clients, answers, values, plan, expected, keys = [], [], [], [], [], []
        for place, length in enumerate(lengths):
            opcode = random.choice([GET, GETK, GETKQ, SET, VERSION])
            key = random.randbytes(random.choice([1, 5, 8, 30, 168]) if opcode != VERSION else 0)
            wants_key = opcode in (GETK, GETKQ)
            *client, frame_id, opaque = (random.getrandbits(bits) for bits in CLIENT[:5])
            clients.append((struct(CLIENT, *client, frame_id, opaque, len(key), int(wants_key)),))
            keys += [(struct(BEAT, *beat),) for beat in words(key)]
            has_answer = random.random() < 0.8
            plan.append(has_answer)
            if not has_answer:
                continue
            hit = random.randrange(2) if opcode in (GET, GETK, GETKQ) else 0
            value, flags = random.randbytes(length), place * 77
            status = OK if hit else random.choice([OK, INVALID] if opcode in (SET, VERSION)
                                                  else [NOT_FOUND, INVALID])
            answers.append((struct(RESPONSE, place, opcode, 0, hit, status, length if hit else 0,
                                   flags if hit else 0, 5 << 7, NOW),))
            if hit:
                values += [(struct(BEAT, *beat),) for beat in words(value)]
            repeated = key if wants_key and status in (OK, NOT_FOUND) else b""
            body = b"0.2.0" if opcode == VERSION and status == OK else value if hit else b""
            has_cas = hit or (opcode == SET and status == OK)
            expected.append((client, frame_id, opaque, opcode, hit, status, flags, has_cas,
                             repeated, body))
        client_source = Source(dut, "client_valid_i", "client_ready_o", ["client_i"], clients)
        source = Answers(dut, "meta_valid_i", "meta_ready_o", ["meta_i"], answers)
        source.plan = plan
        sources = [client_source, source,
                   Source(dut, "val_valid_i", "val_ready_o", ["val_i"], values),
                   Source(dut, "key_valid_i", "key_ready_o", ["key_i"], keys)]
        sink = Sink(dut, "frame_valid_o", "frame_ready_i",
                    [f"frame_{name}_o" for name in ("data", "keep", "last")], is_stable=False)
        await run(dut, pace, sources, [sink], lambda: not plan
                  and sum(last for *_, last in sink.beats) >= len(expected), Ends(dut, plan))
        frames, content = [], b""
        for data, keep, last in sink.beats:
            content += bytes(data >> 8 * i & 0xFF for i in range(8) if keep >> i & 1)
            if last:
                frames.append(content)
                content = b""
        assert frames == [answer_frame(has_header, *answer) for answer in expected]


def answer_frame(has_header, client, frame_id, opaque, opcode, hit, status, flags, has_cas, key,
                 value):
    mac, ip, port = client
    extras = number(flags, 4) if hit else b""
    payload = number(frame_id, 2) + number(0, 2) + number(1, 2) + bytes(2) if has_header else b""
    payload += (bytes([0x81, opcode, 0, len(key), len(extras), 0]) + number(status, 2)
                + number(len(extras + key + value), 4) + number(opaque, 4)
                + number(int(has_cas), 8) + extras + key + value)
    head = (bytes([0x45, 0]) + number(28 + len(payload), 2) + bytes(2) + number(0x4000, 2)
            + bytes([64, 17]) + bytes(2) + number(OWN_IP, 4) + number(ip, 4))
    head = head[:10] + number(0xFFFF - ones_sum(head), 2) + head[12:]
    udp = number(OWN_PORT, 2) + number(port, 2) + number(8 + len(payload), 2) + bytes(2)
    return number(mac, 6) + number(OWN_MAC, 6) + number(0x0800, 2) + head + udp + payload


class Wire(Mac):
    """Offers frames to a lane, up to its limit, and tracks which of them its buffer keeps."""

    def __init__(self, dut, pace, frames):
        super().__init__(dut, pace, frames)
        self.begun, self.kept, self.turns, self.is_inside = 0, [], None, False

    def drive(self):
        has_room = self.is_inside or self.begun - len(self.turns.beats) < parameter("Frames")
        self.is_offered = (bool(self.beats) and has_room
                           and random.randrange(256) >= self.pace[0])
        self.dut.frame_valid_i.value = int(self.is_offered)
        for name, value in zip(("data", "keep", "last", "bad"), (self.beats or [(0,) * 4])[0]):
            getattr(self.dut, f"frame_{name}_i").value = value

    def sample(self):
        if self.is_offered:
            *_, last, _ = self.beats.pop(0)
            self.begun += not self.is_inside
            self.is_inside = not last
            if last:
                # The upper two bits of the drop causes: no room, broken.
                self.kept.append(int(self.dut.drops_o.value) >> 3 == 0)
        return self.is_offered


class Behind(Sink):
    """Takes items only of requests that `requests` has already taken; `named` is the index of the
    item's length among a request's fields."""

    def __init__(self, dut, name, requests, named):
        super().__init__(dut, f"{name}_valid_o", f"{name}_ready_i", [f"{name}_o"])
        self.requests, self.named, self.seen, self.due = requests, named, 0, 0

    def drive(self, back_pressure):
        super().drive(back_pressure)
        for request, *_ in self.requests.beats[self.seen :]:
            self.due += unpack(request, *META)[self.named] > 0
        self.seen = len(self.requests.beats)
        if not self.due:
            self.ready.value = 0

    def sample(self):
        is_taken = super().sample()
        self.due -= is_taken and self.beats[-1][0] & 1
        return is_taken


def table_of(key):
    """The table of a key: a cyclic sum of the key, padded with zeros, of at most 256 bytes, folded
    onto a table's number."""
    sum_of_bits = 0
    for byte in key[:256].ljust(-(-len(key[:256]) // 8) * 8, b"\0"):
        for bit in range(8):
            top = sum_of_bits >> 15 ^ byte >> bit & 1
            sum_of_bits = sum_of_bits << 1 & 0xFFFF ^ (0x1021 if top else 0)
    table = 0
    while sum_of_bits:
        table ^= sum_of_bits % parameter("Tables")
        sum_of_bits //= parameter("Tables")
    return table


def items_of(sink):
    """Joins a stream's beats (data, keep, last) into items."""
    items, item = [], b""
    for beat, in sink.beats:
        data, keep, last = unpack(beat, 64, 8, 1)
        item += bytes(data >> 8 * i & 0xFF for i in range(8) if keep >> i & 1)
        if last:
            items.append(item)
            item = b""
    assert not item, "an item has no end"
    return items


async def front_lane(dut):
    """Keys of every length, also too long for any table, and frames that are not requests: a turn
    for each frame, with the key's table, and the requests after the turns."""
    for number_of_pace, pace in enumerate(PACES):
        has_header = number_of_pace % 2
        await start(dut, **OURS, has_header_i=has_header, now_i=NOW, frame_valid_i=0)
        frames, requests = [], []   # what each frame brings, if its buffer keeps it
        lengths = [*range(0, 250, 3), 255, 256, 257, 264, 520, 700, 1000]
        random.shuffle(lengths)
        for key_bytes in lengths:
            client = station()
            opaque, key = random.getrandbits(32), random.randbytes(key_bytes)
            header = bytes(4) + number(1, 2) + bytes(2) if has_header else b""
            opcode = random.choice([GET, SET, DELETE, 0x77])
            value = random.randbytes(random.choice([0, 3, 8, 100])) if opcode == SET else b""
            extras = bytes(8) if opcode == SET else b""
            said = header + packet(opcode, extras, key, value, opaque)
            named = key if opcode != 0x77 else b""
            meta = struct(META, 0, opcode, min(len(named), 255), len(value), 0, 0, 0, 0)
            frame_field = 0 if has_header else 0x80 << 8 | opcode
            to = struct(CLIENT, *client, frame_field, opaque, min(len(named), 255), 0)
            frames.append((frame(said, client), int(random.random() < 0.1)))
            requests.append((meta, to, table_of(named) if named else 0, named, value))
            if key_bytes % 8 == 0:
                said = header + packet(GET, b"", b"some key", b"", opaque)
                # The buffer itself judges checksums.
                wrong = [content for content, _, _ in wrong_frames(said, client, has_header)]
                frames += [(content, 0) for content in wrong]
                requests += [None] * len(wrong)
        wire = Wire(dut, pace, frames)
        turns = Sink(dut, "turn_valid_o", "turn_ready_i",
                     ["turn_has_request_o", "turn_table_o"], is_stable=False)
        wire.turns = turns
        taken = Sink(dut, "valid_o", "ready_i", ["request_o", "client_o", "table_o"])
        key, value = Behind(dut, "key", taken, 2), Behind(dut, "val", taken, 3)

        def is_done():
            asked = sum(has for has, _ in turns.beats)
            return (len(turns.beats) == len(frames) and len(taken.beats) == asked
                    and key.seen == value.seen == asked and not key.due and not value.due)

        await run(dut, pace, [], [turns, taken, key, value], is_done, wire)
        brought = [request if is_kept else None
                   for request, is_kept in zip(requests, wire.kept, strict=True)]
        assert [(has, table if has else 0) for has, table in turns.beats] == [
            (1, request[2]) if request else (0, 0) for request in brought]
        brought = [request for request in brought if request]
        assert taken.beats == [request[:3] for request in brought]
        assert items_of(key) == [request[3] for request in brought if request[3]]
        assert items_of(value) == [request[4] for request in brought if request[4]]
