"""A cache in the memory of this process, within a bound, with expiry and eviction.

    >>> from amalgam_embed import Cache
    >>> cache = Cache(memory_bytes=64 << 20)
    >>> cache["greeting"] = b"hello"
    >>> cache.set("session", b"42", ttl=600)
    >>> cache["greeting"], cache.get("nothing")
    (b'hello', None)
    >>> cache.get_many(["greeting", "session", "nothing"])
    {'greeting': b'hello', 'session': b'42'}

Keys are bytes, or str, which is encoded in UTF-8, of 1 to 250 bytes; values are bytes, or what has
a buffer of bytes. Any number of threads may use a cache at once; the interpreter's lock is released
while the library works. A cache of before a fork is closed in the child.
"""

import ctypes
import math
import os
import weakref
from array import array
from itertools import accumulate

__all__ = ["AmalgamError", "Cache"]

_NOT_FOUND = 1
_BUFFER_TOO_SHORT = 2
_ABSENT = ctypes.c_size_t(-1).value
# Longer buffers are not kept for the next read.
_KEPT_BYTES = 1 << 20
_KEPT_BUFFERS = 8

_pointer, _size, _number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
# The arrays that the library reads and writes are of this type, which has 64 bits.
_SIZES = "Q"
_library = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "libamalgam_embed.so"))


def _function(name, *types, result=ctypes.c_int32):
    function = getattr(_library, "amalgam_" + name)
    function.argtypes, function.restype = types, result
    return function


_version = _function("version", result=ctypes.c_char_p)
_error_text = _function("error_text", ctypes.c_int32, result=ctypes.c_char_p)
_open = _function("open", ctypes.c_char_p, _size, _size, _pointer)
_close = _function("close", _pointer, result=None)
_get = _function("get", _pointer, ctypes.c_char_p, _size, _pointer, _size, _pointer)
_set = _function("set", _pointer, ctypes.c_char_p, _size, ctypes.c_char_p, _size, _number)
_delete = _function("delete", _pointer, ctypes.c_char_p, _size)
_expire = _function("expire", _pointer, ctypes.c_char_p, _size, _number)
_increment = _function("increment", _pointer, ctypes.c_char_p, _size, _number, _pointer)
_count = _function("count", _pointer, _pointer)
_get_many = _function("get_many", *[_pointer] * 3, _size, _pointer, _size, *[_pointer] * 3)
_set_many = _function("set_many", *[_pointer] * 5, _size, _number, _pointer)

__version__ = _version().decode()


class AmalgamError(Exception):
    """What the library refused. `code` is a number of `amalgam.h`."""

    def __init__(self, code):
        super().__init__(_error_text(code).decode())
        self.code = code


def _check(code):
    if code:
        raise AmalgamError(code)


class _Map(ctypes.c_void_p):
    """The pointer to an open map. A call holds a reference to it, so that the map is closed after
    the last call ends."""

    __hash__ = object.__hash__

    def __del__(self, close=_close):
        if self.value is not None:
            close(self)


_maps = weakref.WeakSet()


def _forget_maps():
    # The maps' threads do not exist in the child, so that it could not close them.
    for map in list(_maps):
        map.value = None


os.register_at_fork(after_in_child=_forget_maps)


class _Buffer:
    """What a call reads into, and the length that it is told."""

    __slots__ = ("capacity", "storage", "address", "view", "length", "length_pointer")

    def __init__(self, capacity):
        self.capacity = capacity
        self.storage = ctypes.create_string_buffer(capacity)
        self.address = ctypes.addressof(self.storage)
        self.view = memoryview(self.storage)
        self.length = _size()
        self.length_pointer = ctypes.byref(self.length)

    def bytes(self):
        return self.view[: self.length.value].tobytes()


# Buffers that no call uses. A call takes one out, as another may begin before it has read its
# values: of another thread, or of a signal handler in this one.
_idle = []


def _take():
    try:
        return _idle.pop()
    except IndexError:
        return _Buffer(4096)


def _give(buffer):
    if buffer.capacity <= _KEPT_BYTES and len(_idle) < _KEPT_BUFFERS:
        _idle.append(buffer)


def _key(key):
    if type(key) is bytes:
        return key
    return key.encode() if isinstance(key, str) else memoryview(key).tobytes()


def _value(value):
    return value if type(value) is bytes else memoryview(value).tobytes()


class _Strings:
    """Strings in one piece, as pointers to them take ctypes several times longer. `inputs` are the
    addresses of an array of pointers and of one of lengths."""

    __slots__ = ("joined", "pointers", "lengths", "inputs")

    def __init__(self, strings, convert):
        try:
            self.join(strings)
        except TypeError:
            # Some are str, or have elements of more than a byte.
            self.join([convert(string) for string in strings])

    def join(self, strings):
        self.joined = b"".join(strings)
        start = ctypes.c_void_p.from_buffer(ctypes.c_char_p(self.joined)).value
        self.lengths = array(_SIZES, map(len, strings))
        self.pointers = array(_SIZES, accumulate(self.lengths, initial=start))
        if self.pointers[-1] != start + len(self.joined):
            raise TypeError("a length counts something else than bytes")
        self.inputs = self.pointers.buffer_info()[0], self.lengths.buffer_info()[0]


