#!/usr/bin/env python3
"""Runs the test suites that other people wrote for their memcached clients, against memcached and
against Amalgam, and compares the results test by test.

Each run of a suite has a network namespace of its own, so that suites with fixed ports never meet
another server. Servers are started as `memcached` and stopped by process id. A suite that cannot
run here is skipped with a line that says what it lacks; a skipped suite never counts as passed.

usage: suites.py [--short] [--suite NAME]... [--server NAME]... [--docs] [--verbose]
    --server: mercury, memc3, hotring-r, hotring-s, pipeline, or cluster for three nodes
environment: AMALGAM_MEMCACHED (default: memcached of PATH), AMALGAM_BINARY (default: the debug
    build), AMALGAM_CLIENT_SOURCES (a folder with one folder for each suite that no registry serves)
"""

import argparse
import fcntl
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import time

import suite_list
from suite_list import Unavailable

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "target" / "clients"
DOCUMENT = ROOT / "docs" / "compatibility.md"
MARKERS = ("<!-- make clients: begin -->", "<!-- make clients: end -->")
ENGINES = ["mercury", "memc3", "hotring-r", "hotring-s", "pipeline"]
SECONDS_PER_SUITE = 900


def memcached_binary():
    path = shutil.which(os.environ.get("AMALGAM_MEMCACHED", "memcached"))
    if path is None:
        sys.exit("suites: no memcached to compare with: install it, or set AMALGAM_MEMCACHED")
    return os.path.realpath(path)


def amalgam_binary():
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    path = pathlib.Path(os.environ.get("AMALGAM_BINARY", pathlib.Path(target) / "debug/amalgam"))
    if not path.exists():
        sys.exit(f"suites: {path} is missing: run `cargo build --bin amalgam`")
    return path.resolve()


def write_launcher(server):
    """Writes a script named memcached, which suites find in PATH, and returns its folder."""
    folder = WORK / "servers" / server
    (folder / "real").mkdir(parents=True, exist_ok=True)
    real = folder / "real" / "memcached"
    real.unlink(missing_ok=True)
    real.symlink_to(memcached_binary() if server == "memcached" else amalgam_binary())
    options = "" if server == "memcached" else f"--engine {server} "
    launcher = folder / "memcached"
    # A server of root has to be told as whom it serves. Its log is kept out of the suite's output.
    launcher.write_text(
        '#!/bin/sh\n[ "$(id -u)" != 0 ] || set -- -u root "$@"\n'
        f'exec "{real}" {options}"$@" 2>>"{folder}/log"\n'
    )
    launcher.chmod(0o755)
    return folder


def bring_loopback_up():
    name, flags_up = b"lo", 0x1 | 0x40
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh", name, flags_up))  # SIOCSIFFLAGS


def namespace_command():
    """The prefix that gives a command a network of its own, or None if the system refuses it."""
    for prefix in (
        ["unshare", "--net"],
        ["unshare", "--user", "--map-current-user", "--keep-caps", "--net"],
    ):
        try:
            done = subprocess.run([*prefix, "true"], capture_output=True, check=False)
        except FileNotFoundError:
            return None
        if done.returncode == 0:
            return prefix
    return None


def answers(arguments):
    """Whether a server started with these arguments accepts connections."""
    family, address = socket.AF_INET, None
    for option, value in zip(arguments, arguments[1:]):
        if option == "-p":
            address = ("127.0.0.1", int(value))
        elif option == "-s":
            family, address = socket.AF_UNIX, value
    with socket.socket(family) as probe:
        probe.settimeout(1)
        try:
            probe.connect(address)
        except OSError:
            return False
        return True


