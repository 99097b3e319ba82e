"""The suites that suites.py runs: where each comes from, what it needs, how its output is read.

Sources are pinned by version and checksum, and fetched with the ordinary client of their registry
into the working folder; none of them is part of this repository. The packages of some clients lack
their tests: those suites are taken from AMALGAM_CLIENT_SOURCES, if it is set.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
TCP = ["-p", "11211"]


class Unavailable(Exception):
    """A suite cannot run here; the text says what to install."""


def call(command, folder, **environment):
    """Runs a step of the preparation; its output is shown if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        line = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise Unavailable(f"`{' '.join(str(part) for part in command[:4])}` failed: {line}")
    return done.stdout


def need(command, hint):
    if shutil.which(command) is None:
        raise Unavailable(f"install {hint}, which has `{command}`")


def check_sum(path, expected):
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    if actual != expected:
        raise Unavailable(f"{path.name} has the checksum {actual}, not {expected}")


def unpack(archive, folder, expected):
    """Unpacks a gzipped tar archive with the expected checksum, once; returns its folder."""
    check_sum(archive, expected)
    with tarfile.open(archive) as tar:
        top = tar.getnames()[0].split("/")[0]
        if not (folder / top).exists():
            tar.extractall(folder)
    return folder / top


def python_environment(work):
    """A virtual environment with what the Python suites need."""
    wanted = (HERE / "suites-requirements.txt").read_text(encoding="utf-8")
    installed = work / "venv" / "installed.txt"
    if not installed.exists() or installed.read_text(encoding="utf-8") != wanted:
        call([sys.executable, "-m", "venv", work / "venv"], work)
        python = work / "venv" / "bin" / "python"
        call([python, "-m", "pip", "install", "-q", "-r", HERE / "suites-requirements.txt"], work)
        installed.write_text(wanted, encoding="utf-8")
    return work / "venv" / "bin" / "python"


def named_results(pattern, words):
    """A parser of lines: `pattern` has the groups `name` and `result`."""
    expression = re.compile(pattern, re.MULTILINE)

    def parse(text):
        return {
            match["name"]: words[match["result"]]
            for match in expression.finditer(text)
            if match["result"] in words
        }

    return parse


def junit_results(report):
    """The result of each test by name, from a file in JUnit's format."""
    results = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        outcome = {child.tag for child in case} & {"failure", "error", "skipped"}
        failed = outcome & {"failure", "error"}
        results[name] = "failed" if failed else "skipped" if outcome else "passed"
    return results


class Suite:
    """One suite. `known` and `cluster` map names of tests to the reason why they differ."""

    listeners = [TCP]
    # Clusters of three in place of the listeners: the first node's port for memcached's clients,
    # which the other nodes' ports follow, and options.
    clusters = [(11211, [])]
    short = False
    on_a_cluster = False
    known = {}
    cluster = {}

    @property
    def slug(self):
        return re.sub(r"\W+", "-", self.name)

    def version(self):
        return self.pinned

    def prepare(self, work):
        """Fetches and builds the suite; raises Unavailable with what to install."""
        raise NotImplementedError

    def commands(self, work, output):
        """Commands that run the suite, each with its folder and additions to the environment."""
        raise NotImplementedError

    def parse(self, text, command):
        """The result of each test by name, from the output of one command."""
        raise NotImplementedError