def _seconds(ttl):
    """A time to live for the library, which has whole seconds."""
    if ttl is None:
        return 0
    if not 0 < ttl < 1 << 63:
        raise ValueError("a time to live is a number of seconds above 0, or None for ever")
    return math.ceil(ttl)


class Cache:
    """A map from bytes to bytes that evicts what was not used for long when it is full.

    `engine` is "mercury" (the default), "memc3", "hotring-r", "hotring-s" or "pipeline";
    `memory_bytes` bounds items, index and memory that waits to be reused, together; `ttl` is the
    time to live in seconds of what is stored without another, None for ever.
    """

    __slots__ = ("_map", "ttl", "__weakref__")

    # Without this, a loop over a cache would ask for the keys 0, 1, 2 and so on.
    __iter__ = None

    def __init__(self, memory_bytes=64 << 20, engine=None, max_item_bytes=1 << 20, ttl=None):
        self._map = None
        _seconds(ttl)
        self.ttl = ttl
        map = _Map()
        name = None if engine is None else engine.encode()
        _check(_open(name, memory_bytes, max_item_bytes, ctypes.byref(map)))
        _maps.add(map)
        self._map = map

    def close(self):
        """Frees the memory after the last call of another thread; later calls are refused."""
        self._map = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def get(self, key, default=None):
        """The value of `key`, or `default`."""
        key, buffer = _key(key), _take()
        while True:
            room, capacity, told = buffer.address, buffer.capacity, buffer.length_pointer
            code = _get(self._map, key, len(key), room, capacity, told)
            if code != _BUFFER_TOO_SHORT:
                break
            buffer = _Buffer(buffer.length.value)
        value = buffer.bytes() if self._found(code) else default
        _give(buffer)
        return value

    def __getitem__(self, key):
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key):
        key = _key(key)
        code = _get(self._map, key, len(key), None, 0, ctypes.byref(_size()))
        if code not in (0, _NOT_FOUND, _BUFFER_TOO_SHORT):
            raise AmalgamError(code)
        return code != _NOT_FOUND

    def set(self, key, value, ttl=None):
        """Stores `value`, for `ttl` seconds or, if that is None, for those of the cache. It may
        expire up to a second earlier, as the library's clock has whole seconds."""
        key, value = _key(key), _value(value)
        seconds = _seconds(self.ttl if ttl is None else ttl)
        _check(_set(self._map, key, len(key), value, len(value), seconds))

    def __setitem__(self, key, value):
        self.set(key, value)

    def delete(self, key):
        """Removes the item of `key`; returns whether there was one."""
        key = _key(key)
        return self._found(_delete(self._map, key, len(key)))

    def __delitem__(self, key):
        if not self.delete(key):
            raise KeyError(key)

    def expire(self, key, ttl):
        """Lets the item of `key` expire in `ttl` seconds; returns whether there is one."""
        if ttl is None:
            raise ValueError("an item cannot be kept for ever afterwards: store it again")
        key = _key(key)
        return self._found(_expire(self._map, key, len(key), _seconds(ttl)))

    @staticmethod
    def _found(code):
        if code not in (0, _NOT_FOUND):
            raise AmalgamError(code)
        return code == 0

    def increment(self, key, delta=1):
        """Adds `delta` to the decimal number that is the value of `key`, or stores it if the key is
        absent; returns the sum."""
        if not 0 <= delta < 1 << 64:
            raise ValueError("a delta is a number from 0 to 2^64 - 1")
        key, sum = _key(key), _number()
        _check(_increment(self._map, key, len(key), delta, ctypes.byref(sum)))
        return sum.value

    def __len__(self):
        """The number of items; expired ones count until their memory is reclaimed."""
        count = _number()
        _check(_count(self._map, ctypes.byref(count)))
        return count.value

    def get_many(self, keys):
        """A dict of those `keys` that are found, with their values. The library reads them at once,
        which is faster than one by one."""
        keys = list(keys)
        strings, count, buffer = _Strings(keys, _key), len(keys), _take()
        zeros = bytes(count * 8)
        offsets, found = array(_SIZES, zeros), array(_SIZES, zeros)
        outputs = offsets.buffer_info()[0], found.buffer_info()[0]
        while True:
            room, capacity, told = buffer.address, buffer.capacity, buffer.length_pointer
            code = _get_many(self._map, *strings.inputs, count, room, capacity, *outputs, told)
            if code != _BUFFER_TOO_SHORT:
                break
            # Not exactly what it needs, as the next batch may need a little more.
            buffer = _Buffer(buffer.length.value * 2)
        _check(code)
        values = buffer.bytes()
        _give(buffer)
        return {
            key: values[start : start + length]
            for key, start, length in zip(keys, offsets, found)
            if length != _ABSENT
        }

    def set_many(self, items, ttl=None):
        """Stores the values of a dict, or of pairs of keys and values, as `set` does. When one is
        refused, those before it are stored."""
        items = list(items.items() if hasattr(items, "items") else items)
        keys = _Strings([key for key, _ in items], _key)
        values = _Strings([value for _, value in items], _value)
        seconds = _seconds(self.ttl if ttl is None else ttl)
        count, told = len(items), ctypes.byref(_size())
        _check(_set_many(self._map, *keys.inputs, *values.inputs, count, seconds, told))