def start_servers(suite, server):
    """Starts what the suite expects to find; returns the processes."""
    if server == "cluster":
        command = [amalgam_binary(), "cluster", "dev", "--nodes", "3", "--memory", "256MiB"]
        commands = [
            (
                [*command, "--port", str(port), *options],
                [["-p", str(port + node)] for node in range(3)],
            )
            for port, options in suite.clusters
        ]
    else:
        launcher = WORK / "servers" / server / "memcached"
        commands = [([launcher, *listener], [listener]) for listener in suite.listeners]
    processes = []
    for command, listeners in commands:
        for listener in listeners:
            if "-s" in listener:
                pathlib.Path(listener[listener.index("-s") + 1]).unlink(missing_ok=True)
        log = open(WORK / f"{suite.slug}-{server}-server.log", "a", encoding="utf-8")
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        processes.append(process)
        for _ in range(600):
            if process.poll() is not None or all(answers(listener) for listener in listeners):
                break
            time.sleep(0.05)
    return processes


def run_inside(suite, server, result_file):
    """In the namespace: starts servers, runs the suite and writes its results as JSON."""
    bring_loopback_up()
    (WORK / f"{suite.slug}-{server}-server.log").unlink(missing_ok=True)
    processes = start_servers(suite, server)
    environment = dict(os.environ)
    environment["PATH"] = f"{WORK / 'servers' / server}:{environment['PATH']}"
    output_file = WORK / f"{suite.slug}-{server}.log"
    try:
        results = {}
        with open(output_file, "w", encoding="utf-8") as output:
            for command, folder, added in suite.commands(WORK, output_file):
                begin = output.tell()
                try:
                    subprocess.run(
                        [str(part) for part in command],
                        cwd=folder,
                        env={**environment, **added},
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        stdin=subprocess.DEVNULL,
                        timeout=SECONDS_PER_SUITE,
                        check=False,
                    )
                except subprocess.TimeoutExpired:
                    results[f"(stopped after {SECONDS_PER_SUITE} s)"] = "failed"
                output.seek(0, os.SEEK_END)
                with open(output_file, encoding="utf-8", errors="replace") as text:
                    text.seek(begin)
                    plain = re.sub(r"\x1b\[[0-9;]*m", "", text.read())
                    results.update(suite.parse(plain, command))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
    pathlib.Path(result_file).write_text(json.dumps(results), encoding="utf-8")