class PythonSuite(Suite):
    """A suite of a Python package, from its source distribution."""

    def source(self, work):
        return work / f"{self.package}-{self.pinned}"

    def prepare(self, work):
        need("pip", "python3-pip")
        self.python = python_environment(work)
        archive = work / f"{self.package}-{self.pinned}.tar.gz"
        if not archive.exists():
            options = ["--no-deps", "--no-binary", ":all:", "-d", work]
            call(
                [self.python, "-m", "pip", "download", "-q", *options]
                + [f"{self.package}=={self.pinned}"],
                work,
            )
        unpack(archive, work, self.sha256)

    def pytest(self, work, output, *arguments):
        # The options of the package's own configuration measure coverage.
        report = output.with_suffix(".xml")
        report.unlink(missing_ok=True)
        self.report = report
        options = ["-o", "addopts=", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        return [self.python, "-m", "pytest", *options, *arguments]

    def parse(self, text, command):
        return junit_results(self.report)


class Pymemcache(PythonSuite):
    name = package = "pymemcache"
    pinned = "4.0.0"
    sha256 = "27bf9bd1bbc1e20f83633208620d56de50f14185055e49504f4f5e94e94aff94"
    short = on_a_cluster = True

    @property
    def tls(self):
        certificates = HERE.parents[1] / "target/clients/pymemcache-4.0.0/pymemcache/test/certs"
        files = f"ssl_chain_cert={certificates}/server.crt,ssl_key={certificates}/server.key"
        return ["-Z", "-o", files]

    @property
    def listeners(self):
        return [TCP, ["-p", "11212", *self.tls]]

    @property
    def clusters(self):
        # The last node of one, and the first of the other.
        return [(11209, []), (11212, self.tls)]

    def commands(self, work, output):
        command = self.pytest(work, output, "-m", "unit or integration", "pymemcache/test")
        return [(command, self.source(work), {})]


class Pylibmc(PythonSuite):
    name = package = "pylibmc"
    pinned = "1.6.3"
    sha256 = "eefa46115537abad65fbe2e032acd1b3463d9bf9e335af4b0916df4e4d3206e0"
    short = on_a_cluster = True

    def commands(self, work, output):
        # The wheel of the same version, which brings libmemcached, is what the tests import.
        return [(self.pytest(work, output, "tests"), self.source(work), {})]


class Django(PythonSuite):
    name = "Django, cache and sessions"
    package = "django"
    pinned = "5.2.19"
    sha256 = "ad03d8abc51dbff95ebf34b27123cf0c26a3b62db7ba0cd520783686362533d1"
    on_a_cluster = True
    cluster = {
        f"cache.tests.{client}CacheTests.test_memcached_deletes_key_on_failed_set": (
            "a set that a cluster refuses leaves the old value"
        )
        for client in ("PyLibMC", "PyMemcache")
    }

    def commands(self, work, output):
        settings = "from test_sqlite import *\nCACHES = {\n"
        for alias, backend in (("default", "PyMemcacheCache"), ("second", "PyLibMCCache")):
            settings += (
                f'    "{alias}": {{"BACKEND": "django.core.cache.backends.memcached.{backend}",'
                ' "LOCATION": "127.0.0.1:11211"},\n'
            )
        tests = self.source(work) / "tests"
        (tests / "test_with_memcached.py").write_text(settings + "}\n", encoding="utf-8")
        options = ["--settings=test_with_memcached", "-v", "2", "--parallel", "1"]
        command = [self.python, "runtests.py", *options, "cache", "sessions_tests"]
        return [(command, tests, {"PYTHONPATH": self.source(work)})]

    def parse(self, text, command):
        pattern = re.compile(r"^(\w+) \(([\w.]+)\)", re.MULTILINE)
        word = re.compile(r"\.\.\. (ok|FAIL|ERROR|skipped|expected failure)")
        results = {}
        # What follows the closing lines of a run repeats the names of what failed.
        text = text.split("\n======")[0]
        starts = list(pattern.finditer(text))
        for start, end in zip(starts, starts[1:] + [None]):
            found = word.search(text, start.end(), end.start() if end else len(text))
            outcome = found[1] if found else "FAIL"
            words = {"ok": "passed", "skipped": "skipped", "expected failure": "passed"}
            results[start[2]] = words.get(outcome, "failed")
        return results


class Gomemcache(Suite):
    name = "gomemcache"
    module = "github.com/bradfitz/gomemcache"
    pinned = "v0.0.0-20260422231931-4d751bb6e37c"
    sum = "h1:6Gpm9YYUEQx2T9zMsYolQhr6sjwwGtFitSA0pQsa7a8="

    def prepare(self, work):
        need("go", "golang-go")
        listing = call(["go", "mod", "download", "-json", f"{self.module}@{self.pinned}"], work)
        module = json.loads(listing)
        if module["Sum"] != self.sum:
            raise Unavailable(f"the module has the checksum {module['Sum']}, not {self.sum}")
        self.folder = work / "gomemcache"
        if not self.folder.exists():
            shutil.copytree(module["Dir"], self.folder, copy_function=shutil.copyfile)
        call(["go", "test", "-count=1", "-run", "^$", "./..."], self.folder)

    def commands(self, work, output):
        folder = work / "gomemcache"
        command = ["go", "test", "-count=1", "-json", "./memcache"]
        return [(command, folder, {"GOPROXY": "off", "GOFLAGS": "-mod=mod"})]

    def parse(self, text, command):
        words = {"pass": "passed", "fail": "failed", "skip": "skipped"}
        results = {}
        for line in text.splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if "Test" in event and event["Action"] in words:
                results[event["Test"]] = words[event["Action"]]
        return results


class Memjs(Suite):
    name = "memjs"
    pinned = "1.3.2"
    sha256 = "15d8fda5301e2d7d15980221301ae558b4b5c273a880872d5d463e7660595d19"
    # The version that memjs asks for.
    runner = "tap@4.0.0"
    short = on_a_cluster = True

    def prepare(self, work):
        need("npm", "npm")
        folder = work / "memjs"
        folder.mkdir(exist_ok=True)
        archive = folder / f"memjs-{self.pinned}.tgz"
        if not archive.exists():
            call(["npm", "pack", "--silent", f"memjs@{self.pinned}"], folder)
        unpack(archive, folder, self.sha256)
        if not (folder / "node_modules" / "tap").exists():
            options = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--no-save"]
            call(["npm", "install", *options, "--prefix", folder, self.runner], folder)

    def commands(self, work, output):
        folder = work / "memjs" / "package"
        tests = sorted((folder / "test").glob("*_test.js"))
        return [(["node", f"test/{test.name}"], folder, {}) for test in tests]

    def parse(self, text, command):
        assertion = re.compile(r" *(not ok|ok) (\d+)(?: - (.*?))?( # SKIP.*)?( # time.*)?$")
        results, name, subtests = {}, None, 0
        for line in text.splitlines():
            if found := re.match(r" *# Subtest: (.*)", line):
                subtests += 1
                name = f"{subtests} {found[1]}"
            elif found := assertion.match(line):
                # Assertions are indented below the test that makes them.
                indented = line.startswith(" ")
                test = f"{name}, assertion {found[2]}" if indented else name or found[3]
                skipped = "skipped" if found[4] else "passed"
                results[f"{command[1]}: {test}"] = "failed" if found[1] == "not ok" else skipped
        return results


class RustMemcache(Suite):
    name = "rust memcache"
    pinned = "0.21.0"
    sha256 = "afb42d7480834a798f8cadc672838dc37988db4ec678b119b9cbe1f9b7859c3f"

    @property
    def listeners(self):
        assets = HERE.parents[1] / "target/clients/memcache-0.21.0/tests/assets"
        tls = f"ssl_key={assets}/localhost.key,ssl_chain_cert={assets}/localhost.crt"
        authority = f"{assets}/RUST_MEMCACHE_TEST_CERT.crt"
        # As the crate's tests/setup_tests.sh starts them.
        plain = [["-p", str(port)] for port in range(12345, 12350)]
        return [
            *plain,
            ["-p", "12350", "--enable-ssl", "-o", tls],
            ["-p", "12351", "--enable-ssl", "-o"]
            + [f"{tls},ssl_verify_mode=2,ssl_ca_cert={authority}"],
            ["-p", "22345", "-U", "22345"],
            ["-s", "/tmp/memcached.sock"],
            ["-s", "/tmp/memcached2.sock"],
        ]

    def prepare(self, work):
        need("cargo", "Rust")
        need("pkg-config", "pkg-config")
        if subprocess.run(["pkg-config", "openssl"], check=False).returncode != 0:
            raise Unavailable("install libssl-dev, which the crate links with")
        stub = work / "fetch-crate"
        (stub / "src").mkdir(parents=True, exist_ok=True)
        (stub / "src" / "lib.rs").touch()
        manifest = '[package]\nname = "fetch"\nedition = "2021"\n[workspace]\n[dependencies]\n'
        (stub / "Cargo.toml").write_text(f'{manifest}memcache = "={self.pinned}"\n')
        call(["cargo", "fetch", "-q"], stub)
        home = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
        archive = next((home / "registry" / "cache").glob(f"*/memcache-{self.pinned}.crate"))
        source = unpack(archive, work, self.sha256)
        build = ["cargo", "test", "-q", "--locked", "--all-features", "--tests", "--no-run"]
        # Apart from the workspace of this repository, whose folder contains the source.
        manifest = source / "Cargo.toml"
        if "[workspace]" not in manifest.read_text():
            manifest.write_text(manifest.read_text() + "\n[workspace]\n")
        call(build, source, CARGO_TARGET_DIR=str(work / "rust"))

    def commands(self, work, output):
        options = ["--locked", "--offline", "--all-features", "--tests", "--no-fail-fast"]
        # One at a time: the tests flush servers that they share.
        command = ["cargo", "test", *options, "--", "--test-threads=1"]
        folder = work / f"memcache-{self.pinned}"
        return [(command, folder, {"CARGO_TARGET_DIR": str(work / "rust")})]

    def parse(self, text, command):
        words = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}
        results, binary = {}, ""
        for line in text.splitlines():
            if found := re.match(r" +Running (?:unittests )?(\S+)", line):
                binary = found[1]
            elif found := re.match(r"test (\S+)(?: - should panic)? \.\.\. (.*\b)?", line):
                word = (found[2] or "").split(",")[0]
                results[f"{binary}: {found[1]}"] = words.get(word, "failed")
        return results


