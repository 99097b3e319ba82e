"""pymemcache as a Python user would use it. Usage: test_pymemcache.py PORT"""

import json
import sys
import threading
import unittest

from pymemcache import serde
from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.exceptions import MemcacheClientError, MemcacheServerError

PORT = int(sys.argv.pop(1))
ADDRESS = ("127.0.0.1", PORT)


class Basics(unittest.TestCase):
    def setUp(self):
        self.client = Client(ADDRESS, timeout=10, default_noreply=False)
        self.client.flush_all()
        self.addCleanup(self.client.close)

    def test_set_and_get(self):
        self.assertTrue(self.client.set("greeting", "hello"))
        self.assertEqual(self.client.get("greeting"), b"hello")
        self.assertIsNone(self.client.get("nothing"))
        self.assertEqual(self.client.get("nothing", "default"), "default")

    def test_binary_values_of_many_sizes(self):
        for length in [0, 1, 7, 8, 9, 100, 1024, 65_536, 1_000_000]:
            value = bytes(index * 7 % 256 for index in range(length))
            self.assertTrue(self.client.set("value", value))
            self.assertEqual(self.client.get("value"), value)

    def test_many_keys_at_once(self):
        values = {f"key {n}".replace(" ", "-"): str(n).encode() for n in range(500)}
        self.assertEqual(self.client.set_many(values), [])
        self.assertEqual(self.client.get_many(list(values) + ["missing"]), values)
        self.assertTrue(self.client.delete_many(list(values)))
        self.assertEqual(self.client.get_many(list(values)), {})

    def test_add_replace_append_prepend(self):
        self.assertFalse(self.client.replace("word", "b"))
        self.assertTrue(self.client.add("word", "b"))
        self.assertFalse(self.client.add("word", "x"))
        self.assertTrue(self.client.append("word", "c"))
        self.assertTrue(self.client.prepend("word", "a"))
        self.assertEqual(self.client.get("word"), b"abc")

    def test_compare_and_set(self):
        self.client.set("balance", "10")
        value, cas = self.client.gets("balance")
        self.assertEqual(value, b"10")
        self.assertTrue(self.client.cas("balance", "11", cas))
        self.assertFalse(self.client.cas("balance", "12", cas))
        self.assertIsNone(self.client.cas("nothing", "1", cas))
        self.assertEqual(self.client.get("balance"), b"11")
        many = self.client.gets_many(["balance", "nothing"])
        self.assertEqual(list(many), ["balance"])

    def test_counters(self):
        self.assertIsNone(self.client.incr("visits", 1))
        self.client.set("visits", "9")
        self.assertEqual(self.client.incr("visits", 1), 10)
        self.assertEqual(self.client.decr("visits", 3), 7)
        self.assertEqual(self.client.decr("visits", 100), 0)
        self.client.set("word", "hello")
        with self.assertRaises(MemcacheClientError):
            self.client.incr("word", 1)

    def test_touch(self):
        self.client.set("session", "x", expire=1000)
        self.assertTrue(self.client.touch("session", 2000))
        self.assertFalse(self.client.touch("nothing", 2000))
        self.assertEqual(self.client.get("session"), b"x")
        self.client.touch("session", -1)
        self.assertIsNone(self.client.get("session"))

    def test_delete_and_flush(self):
        self.client.set("a", "1")
        self.assertTrue(self.client.delete("a"))
        self.assertFalse(self.client.delete("a"))
        self.client.set("b", "1")
        self.assertTrue(self.client.flush_all())
        self.assertIsNone(self.client.get("b"))

    def test_noreply(self):
        for number in range(1000):
            self.client.set(f"quiet{number}", str(number), noreply=True)
        self.client.incr("quiet0", 5, noreply=True)
        self.client.delete("quiet1", noreply=True)
        self.assertEqual(self.client.get("quiet0"), b"5")
        self.assertIsNone(self.client.get("quiet1"))
        self.assertEqual(self.client.get("quiet999"), b"999")

    def test_too_large(self):
        with self.assertRaises(MemcacheServerError):
            self.client.set("large", b"x" * 2_000_000)
        self.assertIsNone(self.client.get("large"))
        self.client.set("large", "small")
        self.assertEqual(self.client.get("large"), b"small")

    def test_statistics(self):
        # Enough that some lie with the node that answers, where a cluster does.
        for number in range(200):
            self.client.set("counted%d" % number, "1")
        self.client.get("counted0")
        statistics = self.client.stats()
        self.assertGreaterEqual(statistics[b"curr_items"], 1)
        self.assertGreaterEqual(statistics[b"get_hits"], 1)
        self.assertEqual(statistics[b"pointer_size"], 64)
        settings = self.client.stats("settings")
        self.assertIn(settings[b"cas_enabled"], (True, b"yes"))
        self.assertTrue(self.client.version())

    def test_objects(self):
        client = Client(ADDRESS, serde=serde.pickle_serde)
        self.addCleanup(client.close)
        for value in [{"a": [1, 2.5, None]}, 17, "text", b"bytes", ("tuple", {"set"})]:
            client.set("object", value)
            self.assertEqual(client.get("object"), value)
        client.set("json", json.dumps({"a": 1}))
        self.assertEqual(json.loads(client.get("json")), {"a": 1})


class Many(unittest.TestCase):
    def test_threads_share_a_pool(self):
        client = PooledClient(ADDRESS, max_pool_size=8, timeout=10, default_noreply=False)
        client.set("total", "0")
        failures = []

        def work(thread):
            try:
                for turn in range(200):
                    key = f"t{thread}-{turn % 20}"
                    client.set(key, f"{thread}:{turn}")
                    if client.get(key) != f"{thread}:{turn}".encode():
                        failures.append(key)
                    client.incr("total", 1)
            except Exception as error:  # a thread's exception would be lost
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(client.get("total"), b"1600")
        client.close()

    def test_several_servers(self):
        client = HashClient([ADDRESS, ("localhost", PORT)], default_noreply=False, timeout=10)
        values = {f"spread{number}": b"v%d" % number for number in range(100)}
        self.assertEqual(client.set_many(values), [])
        self.assertEqual(client.get_many(list(values)), values)
        client.close()


if __name__ == "__main__":
    unittest.main()