def run(prefix, suite, server):
    """Runs a suite against a server; returns the result of each test by name."""
    result_file = WORK / f"{suite.slug}-{server}.json"
    result_file.unlink(missing_ok=True)
    done = subprocess.run(
        [*prefix, sys.executable, __file__, "--inside", suite.name, server, str(result_file)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"suites: {suite.name} on {server} did not run:\n{done.stdout}{done.stderr}")
    results = json.loads(result_file.read_text(encoding="utf-8"))
    if not results:
        sys.exit(f"suites: no test of {suite.name} ran; see {WORK / suite.slug}-{server}.log")
    return results


def differences(control, ours):
    """Names of tests that ended otherwise. What memcached's build made a suite skip is none, if it
    passed with us; neither is a test that fails with memcached and passes with us."""
    names = []
    for name in sorted(control.keys() | ours.keys()):
        theirs, mine = control.get(name, "missing"), ours.get(name, "missing")
        if theirs != mine and mine != "passed":
            names.append(name)
    return names


def cell(results):
    counts = {word: 0 for word in ("passed", "failed", "skipped")}
    for result in results.values():
        counts[result] += 1
    rest = ", ".join(f"{count} {word}" for word, count in list(counts.items())[1:] if count)
    return f"{counts['passed']}" + (f" ({rest})" if rest else "")


def compare(prefix, suite, servers, verbose):
    """Returns the row of the table, and the differing tests without a known reason."""
    control = run(prefix, suite, "memcached")
    row, named, unexplained = [suite.name, suite.version(), cell(control)], [], []
    for server in servers:
        if server == "cluster" and not suite.on_a_cluster:
            row.append("–")
            continue
        ours = run(prefix, suite, server)
        reasons = {**suite.known, **(suite.cluster if server == "cluster" else {})}
        differing = differences(control, ours)
        if any(name not in reasons for name in differing):
            # A test counts that differs twice, for some depend on the time of day or on luck.
            control_again, again = run(prefix, suite, "memcached"), run(prefix, suite, server)
            repeated = set(differences(control_again, again))
            differing = [name for name in differing if name in repeated]
            if not differing:
                control, ours = control_again, again
        row.append(cell(ours))
        for name in differing:
            named.append(f"`{name}` on {server}: {reasons.get(name, 'NOT EXPLAINED')}")
            if name not in reasons:
                unexplained.append(f"{suite.name}: {name} on {server}")
        if verbose:
            counts = f"{cell(ours)}, {len(differing)} differ"
            print(f"    {suite.name} on {server}: {counts}", flush=True)
    failing = sorted(name for name, result in control.items() if result == "failed")
    if failing and verbose:
        print(f"    {suite.name}: with memcached too fail: {', '.join(failing)}")
    row.append("; ".join(named) or "none")
    return row, unexplained


def version_of(server):
    launcher = write_launcher(server) / "memcached"
    text = subprocess.run([launcher, "-V"], capture_output=True, text=True, check=False).stdout
    return text.split()[1] if len(text.split()) > 1 else "unknown"


def table(rows, skipped, servers, version):
    head = ["suite", "version", f"memcached {version}", *servers, "tests that differ"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    if skipped:
        lines += ["", "Not run here:", ""]
        lines += [f"- {name}: {reason}" for name, reason in skipped]
    return "\n".join(lines)


def write_document(text):
    document = DOCUMENT.read_text(encoding="utf-8")
    before, rest = document.split(MARKERS[0])
    _, after = rest.split(MARKERS[1])
    document = f"{before}{MARKERS[0]}\n{text}\n{MARKERS[1]}{after}"
    DOCUMENT.write_text(document, encoding="utf-8")


def main():
    if sys.argv[1:2] == ["--inside"]:
        run_inside(suite_list.by_name(sys.argv[2]), sys.argv[3], sys.argv[4])
        return 0
    parser = argparse.ArgumentParser(description="client test suites, memcached and Amalgam")
    parser.add_argument("--short", action="store_true", help="three suites, on one engine")
    parser.add_argument("--suite", action="append", choices=[s.name for s in suite_list.SUITES])
    parser.add_argument("--server", action="append", choices=[*ENGINES, "cluster"])
    parser.add_argument("--docs", action="store_true", help="write the table to the document")
    parser.add_argument("--verbose", action="store_true", help="a line after each run")
    options = parser.parse_args()
    suites = [
        suite
        for suite in suite_list.SUITES
        if (suite.name in options.suite if options.suite else suite.short or not options.short)
    ]
    servers = options.server or (ENGINES[:1] if options.short else [*ENGINES, "cluster"])
    WORK.mkdir(parents=True, exist_ok=True)
    prefix = namespace_command()
    if prefix is None:
        print("    skipped, to run it: unshare of util-linux, and leave to make namespaces")
        return 77
    version = version_of("memcached")
    for server in servers:
        if server != "cluster":
            write_launcher(server)
    rows, skipped, unexplained = [], [], []
    for suite in suites:
        try:
            suite.prepare(WORK)
        except Unavailable as reason:
            skipped.append((suite.name, str(reason)))
            print(f"    {suite.name} skipped: {reason}", flush=True)
            continue
        row, more = compare(prefix, suite, servers, options.verbose)
        rows.append(row)
        unexplained += more
        print("    " + " | ".join(row), flush=True)
    text = table(rows, skipped, servers, version)
    print(text)
    if options.docs:
        write_document(text)
    if not rows:
        return 77
    for line in unexplained:
        print(f"    differs from memcached without a known reason: {line}")
    print(f"{len(rows)} suites ran, {len(skipped)} were skipped, {len(unexplained)} tests differ")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