class CheckedOut(Suite):
    """A suite whose tests no package has: from a folder of AMALGAM_CLIENT_SOURCES."""

    def prepare(self, work):
        sources = os.environ.get("AMALGAM_CLIENT_SOURCES")
        self.folder = pathlib.Path(sources or ".", self.directory).resolve()
        if sources is None or not self.folder.exists():
            raise Unavailable(
                "no package contains its tests: put its repository into a folder "
                f"`{self.directory}` and name the folder above it in AMALGAM_CLIENT_SOURCES"
            )

    def version(self):
        text = (self.folder / self.version_file).read_text(encoding="utf-8")
        return re.search(self.version_pattern, text)[1]

    def commands(self, work, output):
        raise NotImplementedError


class Aiomcache(CheckedOut):
    name = directory = "aiomcache"
    version_file = "aiomcache/__init__.py"
    version_pattern = r"__version__ = ['\"](.*)['\"]"
    listeners = [TCP, ["-s", "/tmp/memcached.sock"]]
    parse = PythonSuite.parse
    pytest = PythonSuite.pytest

    def prepare(self, work):
        super().prepare(work)
        self.python = python_environment(work)
        # The suite names a class of a library that can start servers, and starts none with it.
        (work / "shim").mkdir(exist_ok=True)
        (work / "shim" / "docker.py").write_text("Client = None\n")

    def commands(self, work, output):
        self.prepare(work)
        path = f"{work / 'shim'}:{self.folder}"
        return [(self.pytest(work, output, "tests"), self.folder, {"PYTHONPATH": path})]


