"""The struct layouts of rtl/src/ht_pkg.sv for the benches, and where a key lies in a bucket."""

import os

from streams import pack

# id, opcode, klen, vlen, flags, expiry, has_cas, is_misshapen
META = (32, 8, 8, 24, 32, 32, 1, 1)
META_OUT = (2, 1, 1, 16)  # kind, quiet, drain, status
OP = (32, 8, 32, 1, 6)  # bucket, check, now, is_forwarded, station
RESPONSE = (32, 8, 1, 1, 16, 24, 32, 48, 32)  # id, opcode, quiet, hit, status, vlen, flags, ...
COMMAND = (2, 48, 24, 32)  # kind, pointer, vlen, flags
BEAT = (64, 8, 1)  # data, keep, last
ACCESS = (1, 1, 1, 5, 32)  # write, last, is_value, count, address

GET, SET, DELETE, NOOP = 0, 1, 4, 10
VERSION, GETK = 11, 12
GETQ, GETKQ, SETQ = 9, 13, 17
KIND_NONE, KIND_GET, KIND_SET, KIND_DELETE = range(4)
VALUE_READ, VALUE_WRITE, VALUE_DRAIN = range(3)
OK, NOT_FOUND, TOO_LARGE, INVALID, NO_MEMORY, NOT_SUPPORTED = 0, 1, 3, 4, 0x82, 0x83


def struct(widths, *values):
    return pack(*zip(widths, values, strict=True))


def parameter(name):
    """A parameter that the module was built with."""
    return int(os.environ[name])


def stripes(key, stripe, first, terms):
    """The key's stripe of each line that is read for it: (line, data, mask)."""
    record = {first + at // 8: int.from_bytes(key[at : at + 8], "little")
              for at in range(0, len(key), 8)}
    last_word = first + (len(key) - 1) // 8
    for line in sorted({*range(last_word // stripe + 1), terms // stripe}):
        place = range(line * stripe, (line + 1) * stripe)
        yield (line, sum(record.get(word, 0) << 64 * i for i, word in enumerate(place)),
               sum((word in record) << i for i, word in enumerate(place)))
