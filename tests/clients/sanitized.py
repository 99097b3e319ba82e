"""Clients that keep a server busy whose binary watches itself (`make sanitize`).

Usage: sanitized.py BINARY SECONDS [ENGINE...]

Each engine serves for SECONDS, with little memory: values of 0 to 1 MB come and go, are
evicted, moved, expire and are flushed while slow readers hold them; connections end in the midst of
replies. Halfway the server is stopped and starts again with the items that it saved. Fails if a
value is not as one was written, if the server ends on its own or if its sanitizer wrote a report.
"""

import glob
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE = 120
ENGINES = ["mercury", "hotring-r", "hotring-s", "memc3", "pipeline"]
KEYS = 4000
THREADS = 8


def pattern(number, length):
    """What follows a value's first line: it says what the rest must be."""
    return (b"%08d" % number) * (length // 8 + 1)


def value(rng):
    length = int(min(1_000_000, rng.choice([rng.random() * 64, 10 ** (6 * rng.random())])))
    number = rng.randrange(10**8)
    head = b"%d %d\n" % (number, length)
    return head + pattern(number, length)[:length]


def check(data):
    """A whole value, perhaps with one of the letters of `append` and `prepend` around it."""
    data = data.strip(b"<>")
    if re.fullmatch(rb"\d{0,20} *", data):
        return
    head, rest = data.split(b"\n", 1)
    number, length = map(int, head.split())
    assert rest == pattern(number, length)[:length], (head, rest[:40], len(rest))


class Client:
    def __init__(self, port, rng):
        self.rng = rng
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.file = self.socket.makefile("rb")

    def close(self):
        self.file.close()
        self.socket.close()

    def line(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError
        return line[:-2]

    def data(self, length):
        data = self.file.read(length + 2)
        if len(data) < length + 2:
            raise ConnectionResetError
        assert data[-2:] == b"\r\n", data[-9:]
        return data[:-2]

    def read_reply(self):
        """One reply of any command, and what it found."""
        while True:
            words = self.line().split()
            if words[:1] == [b"VALUE"]:
                check(self.data(int(words[3])))
            elif words[:1] == [b"VA"]:
                check(self.data(int(words[1])))
                return
            elif words[:1] != [b"STAT"]:
                # SERVER_ERROR is none: memory may be full of what slow readers hold.
                assert words[:1] not in ([b"ERROR"], [b"CLIENT_ERROR"]) or NOT_A_NUMBER in words
                return

    def key(self):
        # The lower ones are used most, so that clients meet.
        return b"k%d" % min(self.rng.randrange(KEYS), self.rng.randrange(KEYS))

    def request(self):
        rng, key = self.rng, self.key()
        kind = rng.randrange(24)
        if kind < 7:
            words = b" ".join([b"get", key, *(self.key() for _ in range(rng.randrange(8)))])
            return words + b"\r\n"
        if kind < 13:
            data = value(rng) if rng.random() < 0.9 else b"%d" % rng.randrange(100)
            verb = rng.choice([b"set", b"set", b"set", b"add", b"replace"])
            fields = rng.randrange(2), rng.choice([0, 0, 1, 30]), len(data)
            return b"%b %b %d %d %d\r\n%b\r\n" % (verb, key, *fields, data)
        if kind < 15:
            return b"%b %b 0 0 1\r\n%b\r\n" % (*rng.choice([(b"append", key, b">"),
                                                            (b"prepend", key, b"<")]),)
        if kind == 15:
            data = b"%d" % rng.randrange(100)
            return b"set n%b 0 0 %d\r\n%b\r\n" % (key, len(data), data)
        return rng.choice([
            b"delete %b\r\n" % key,
            b"incr n%b 7\r\n" % key,
            b"decr n%b 1000\r\n" % key,
            b"touch %b %d\r\n" % (key, rng.choice([0, 1, 9])),
            b"gat %d %b\r\n" % (rng.choice([0, 1, 9]), key),
            b"gets %b\r\n" % key,
            b"mg %b v t f c s l h\r\n" % key,
            b"mg %b v N9 R5\r\n" % key,
            b"md %b I T9\r\n" % key,
            b"ma n%b N0 J5 v\r\n" % key,
            b"mn\r\n",
            b"ms %b 5 T9 F3 I\r\n%05d\r\n" % (key, rng.randrange(100)),
            b"flush_all\r\n" if rng.random() < 0.003 else b"stats items\r\n",
        ])

    def work(self):
        """A batch of requests and their replies."""
        requests = [self.request() for _ in range(self.rng.randrange(1, 12))]
        sender = threading.Thread(target=self.send, args=[b"".join(requests)])
        sender.start()
        try:
            for _ in requests:
                self.read_reply()
        finally:
            sender.join()

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            pass

    def read_slowly(self):
        """Asks for many values and leaves them with the server for a while, or for good."""
        self.send(b"".join(b"get %b\r\n" % self.key() for _ in range(200)))
        time.sleep(self.rng.random())
        for _ in range(self.rng.choice([0, 50, 200])):
            self.read_reply()


NOT_A_NUMBER = b"non-numeric"


def run_clients(port, number, deadline, problems, counts):
    rng = random.Random(number * 1000 + port)
    while time.monotonic() < deadline and not problems:
        try:
            client = Client(port, rng)
            for _ in range(rng.randrange(60)):
                if rng.random() < 0.02:
                    client.read_slowly()
                    break
                client.work()
                counts[number] += 1
            client.close()
        except Exception as problem:
            problems.append(repr(problem))


class Server:
    def __init__(self, binary, engine, folder):
        self.folder = folder
        ports = os.path.join(folder, "ports")
        # Its report goes to a file: `log_path` of every sanitizer.
        options = f"log_path={folder}/report:halt_on_error=1:second_deadlock_stack=1"
        environment = dict(os.environ, MEMCACHED_PORT_FILENAME=ports)
        for name in ["ASAN_OPTIONS", "TSAN_OPTIONS"]:
            environment[name] = ":".join(filter(None, [os.environ.get(name), options]))
        self.process = subprocess.Popen(
            [binary, "serve", "-u", "root", "-l", "127.0.0.1", "-p", "-1", "-m", "16", "-t", "3",
             "--engine", engine, "-e", os.path.join(folder, "items")],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + PATIENCE
        while not os.path.exists(ports) or not open(ports).read().endswith("\n"):
            assert self.process.poll() is None, "the server ended at once"
            assert time.monotonic() < end, "the server does not start"
            time.sleep(0.05)
        self.port = int(open(ports).read().split("TCP INET: ")[1].split()[0])
        os.remove(ports)

    def stop(self):
        self.process.send_signal(signal.SIGUSR1)
        assert self.process.wait(PATIENCE) == 0, "the server failed"

    def problems(self):
        return [open(report).read() for report in glob.glob(f"{self.folder}/report.*")]


def serve(binary, seconds, engine):
    with tempfile.TemporaryDirectory() as folder:
        problems, counts = [], [0] * THREADS
        for _ in range(2):
            server = Server(binary, engine, folder)
            try:
                deadline = time.monotonic() + seconds / 2
                clients = [
                    threading.Thread(target=run_clients,
                                     args=(server.port, number, deadline, problems, counts))
                    for number in range(THREADS)]
                for client in clients:
                    client.start()
                for client in clients:
                    client.join()
                if not problems:
                    server.stop()
            except AssertionError as problem:
                problems.append(str(problem))
            finally:
                server.process.kill()
                server.process.wait()
            problems += server.problems()
            if problems:
                sys.exit(f"{engine}: " + "\n".join(problems))
        print(f"    {engine}: {sum(counts)} batches of requests, no report", flush=True)


for name in sys.argv[3:] or ENGINES:
    serve(sys.argv[1], float(sys.argv[2]), name)
