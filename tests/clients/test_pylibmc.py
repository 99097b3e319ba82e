"""pylibmc (libmemcached) as a Python user would use it, over text and binary.

Usage: test_pylibmc.py PORT
"""

import sys
import unittest

import pylibmc

PORT = int(sys.argv.pop(1))


class Basics:
    """The same tests for both protocols."""

    binary = False

    def setUp(self):
        behaviors = {"cas": True, "tcp_nodelay": True}
        self.client = pylibmc.Client(
            [f"127.0.0.1:{PORT}"], binary=self.binary, behaviors=behaviors
        )
        self.client.flush_all()

    def test_set_and_get(self):
        self.assertTrue(self.client.set("greeting", "hello"))
        self.assertEqual(self.client.get("greeting"), "hello")
        self.assertIsNone(self.client.get("nothing"))
        self.assertIn("greeting", self.client)

    def test_objects_keep_their_type(self):
        values = {"text": "é", "bytes": b"\0\r\n", "int": -5, "bool": True}
        values["list"] = [1, {"a": None}]
        for name, value in values.items():
            self.client.set(name, value)
        self.assertEqual(self.client.get_multi(list(values)), values)

    def test_many(self):
        values = {f"key{number}": "x" * number for number in range(300)}
        self.assertEqual(self.client.set_multi(values), [])
        self.assertEqual(self.client.get_multi(list(values) + ["missing"]), values)
        self.assertTrue(self.client.delete_multi([f"key{number}" for number in range(100)]))
        self.assertEqual(len(self.client.get_multi(list(values))), 200)

    def test_large_values(self):
        for length in [8, 1000, 100_000, 1_000_000]:
            value = bytes(index % 251 for index in range(length))
            self.assertTrue(self.client.set("large", value))
            self.assertEqual(self.client.get("large"), value)
        with self.assertRaises(pylibmc.Error):
            self.client.set("large", bytes(2_000_000))
        self.client.disconnect_all()
        self.assertTrue(self.client.set("large", "small again"))
        self.assertEqual(self.client.get("large"), "small again")

    def test_add_replace_append_prepend(self):
        if self.binary:
            with self.assertRaises(pylibmc.NotFound):
                self.client.replace("word", "b")
        else:
            self.assertFalse(self.client.replace("word", "b"))
        self.assertTrue(self.client.add("word", "b"))
        self.assertFalse(self.client.add("word", "x"))
        self.assertTrue(self.client.append("word", "c"))
        self.assertTrue(self.client.prepend("word", "a"))
        self.assertEqual(self.client.get("word"), "abc")

    def test_compare_and_set(self):
        self.client.set("balance", 10)
        value, cas = self.client.gets("balance")
        self.assertEqual(value, 10)
        self.assertTrue(self.client.cas("balance", 11, cas))
        self.assertFalse(self.client.cas("balance", 12, cas))
        self.assertEqual(self.client.get("balance"), 11)

    def test_counters(self):
        self.client.set("visits", 9)
        self.assertEqual(self.client.incr("visits"), 10)
        self.assertEqual(self.client.decr("visits", 3), 7)
        self.assertEqual(self.client.decr("visits", 100), 0)
        with self.assertRaises(pylibmc.NotFound):
            self.client.incr("nothing")

    def test_expiry_touch_delete(self):
        self.assertTrue(self.client.set("session", "x", time=1000))
        self.assertTrue(self.client.touch("session", 2000))
        self.assertEqual(self.client.get("session"), "x")
        self.assertTrue(self.client.delete("session"))
        self.assertFalse(self.client.delete("session"))

    def test_statistics(self):
        ((_, statistics),) = self.client.get_stats()
        self.assertGreaterEqual(int(statistics["uptime"]), 0)
        self.assertIn("curr_items", statistics)


class Text(Basics, unittest.TestCase):
    pass


class Binary(Basics, unittest.TestCase):
    binary = True


if __name__ == "__main__":
    unittest.main()