class Dalli(CheckedOut):
    name = "Dalli"
    directory = "dalli"
    version_file = "lib/dalli/version.rb"
    version_pattern = r"VERSION = '(.*)'"
    # It starts each server that it needs.
    listeners = []

    def prepare(self, work):
        super().prepare(work)
        need("ruby", "ruby, ruby-minitest, ruby-rack and ruby-connection-pool")
        # Bundler would ask for linters and coverage. It also loads the version, and Set.
        setup = work / "shim" / "bundler" / "setup.rb"
        setup.parent.mkdir(parents=True, exist_ok=True)
        setup.write_text("require 'set'\nrequire 'dalli/version'\n")

    def commands(self, work, output):
        self.prepare(work)
        folder = self.folder / "test"
        tests = sorted(path.relative_to(self.folder) for path in folder.glob("**/test_*.rb"))
        options = ["-I", work / "shim", "-I", "lib", "-I", "test"]
        return [(["ruby", *options, test, "-v"], self.folder, {}) for test in tests]

    parsed = staticmethod(
        named_results(
            r"^(?P<name>\S.*#test_.*?) = [0-9.]+ s = (?P<result>[.FES])",
            {".": "passed", "F": "failed", "E": "failed", "S": "skipped"},
        )
    )

    def parse(self, text, command):
        results = self.parsed(text)
        test = pathlib.Path(command[-2]).name
        return {f"{test}: {name}": result for name, result in results.items()}


