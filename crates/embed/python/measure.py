"""Compares batches of gets of the installed package with those of clients over loopback.

usage: measure.py AMALGAM [TURNS]

AMALGAM is the server's binary. The clients are a minimal one, which writes one `get` line and cuts
the answer, and pymemcache where it is installed. 100,000 items with values of 100 bytes; each turn
reads 200 batches of 100 random keys with each; a figure is the median of the turns.
"""

import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from amalgam_embed import Cache

ITEMS, VALUE_BYTES, BATCHES, BATCH = 100_000, 100, 200, 100


class MinimalClient:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_many(self, keys):
        self.socket.sendall(b"get " + b" ".join(keys) + b"\r\n")
        answer = self.socket.recv(1 << 16)
        while not answer.endswith(b"END\r\n"):
            answer += self.socket.recv(1 << 16)
        found, at = {}, 0
        while True:
            end = answer.index(b"\r\n", at)
            line = answer[at:end].split(b" ")
            if len(line) == 1:
                return found
            at = end + 2 + int(line[3])
            found[line[1]] = answer[end + 2 : at]
            at += 2

    def set(self, key, value):
        self.socket.sendall(b"set %s 0 0 %d noreply\r\n%s\r\n" % (key, len(value), value))


def clients(port):
    found = {"in process": Cache(memory_bytes=256 << 20), "minimal client": MinimalClient(port)}
    try:
        from pymemcache.client.base import Client

        found["pymemcache"] = Client(("127.0.0.1", port), no_delay=True)
    except ImportError:
        print("pymemcache is not installed: not measured")
    return found


def measure(port, turns):
    subjects = clients(port)
    items = {b"key:%d" % number: random.randbytes(VALUE_BYTES // 2).hex().encode()
             for number in range(ITEMS)}
    for key, value in items.items():
        subjects["minimal client"].set(key, value)
    subjects["in process"].set_many(items)
    keys = list(items)
    times = {name: [] for name in subjects}
    for _ in range(turns):
        batches = [random.sample(keys, BATCH) for _ in range(BATCHES)]
        for name, subject in subjects.items():
            begin = time.perf_counter()
            for batch in batches:
                answer = subject.get_many(batch)
            times[name].append((time.perf_counter() - begin) / BATCHES)
            assert answer == {key: items[key] for key in batches[-1]}, name
    own = statistics.median(times["in process"])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        ratios = sorted(other / one for other, one in zip(seconds, times["in process"]))
        print(f"{name}: {median * 1e6:.1f} us a batch of {BATCH}, {median / own:.1f} times"
              f" that in process ({ratios[0]:.1f} to {ratios[-1]:.1f} in {turns} turns)")


def main(amalgam, turns="15"):
    with tempfile.TemporaryDirectory() as folder:
        ports = os.path.join(folder, "ports")
        options = ["-l", "127.0.0.1", "-p", "-1", "-U", "0", "-m", "256", "-t", "1"]
        if os.geteuid() == 0:
            options += ["-u", "root"]
        environment = dict(os.environ, MEMCACHED_PORT_FILENAME=ports)
        server = subprocess.Popen([amalgam, "serve", *options], env=environment)
        try:
            end = time.monotonic() + 10
            while not os.path.exists(ports) and time.monotonic() < end:
                time.sleep(0.05)
            with open(ports) as file:
                measure(int(file.readline().rsplit(":", 1)[1]), int(turns))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
