"""A cluster whose nodes are processes in network namespaces of their own, with a real etcd.

usage: namespaces.py PROGRAM NODES SECONDS

Links are cut and mended, nodes join, leave and are killed, etcd stands still, while clients count.
What must hold: an `incr` that was answered counts once, whichever node took it; one that failed
counts once or not at all; what was stored before is read afterwards, from backups if its owner is
gone. A node that is cut off from etcd stops before others may think so.

It is run in a user and network namespace that ends with it: scripts/cluster-test does that.
"""

import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

LEASE_SECONDS = 4
PATIENCE = 60
COUNTERS = 40
REFUSED = b"SERVER_ERROR the key's owner is unavailable; nothing was done"
ETCD = "http://10.77.0.1:2379"


def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


class Node:
    """One node in its namespace."""

    def __init__(self, program, number, folder):
        self.program, self.number, self.folder = program, number, folder
        self.name, self.host = f"n{number}", f"10.77.0.{10 + number}"
        self.process = None
        run("ip", "netns", "add", self.name)
        peer = ["peer", "name", "eth0", "netns", self.name]
        run("ip", "link", "add", f"v{number}", "type", "veth", *peer)
        run("ip", "link", "set", f"v{number}", "master", "br0", "up")
        self.inside("ip", "addr", "add", f"{self.host}/24", "dev", "eth0")
        self.inside("ip", "link", "set", "eth0", "up")
        self.inside("ip", "link", "set", "lo", "up")

    def inside(self, *words):
        run("ip", "netns", "exec", self.name, *words)

    def start(self):
        arguments = ["cluster", "node", "--etcd", ETCD, "--name", self.name]
        arguments += ["--listen", f"{self.host}:7911", "--clients", f"{self.host}:11211"]
        arguments += ["--lease-seconds", str(LEASE_SECONDS), "--threads", "2"]
        arguments += ["--join-token-file", f"{self.folder}/token", "--log-level", "info"]
        arguments += ["--backups", "3", "--backup-dir", f"{self.folder}/{self.name}.backups"]
        arguments += ["--backup-space", "512m"]
        log = open(f"{self.folder}/{self.name}.log", "ab")
        words = ["ip", "netns", "exec", self.name, self.program, *arguments]
        self.process = subprocess.Popen(words, stdout=log, stderr=log)

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def joined(self):
        """How often it has joined, so far."""
        with open(f"{self.folder}/{self.name}.log", "rb") as log:
            return log.read().count(b"the node has joined")

    def leave(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0, f"{self.name} did not leave in order"

    def link(self, state):
        run("ip", "link", "set", f"v{self.number}", state)

    def blind(self, other, is_blind):
        """Packets to another node go nowhere."""
        what = "add" if is_blind else "del"
        self.inside("ip", "route", what, "blackhole", f"{other.host}/32")


class Client:
    """memcached's text protocol, at any node."""

    def __init__(self, node):
        self.stream = socket.create_connection((node.host, 11211), timeout=15)
        self.rest = b""

    def line(self):
        while b"\r\n" not in self.rest:
            more = self.stream.recv(65536)
            if not more:
                raise OSError("closed")
            self.rest += more
        line, self.rest = self.rest.split(b"\r\n", 1)
        return line

    def ask(self, text):
        self.stream.sendall(text.encode() + b"\r\n")
        return self.line()

    def store(self, key, value):
        return self.ask(f"set {key} 0 0 {len(value)}\r\n{value}")

    def read(self, key):
        line, value = self.ask(f"get {key}"), None
        while line != b"END":
            if line.startswith(b"VALUE"):
                value = self.line().decode()
            elif b"ERROR" in line:
                raise OSError(line.decode())
            line = self.line()
        return value


def eventually(what, check):
    end, last = time.time() + PATIENCE, None
    while time.time() < end:
        try:
            last = check()
            if last is True:
                return
        except OSError as error:
            last = error
        time.sleep(0.1)
    raise AssertionError(f"{what}: {last}")


class History:
    """What clients asked of counters and were told, for the oracle (docs/histories.md)."""

    def __init__(self):
        self.operations = []

    def begin(self, client, key, kind, **arguments):
        operation = {"client": client, "key": key, "kind": kind, **arguments}
        operation |= {"called": time.monotonic_ns(), "outcome": "unknown"}
        self.operations.append(operation)
        return operation

    @staticmethod
    def end(operation, **answer):
        operation |= {"returned": time.monotonic_ns(), "outcome": "known", **answer}

    def write(self, name):
        """Writes it where AMALGAM_HISTORIES says; the trial has found nothing wrong with it."""
        folder = os.environ.get("AMALGAM_HISTORIES")
        if not folder:
            return
        os.makedirs(folder, exist_ok=True)
        head = {"form": 1, "source": f"process test {name}", "nanoseconds_per_unit": 1}
        head |= {"forgets": False, "own": "holds", "violations": []}
        with open(f"{folder}/{name}.jsonl", "w", encoding="utf-8") as file:
            for line in [head, *self.operations]:
                file.write(json.dumps(line) + "\n")


class Counting(threading.Thread):
    """Counts up through the nodes that run, until it is told to stop."""

    def __init__(self, nodes, seed, history):
        super().__init__(daemon=True)
        self.name, self.history = f"client {seed}", history
        self.nodes, self.random, self.stops = nodes, random.Random(seed), False
        self.answered, self.unknown = [0] * COUNTERS, [0] * COUNTERS

    def run(self):
        clients = {}
        while not self.stops:
            node = self.random.choice([node for node in self.nodes if node.is_running()])
            counter = self.random.randrange(COUNTERS)
            is_sent = False
            try:
                if node not in clients:
                    clients[node] = Client(node)
                is_sent = True
                begun = self.history.begin(self.name, f"counter{counter}", "incr", delta=1)
                line = clients[node].ask(f"incr counter{counter} 1")
                if line.isdigit():
                    self.history.end(begun, result="number", number=int(line))
                    self.answered[counter] += 1
                elif line == REFUSED:
                    begun["outcome"] = "refused"
                    self.unknown[counter] += 1
                else:
                    self.unknown[counter] += 1
            except OSError:
                self.unknown[counter] += is_sent
                clients.pop(node, None)
                time.sleep(0.02)


class Trial:
    """The cluster and what happens to it."""

    def __init__(self, program, nodes, folder):
        self.folder, self.program = folder, program
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "br0", "type", "bridge")
        run("ip", "addr", "add", "10.77.0.1/24", "dev", "br0")
        run("ip", "link", "set", "br0", "up")
        with open(f"{folder}/token", "w", encoding="ascii") as token:
            token.write(secrets.token_hex(16) + "\n")
        self.etcd = subprocess.Popen(
            ["etcd", "--data-dir", f"{folder}/etcd", "--listen-client-urls", ETCD]
            + ["--advertise-client-urls", ETCD, "--listen-peer-urls", "http://127.0.0.1:2380"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually("etcd listens", lambda: bool(socket.create_connection(("10.77.0.1", 2379))))
        self.nodes = [Node(program, number, folder) for number in range(nodes + 1)]
        # The last one joins later.
        self.late = self.nodes[-1]
        for node in self.nodes[:-1]:
            node.start()

    def running(self):
        return [node for node in self.nodes if node.is_running()]

    def writes_everywhere(self):
        def check():
            for node in self.running():
                client = Client(node)
                for number in range(60):
                    if client.store(f"probe{number}", node.name) != b"STORED":
                        return f"{node.name} does not store probe{number}"
            return True

        eventually("all keys can be written", check)

    def reads(self, values):
        for node in self.running():
            client = Client(node)
            for key, value in values.items():
                eventually(f"{key} at {node.name}", lambda: client.read(key) == value)

    def owns(self, node):
        """How many partitions a node serves, as its status has it; none if it is not there."""
        asked = ["cluster", "status", "--node", f"{self.nodes[0].host}:7911"]
        asked += ["--join-token-file", f"{self.folder}/token"]
        output = subprocess.run([self.program, *asked], capture_output=True, text=True)
        for line in output.stdout.splitlines()[1:]:
            words = line.split()
            if words[2] == f"{node.host}:7911" and words[4].isdigit():
                return int(words[4])
        return None

    def join_and_leave(self):
        self.late.start()
        eventually("who joins gets its part", lambda: (self.owns(self.late) or 0) > 200)
        self.late.leave()
        print("    one joined, and left in order")

    def etcd_stands_still(self):
        self.etcd.send_signal(signal.SIGSTOP)
        # However long the reads take on a busy machine, leases are renewed before they end.
        awake = threading.Timer(LEASE_SECONDS / 2 - 0.5, self.etcd.send_signal, [signal.SIGCONT])
        awake.start()
        values = {f"kept{number}": str(number) for number in range(5)}
        self.reads(values)
        awake.join()
        time.sleep(1)
        assert len(self.running()) == len(self.nodes) - 1, "somebody stopped too early"
        print("    etcd stood still, and all was served")

    def one_is_killed(self, chance):
        victim = chance.choice(self.nodes[:-1])
        victim.process.kill()
        victim.process.wait()
        # Until others own what it had, nothing of that can be changed.
        time.sleep(LEASE_SECONDS)
        victim.start()
        self.writes_everywhere()
        print(f"    {victim.name} was killed, and came back with another life")

    def two_do_not_see_each_other(self, chance):
        one, other = chance.sample(self.running(), 2)
        one.blind(other, True)
        other.blind(one, True)
        time.sleep(1.5)
        one.blind(other, False)
        other.blind(one, False)
        print(f"    {one.name} and {other.name} did not see each other for a while")

    def cut_off(self):
        victim = self.nodes[1]
        joined = victim.joined()
        victim.link("down")
        time.sleep(LEASE_SECONDS + 1)
        # It is still reached from inside. Nobody can tell it that its lease is over.
        ask = "import socket; s = socket.create_connection(('%s', 11211), 60); "
        ask += "s.sendall(b'set kept0 0 0 1\\r\\nx\\r\\n'); print(s.recv(99))"
        words = ["ip", "netns", "exec", victim.name, sys.executable, "-c", ask % victim.host]
        answer = subprocess.run(words, capture_output=True, text=True)
        assert "ERROR" in answer.stdout, f"it still serves: {answer}"
        victim.link("up")
        # One that has run for 10 s joins again by itself.
        is_over = lambda: not victim.is_running() or victim.joined() > joined
        eventually("it loses its lease", is_over)
        if not victim.is_running():
            assert victim.process.returncode != 0, "it says that it stopped against its will"
            victim.start()
        self.writes_everywhere()
        print("    one was cut off, served nothing after its lease, and came back")

    def end(self):
        for node in self.nodes:
            if node.is_running():
                node.process.kill()
                node.process.wait()
        self.etcd.kill()
        self.etcd.wait()


def settled(client, counter):
    """What a counter shows when late repetitions have arrived."""
    value = None
    while value is None or value != client.read(f"counter{counter}"):
        value = client.read(f"counter{counter}")
    return int(value)


def trial(program, count, seconds, folder):
    chance = random.Random(7)
    world = Trial(program, count, folder)
    try:
        world.writes_everywhere()
        first = Client(world.nodes[0])
        values = {f"kept{number}": str(number) for number in range(200)}
        for key, value in values.items():
            assert first.store(key, value) == b"STORED"
        history = History()
        for counter in range(COUNTERS):
            begun = history.begin("first", f"counter{counter}", "set", value="0")
            assert first.store(f"counter{counter}", "0") == b"STORED"
            history.end(begun, result="stored")
        counting = [Counting(world.nodes[:-1], seed, history) for seed in range(3)]
        for one in counting:
            one.start()
        end = time.time() + seconds
        world.join_and_leave()
        world.etcd_stands_still()
        world.two_do_not_see_each_other(chance)
        world.one_is_killed(chance)
        while time.time() < end:
            again = [world.join_and_leave, world.etcd_stands_still]
            again += [lambda: world.one_is_killed(chance)]
            chance.choice(again + [lambda: world.two_do_not_see_each_other(chance)])()
        for one in counting:
            one.stops = True
        for one in counting:
            one.join(PATIENCE)
        world.reads(values)
        answered = [sum(one.answered[counter] for one in counting) for counter in range(COUNTERS)]
        unknown = [sum(one.unknown[counter] for one in counting) for counter in range(COUNTERS)]
        time.sleep(1)
        for counter in range(COUNTERS):
            begun = history.begin("first", f"counter{counter}", "get")
            value = settled(first, counter)
            history.end(begun, result="hit", found=str(value))
            least, most = answered[counter], answered[counter] + unknown[counter]
            assert least <= value <= most, f"counter{counter}: {value}, not {least} to {most}"
        history.write("namespaces-counters")
        assert sum(answered) > 200, f"only {sum(answered)} were answered"
        print(f"    {sum(answered)} counted, {sum(unknown)} unknown")
        world.cut_off()
        world.reads(values)
    except BaseException:
        for node in world.nodes:
            print(f"--- {node.name}")
            path = f"{folder}/{node.name}.log"
            if os.path.exists(path):
                with open(path, encoding="utf-8", errors="replace") as log:
                    print("".join(log.readlines()[-15:]))
        raise
    finally:
        world.end()


def main():
    program, count, seconds = os.path.abspath(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    folder = tempfile.mkdtemp(prefix="amalgam-cluster-")
    try:
        trial(program, count, seconds, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
