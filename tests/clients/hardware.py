"""pymemcache through the simulated hardware. Usage: hardware.py PORT"""

import sys
import unittest

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheUnknownCommandError

PORT = int(sys.argv.pop(1))


class Hardware(unittest.TestCase):
    def setUp(self):
        self.client = Client(("127.0.0.1", PORT), timeout=10, default_noreply=False)
        self.addCleanup(self.client.close)

    def test_values_of_many_sizes_under_keys_of_many_lengths(self):
        for length in range(1, 169):
            key, value = "k" * length, bytes(i * 7 % 256 for i in range(6 * length))
            self.assertTrue(self.client.set(key, value))
            self.assertEqual(self.client.get(key), value)

    def test_many_keys_at_once(self):
        values = {f"many-{n}": str(n).encode() for n in range(200)}
        self.assertEqual(self.client.set_many(values), [])
        self.assertEqual(self.client.get_many([*values, "missing"]), values)
        self.assertTrue(self.client.delete_many(list(values)))
        self.assertEqual(self.client.get_many(list(values)), {})

    def test_without_replies(self):
        for n in range(50):
            self.client.set(f"quiet-{n}", str(n), noreply=True)
        self.assertEqual(self.client.get("quiet-49"), b"49")
        self.client.delete("quiet-49", noreply=True)
        self.assertIsNone(self.client.get("quiet-49"))

    def test_deletes_and_misses(self):
        self.assertTrue(self.client.set("here", "1"))
        self.assertTrue(self.client.delete("here"))
        self.assertFalse(self.client.delete("here"))
        self.assertIsNone(self.client.get("here"))

    def test_what_ends_at_once_is_not_found(self):
        self.assertTrue(self.client.set("over", "1", expire=-1))
        self.assertIsNone(self.client.get("over"))

    def test_what_the_table_does_not_know_is_refused(self):
        self.client.set("number", "1")
        with self.assertRaises(MemcacheUnknownCommandError):
            self.client.incr("number", 1)
        self.assertEqual(self.client.get("number"), b"1")


unittest.main()