class PhpMemcached(CheckedOut):
    name = "php-memcached"
    directory = "php-memcached"
    version_file = "php_memcached.h"
    version_pattern = r'PHP_MEMCACHED_VERSION "(.*)"'
    on_a_cluster = True

    def prepare(self, work):
        super().prepare(work)
        need("php", "php-cli")
        need("phpize", "php-dev and libmemcached-dev")
        if not (self.folder / "modules" / "memcached.so").exists():
            call(["phpize"], self.folder)
            call(["./configure", "--disable-memcached-sasl"], self.folder)
            call(["make", "-j2"], self.folder)

    def commands(self, work, output):
        self.prepare(work)
        options = ["-d", f"extension={self.folder}/modules/memcached.so"]
        command = ["php", "run-tests.php", "-n", *options, "-q", "tests"]
        environment = {"NO_INTERACTION": "1", "TEST_PHP_EXECUTABLE": shutil.which("php")}
        return [(command, self.folder, environment)]

    parsed = staticmethod(
        named_results(
            r"^(?P<result>PASS|FAIL|SKIP|XFAIL|BORK|LEAK|WARN) .*?\[(?P<name>tests/[^\]]*)\]",
            {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped", "XFAIL": "passed"}
            | {"BORK": "failed", "LEAK": "failed", "WARN": "failed"},
        )
    )

    def parse(self, text, command):
        # The runner overwrites its line of progress.
        return self.parsed(text.replace("\r", "\n"))


class JavaSuite(CheckedOut):
    """A suite that Maven builds and runs. `options` let a present compiler take its sources."""

    options = []
    # A test without a server: with it Maven fetches all that it needs.
    trial = []
    goals = []

    def maven(self, *arguments):
        return ["mvn", "-B", "-q", "-Dmaven.test.failure.ignore=true", *self.options, *arguments]

    def prepare(self, work):
        super().prepare(work)
        need("mvn", "maven and a JDK")
        call(self.maven("test-compile", *self.trial), self.folder)

    def reports(self):
        return (self.folder / "target").glob("*-reports/TEST-*.xml")

    def commands(self, work, output):
        super().prepare(work)
        for report in self.reports():
            report.unlink()
        return [(self.maven("-o", *self.goals), self.folder, {})]

    def parse(self, text, command):
        results = {}
        for report in self.reports():
            results.update(junit_results(report))
        return results


class Xmemcached(JavaSuite):
    name = directory = "xmemcached"
    version_file = "pom.xml"
    version_pattern = r"<artifactId>xmemcached</artifactId>\s*<version>(.*)</version>"
    on_a_cluster = True
    # Calls that later versions of the language find ambiguous; a formatter that the build runs.
    options = ["-Dmaven.compiler.source=7", "-Dmaven.compiler.target=7", "-Dformatter.skip=true"]
    trial = ["failsafe:integration-test", "-Dit.test=QueueTest"]
    # The others need no server.
    goals = ["failsafe:integration-test"]


class Spymemcached(JavaSuite):
    name = directory = "spymemcached"
    on_a_cluster = True
    options = ["-Dmaven.compiler.source=8", "-Dmaven.compiler.target=8"]
    options += ["-Dproject.build.sourceEncoding=UTF-8"]
    trial = ["surefire:test", "-Dtest=AddrUtilTest"]
    # A test that waits for an answer that never comes must not end the others.
    goals = ["surefire:test", "-DforkMode=always", "-Dsurefire.timeout=300"]
    # It gets a key until an answer takes longer than two milliseconds, and expects the next gets
    # to be faster.
    known = {
        f"net.spy.memcached.{client}ClientTest.testSyncGetTimeouts": (
            "waits two milliseconds for answers; on a busy machine it fails with memcached too"
        )
        for client in ("Ascii", "AsciiIPV6", "Binary", "BinaryIPV6")
    }
    cluster = {
        f"net.spy.memcached.{client}ClientTest.testGetStatsSlabs": (
            "statistics are those of one node, and another may have the item"
        )
        for client in ("Ascii", "AsciiIPV6", "Binary", "BinaryIPV6")
    }

    def version(self):
        return call(["git", "describe", "--tags", "--always"], self.folder).strip()


SUITES = [
    Pymemcache(),
    Pylibmc(),
    Django(),
    Gomemcache(),
    Memjs(),
    RustMemcache(),
    Aiomcache(),
    Dalli(),
    PhpMemcached(),
    Spymemcached(),
    Xmemcached(),
]


def by_name(name):
    suite = next(suite for suite in SUITES if suite.name == name)
    if isinstance(suite, PythonSuite):
        suite.python = HERE.parents[1] / "target" / "clients" / "venv" / "bin" / "python"
    return suite
