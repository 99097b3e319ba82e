"""Tests of the installed package; `cargo test -p amalgam-embed --test python` installs it."""

import base64
import doctest
import hashlib
import importlib.metadata
import os
import threading
import time
import unittest

import amalgam_embed
from amalgam_embed import AmalgamError, Cache


class Tests(unittest.TestCase):
    def test_it_is_like_a_dict(self):
        cache = Cache(memory_bytes=16 << 20)
        self.assertEqual(len(cache), 0)
        cache["k\u00e9y"] = b"value"
        self.assertEqual(cache["k\u00e9y".encode()], b"value")
        self.assertTrue("k\u00e9y" in cache and b"other" not in cache)
        self.assertEqual((cache.get(b"other"), cache.get("other", 7)), (None, 7))
        cache[b"a\0b"] = bytearray(b"\0\0")
        cache[memoryview(b"empty")] = b""
        self.assertEqual((cache["a\0b"], cache["empty"], len(cache)), (b"\0\0", b"", 3))
        del cache["empty"]
        self.assertFalse("empty" in cache or cache.delete("empty"))
        for absent in (cache.__getitem__, cache.__delitem__):
            self.assertRaises(KeyError, absent, "empty")
        self.assertEqual((cache.increment("n", 40), cache.increment("n", 2)), (40, 42))
        self.assertRaises(TypeError, iter, cache)

    def test_batches(self):
        cache = Cache(engine="memc3")
        items = {f"key {number}": b"%d" % number * 20 for number in range(300)}
        cache.set_many(items, ttl=3600)
        cache.set_many([(b"last", b"")])
        self.assertEqual(cache.get_many([*items, "absent"]), items)
        self.assertEqual(cache.get_many(iter([b"last"])), {b"last": b""})
        self.assertEqual((cache.get_many([]), cache.set_many({}), len(cache)), ({}, None, 301))

    def test_values_of_any_length(self):
        cache = Cache(max_item_bytes=8 << 20)
        for length in (4096, 4097, 5 << 20, 1):
            cache["key"] = bytes([7]) * length
            self.assertEqual(cache["key"], bytes([7]) * length)
            self.assertEqual(cache.get_many(["key"]), {"key": bytes([7]) * length})

    def test_items_expire(self):
        cache = Cache(ttl=1)
        cache["brief"] = b"1"
        cache.set("long", b"2", ttl=1000.5)
        cache.set("touched", b"3", ttl=1000)
        self.assertTrue(cache.expire("touched", 0.1) and not cache.expire("absent", 1))
        end = time.monotonic() + 30
        while ("brief" in cache or "touched" in cache) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(cache.get_many(["brief", "touched", "long"]), {"long": b"2"})

    def test_it_stays_within_its_memory(self):
        cache = Cache(memory_bytes=8 << 20, max_item_bytes=1 << 16)
        for number in range(3000):
            cache[b"%d" % number] = bytes(10_000)
        self.assertTrue(0 < len(cache) < 900)

    def test_what_it_refuses(self):
        cache = Cache(memory_bytes=8 << 20, max_item_bytes=1 << 16)
        for key in ("", "k" * 251):
            for refused in (cache.get, cache.delete, cache.increment, cache.__contains__):
                self.assertRaisesRegex(AmalgamError, "1 to 250 bytes", refused, key)
            self.assertRaises(AmalgamError, cache.get_many, [key])
        self.assertRaises(AmalgamError, cache.set, "key", bytes(1 << 17))
        self.assertRaises(AmalgamError, Cache, engine="none")
        self.assertRaises(AmalgamError, Cache, memory_bytes=1)
        for key, value in ((1, b""), ("key", "text"), ("key", 5), (None, b"")):
            self.assertRaises(TypeError, cache.set, key, value)
        for ttl in (0, -1, 1e300, float("nan")):
            self.assertRaises(ValueError, cache.set, "key", b"", ttl)
        with cache:
            cache["word"] = b"text"
            with self.assertRaises(AmalgamError) as refused:
                cache.increment("word")
            self.assertEqual(refused.exception.code, 8)
        self.assertRaisesRegex(AmalgamError, "closed", cache.get, "word")
        cache.close()

    def test_threads_share_a_cache_that_is_closed_meanwhile(self):
        cache = Cache(engine="hotring-r")
        failures = []

        def work(name):
            try:
                for round in range(2000):
                    keys = [f"{name} {round} {number}" for number in range(10)]
                    cache.set_many((key, key.encode()) for key in keys)
                    found = cache.get_many(keys)
                    if found != {key: key.encode() for key in keys}:
                        failures.append(found)
            except AmalgamError as error:
                if error.code != 3:
                    failures.append(error)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        cache.close()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_a_child_has_no_cache_of_its_parent(self):
        cache = Cache()
        cache["key"] = b"value"
        child = os.fork()
        if child == 0:
            try:
                cache.get("key")
            except AmalgamError:
                cache = None
                own = Cache()
                own["key"] = b"own"
                os._exit(0 if own["key"] == b"own" else 2)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(cache["key"], b"value")

    def test_its_documentation_and_files(self):
        self.assertEqual(doctest.testmod(amalgam_embed)[0], 0)
        package = importlib.metadata.distribution("amalgam-embed")
        self.assertEqual(package.version, amalgam_embed.__version__)
        self.assertEqual(package.metadata["License"], "Apache-2.0")
        hashed = [file for file in package.files if file.hash and "/" in str(file)]
        self.assertGreaterEqual(len(hashed), 5)
        for file in hashed:
            digest = hashlib.sha256(file.locate().read_bytes()).digest()
            encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            self.assertEqual(file.hash.value, encoded, str(file))


if __name__ == "__main__":
    unittest.main()
