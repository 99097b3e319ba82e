//! The server as a process: options, ports, signals, death and restart.

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use support::{ANY_PORT, PATIENCE, Process, command, temporary};

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().expect("runs")
}

impl Process {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("runs");
    }

    /// Waits for the end; whether it was a success.
    fn ends(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the server does not end");
    }
}

#[test]
fn an_unknown_option_is_named() {
    for (arguments, mention) in [
        (&["serve", "--no-such-option"][..], "--no-such-option"),
        (&["-Q"], "-Q"),
        (&["serve", "-t", "many"], "many"),
        (&["serve", "-t", "0"], "-t must be 1 to 256"),
        (&["serve", "-o", "no_such_thing"], "no_such_thing"),
        (&["serve", "--engine", "steam"], "no engine 'steam': choose among"),
        (&["serve", "--engine"], "--engine needs a name: choose among"),
        (&["serve", "--engine", "-t", "1"], "hotring-s"),
        (&["serve", "-m", "8", "-I", "64m"], "raise --memory"),
        (&["serve", "-m", "0"], "-m must be at least 3 (megabytes), not 0"),
        (&["serve", "-m", "2"], "-m must be at least 3 (megabytes), not 2"),
        (&["serve", "--memory", "1k"], "-m must be at least 3 (megabytes), not 1KiB"),
        (&["serve", "-m", "99999999t"], "-m: the size 99999999TiB is out of range"),
        (&["serve", "-I", "0"], "-I must be 1k to 1024m, not 0"),
        (&["serve", "-I", "2g"], "-I must be 1k to 1024m, not 2GiB"),
        (&["serve", "-m", "x"], "'x' is not a size"),
        (&["serve", "-l", "127.0.0.1:http"], "'http' is no port"),
        (&["serve", "--config", "/nonexistent/file"], "/nonexistent/file"),
        (&["serve", "--admin", "9150"], "must be HOST:PORT"),
        (&["serve", "--admin", "0.0.0.0:0"], "--admin-public"),
        (&["serve", "--admin-tls"], "--admin-tls needs --admin"),
        (&["serve", "--admin", "127.0.0.1:0", "--admin-tls"], "--admin-tls needs -o ssl_chain"),
        (&["serve", "-u", "root", "-l", "203.0.113.77", "-p", "0"], "203.0.113.77"),
    ] {
        let output = run(arguments);
        // 2 for what makes no sense, 1 for what the system refuses.
        let code = if mention.starts_with("203.") { 1 } else { 2 };
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(mention), "{arguments:?}: {text}");
        assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    }
}

#[test]
fn help_says_what_to_choose_an_engine_for() {
    for option in ["-h", "--help"] {
        let help = run(&["serve", option]);
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        for engine in ["mercury", "memc3", "hotring-r", "hotring-s", "pipeline"] {
            let line = help.lines().find(|line| line.trim().starts_with(engine));
            let line = line.unwrap_or_else(|| panic!("no line for {engine} in {help}"));
            assert!(line.len() > 30, "{line}");
        }
    }
}

/// The cores that the threads of a process with this name may run on.
fn cores_of_threads(pid: u32, name: &str) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let threads = threads.map(|thread| thread.expect("an entry").path());
    let is_named = |path: &PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    let cores = |path: PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).expect("a thread");
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.expect("a list").trim().to_owned()
    };
    threads.filter(is_named).map(cores).collect()
}

#[test]
fn threads_are_pinned_in_a_circle_on_request_only() {
    let own = std::fs::read_to_string("/proc/self/status").expect("a process");
    let own = own.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let own = own.expect("a list").trim().to_owned();
    let bound = |text: &str| -> usize { text.parse().expect("a number") };
    let range = |part: &str| match part.split_once('-') {
        Some((first, last)) => bound(first)..=bound(last),
        None => bound(part)..=bound(part),
    };
    let cores: Vec<_> = own.split(',').flat_map(range).collect();
    for pins in [true, false] {
        let mut command = command(ANY_PORT);
        command.args(["-t", "5"]).args(pins.then_some("--pin-threads"));
        let process = Process::start(&mut command);
        // Connections are dealt round: every worker has answered one, so all have started.
        let _connections = [(); 5].map(|()| process.talk("mn\r\n", "MN\r\n"));
        for worker in 0..5 {
            let one = cores[worker % cores.len()].to_string();
            let expected = if pins { one } else { own.clone() };
            let seen = cores_of_threads(process.child.id(), &format!("worker {worker}"));
            assert_eq!(seen, [expected], "worker {worker}, pinned: {pins}");
        }
    }
}

/// Bytes of a process's memory that are resident.
fn resident_bytes(process: &Process) -> u64 {
    let path = format!("/proc/{}/status", process.child.id());
    let status = std::fs::read_to_string(path).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
}

#[test]
fn idle_connections_cost_little_memory() {
    let limit = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("the maximum");
    let count = limit.unwrap_or(u64::MAX).saturating_sub(500).min(15_000);
    let process = Process::start(command(ANY_PORT).args(["-t", "2", "-c", "16000"]));
    let mut idle = vec![process.talk("mn\r\n", "MN\r\n")];
    let before = resident_bytes(&process);
    // Each has asked for something once: what that took has to be given back.
    idle.extend((1..count).map(|_| process.talk("get a\r\n", "END\r\n")));
    let each = resident_bytes(&process).saturating_sub(before) / count;
    assert!(each <= 4 << 10, "{each} resident bytes for each of {count} idle connections");
}

#[test]
fn every_short_option_of_memcached_is_known() {
    let help = run(&["serve", "-h"]);
    assert!(help.status.success());
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    for option in "psUaAldrumMcKkvhiVPfnLDtRCbBISFXWYoN".chars().filter(|option| *option != 'K') {
        assert!(help.contains(&format!("-{option}")), "-{option} is missing in {help}");
    }
    let version = run(&["-V"]);
    assert!(version.stdout.starts_with(b"memcached 1.6.45"));
}

#[test]
fn options_without_meaning_are_mentioned_and_accepted() {
    let mut process = Process::start(command(ANY_PORT).args([
        "-f",
        "1.5",
        "-n",
        "72",
        "-L",
        "-o",
        "modern,no_lru_crawler,slab_automove=1",
    ]));
    process.talk("mn\r\n", "MN\r\n");
    process.signal(Signal::TERM);
    assert!(process.ends());
}

#[test]
fn the_port_is_written_where_memcached_would() {
    let path = temporary("ports");
    let mut process = Process::start(command(ANY_PORT).env("MEMCACHED_PORT_FILENAME", &path));
    let text = std::fs::read_to_string(&path).expect("written before the port is announced");
    assert_eq!(text, format!("TCP INET: {}\n", process.port));
    process.talk("mn\r\n", "MN\r\n");
    process.signal(Signal::TERM);
    assert!(process.ends());
    // memcached leaves its file behind too.
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_configuration_file_is_read_and_overridden() {
    let path = temporary("config");
    std::fs::write(&path, "listen = [\"127.0.0.1\"]\nport = 0\nthreads = 2\nmemory = 32\n")
        .unwrap();
    let path_text = path.to_str().unwrap();
    let process =
        Process::start(&mut command(&["serve", "-u", "root", "--config", path_text, "-t", "3"]));
    process.talk("stats settings\r\n", "STAT maxbytes 33554432\r\nSTAT maxconns 1024\r\n");
    let mut stream = process.talk("stats\r\n", "STAT pid ");
    let mut text = String::new();
    stream.write_all(b"quit\r\n").unwrap();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("STAT threads 3\r\n"), "{text}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn signals_end_the_server_after_its_answers() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut process = Process::start(&mut command(ANY_PORT));
        let mut stream = process.talk("set a 0 0 1\r\nx\r\n", "STORED\r\n");
        process.signal(signal);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
        assert!(process.ends());
    }
}

#[test]
fn signals_read_the_users_again_and_keep_the_items() {
    let (users, items) = (temporary("users"), temporary("items"));
    let start = || {
        let mut arguments = command(ANY_PORT);
        Process::start(arguments.arg("-Y").arg(&users).arg("-e").arg(&items))
    };
    std::fs::write(&users, "ann:old\n").unwrap();
    let mut process = start();
    process.talk("set k 0 0 7\r\nann old\r\nset a 5 0 1\r\nx\r\n", "STORED\r\nSTORED\r\n");
    std::fs::write(&users, "ann:new\n").unwrap();
    process.signal(Signal::HUP);
    let log_in = "set k 0 0 7\r\nann new\r\n";
    let begin = Instant::now();
    loop {
        let mut answer = [0; 6];
        process.talk(log_in, "").read_exact(&mut answer).unwrap();
        if &answer == b"STORED" {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "the old users stay");
    }
    process.signal(Signal::USR1);
    assert!(process.ends());
    let again = start();
    again.talk(&format!("{log_in}get a\r\n"), "STORED\r\nVALUE a 5 1\r\nx\r\nEND\r\n");
    std::fs::remove_file(&users).unwrap();
}

#[test]
fn a_killed_server_can_be_started_again_on_its_port() {
    let mut first = Process::start(&mut command(ANY_PORT));
    let _open = first.talk("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    let port = first.port.to_string();
    first.signal(Signal::KILL);
    assert!(!first.ends());
    let again = Process::start(&mut command(&["-u", "root", "-l", "127.0.0.1", "-p", &port]));
    again.talk(
        "get a\r\nset a 0 0 1\r\nx\r\nget a\r\n",
        "END\r\nSTORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
    );
}

#[test]
fn completions_and_manual_pages_know_the_options() {
    for (arguments, mention) in [
        (&["completions", "bash"][..], "--admin-public"),
        (&["completions", "zsh"], "--memory"),
        (&["completions", "fish"], "engine"),
        (&["man"], ".TH \"amalgam\" \"1\""),
        (&["man", "serve"], "amalgam\\-serve"),
    ] {
        let output = run(arguments);
        assert!(output.status.success(), "{arguments:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(mention), "{arguments:?}: {text}");
    }
    // As into `head`, which has seen enough.
    for arguments in [["completions", "bash"], ["man", "serve"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = command(&arguments).stdout(writer).output().expect("it runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
    assert!(!run(&["man", "nothing"]).status.success());
    assert!(!run(&["completions", "nothing"]).status.success());
}

#[test]
fn every_engine_tells_its_hot_keys() {
    for engine in ["mercury", "memc3", "hotring-r", "hotring-s", "pipeline"] {
        let process = Process::start(command(ANY_PORT).args(["--engine", engine, "-t", "1"]));
        let asked = "mg cold\r\n".to_owned() + &"mg hot\r\n".repeat(4);
        let missed = "EN\r\n".repeat(5);
        let start = Instant::now();
        // The list is of the last seconds: a machine that is slower than that asks again.
        loop {
            let sent = asked.repeat(400) + "stats hotkeys\r\nquit\r\n";
            let mut stream = process.talk(&sent, &missed.repeat(400));
            let mut listed = String::new();
            stream.read_to_string(&mut listed).expect("text");
            if listed.starts_with("STAT hot 0.") && listed.contains("\r\nSTAT cold 0.") {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{engine}: {listed}");
        }
    }
}

#[test]
fn the_packaged_configuration_is_accepted() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/amalgam.toml");
    let arguments = ["serve", "-u", "root", "--config", path, "-p", "0", "--admin", "127.0.0.1:0"];
    let process = Process::start(&mut command(&arguments));
    process.talk("mn\r\n", "MN\r\n");
}

#[test]
fn top_shows_a_server_and_says_why_it_cannot() {
    let mut command = command(ANY_PORT);
    command.args(["--admin", "127.0.0.1:0"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let line = output.lines().nth(1).unwrap().unwrap();
    let address = line.strip_prefix("admin on http://").unwrap().trim_end_matches('/');
    let shown = run(&["top", "--once", address]);
    // One of several that does not answer is told, and hides no other.
    let several = run(&["top", "--once", address, "127.0.0.1:1"]);
    let objects = run(&["top", "--json", address, address]);
    child.kill().unwrap();
    child.wait().unwrap();
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success() && text.contains("HOT KEYS"), "{text}");
    let text = String::from_utf8_lossy(&several.stdout);
    assert!(text.contains("mercury") && text.contains("1 of 2 servers"), "{text}");
    let errors = String::from_utf8_lossy(&several.stderr);
    assert!(several.status.code() == Some(1) && errors.contains("127.0.0.1:1"), "{errors}");
    let text = String::from_utf8_lossy(&objects.stdout);
    assert_eq!(text.lines().filter(|line| line.starts_with("{\"")).count(), 2, "{text}");
    let gone = run(&["top", "--once", address]);
    assert!(!gone.status.success());
    assert!(String::from_utf8_lossy(&gone.stderr).contains("--admin"));
}

/// The names of metrics in a text: of the server's own, and of its process.
fn metrics_of(text: &str) -> BTreeSet<&str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let is_ours = |word: &&str| word.starts_with("amalgam_") || word.starts_with("process_");
    text.split(|letter| !is_part(letter)).filter(is_ours).collect()
}

#[test]
fn the_operator_is_answered_at_a_node_of_a_cluster() {
    let arguments = ["cluster", "dev", "--nodes", "2", "--port", "0", "--admin", "127.0.0.1:0"];
    let folder = temporary("operator");
    let mut command = command(&arguments);
    command.args(["--backups", "1", "--backup-space", "64M", "--backup-dir"]).arg(&folder);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let lines: Vec<String> = output
        .lines()
        .map(Result::unwrap)
        .take_while(|line| line != "the cluster serves")
        .collect();
    let address = lines.iter().find_map(|line| line.strip_prefix("admin on http://"));
    let address = address.expect("it is printed").trim_end_matches('/');
    let page = |path: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let begin = Instant::now();
    let metrics = loop {
        let (nodes, metrics) = (page("/api/cluster"), page("/metrics"));
        // In its first seconds a node knows fewer members, and has no backups.
        let is_known = nodes.matches("\"answers\":true").count() == 2;
        let waited = ["unacknowledged_entries{", "peer_round_trip_seconds{"]
            .map(|name| format!("amalgam_cluster_{name}"));
        if is_known && waited.iter().all(|name| metrics.contains(name)) {
            assert_eq!(nodes.matches("\"round_trip_us\":").count(), 2, "{nodes}");
            break metrics;
        }
        assert!(begin.elapsed() < PATIENCE, "{nodes} {metrics}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let shown = run(&["top", "--once", address]);
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    assert!(metrics.contains("amalgam_commands_total{command=\"set\""), "{metrics}");
    let known = metrics_of(&metrics);
    for (file, alert) in
        [("grafana/cluster.json", ""), ("prometheus/alerts.yml", "- alert: AmalgamNode")]
    {
        let path = format!("{}/../../packaging/{file}", env!("CARGO_MANIFEST_DIR"));
        let asked = std::fs::read_to_string(&path).unwrap();
        let asked = &asked[asked.find(alert).expect("an alert about nodes")..];
        let names = metrics_of(asked);
        assert!(names.len() > 2, "{file}: {names:?}");
        for name in names {
            assert!(known.contains(name), "{file} asks for {name}");
        }
    }
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains("HOT KEYS") && shown.contains("ROUND TRIP"), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.contains(" serves ")).count(), 2, "{shown}");
    let refused = run(&["cluster", "dev", "--admin", "0.0.0.0:0"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--admin-public"));
}

/// A program that serves its admin address over TLS, and the URL that it prints.
fn admin_over_tls(arguments: &[&str], chain: &str) -> (Process, String) {
    let chain = format!("ssl_chain_cert={chain}");
    let mut command = command(arguments);
    command.args(["--admin", "127.0.0.1:0", "--admin-tls", "-o", &chain]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let url = lines.find_map(|line| line.strip_prefix("admin on ").map(str::to_owned));
    (Process { child, port: 0 }, url.expect("it is printed"))
}

#[test]
fn top_asks_servers_and_nodes_over_tls() {
    let certificates = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/certificates");
    let file = |name: &str| format!("{certificates}/{name}.pem");
    let dev = ["cluster", "dev", "--nodes", "2", "--port", "0", "-t", "1"];
    for arguments in [ANY_PORT, &dev] {
        let (_process, url) = admin_over_tls(arguments, &file("server"));
        assert!(url.starts_with("https://127.0.0.1:"), "{url}");
        // The authority signed the certificate for another name than the address, and for this.
        let by_name = url.replace("127.0.0.1", "localhost");
        for (address, trusted, is_shown) in [
            (&by_name, "authority", true),
            (&url, "server", true),
            (&url, "authority", false),
            (&by_name, "stranger", false),
        ] {
            let shown = run(&["top", "--once", address, "--tls-ca", &file(trusted)]);
            let text = String::from_utf8_lossy(&shown.stdout);
            assert_eq!(shown.status.success(), is_shown, "{address} {trusted}: {shown:?}");
            assert_eq!(text.contains("HOT KEYS"), is_shown, "{text}");
        }
        let refused = run(&["top", "--once", &url]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("--tls-ca"), "{refused:?}");
        let plain = url.replace("https://", "").replace('/', "");
        assert!(!run(&["top", "--once", &plain]).status.success());
    }
}

#[test]
fn the_first_session_of_the_readme_is_as_printed() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));
    let readme = readme.unwrap();
    let (_, session) = readme.split_once("$ printf '").expect("a session");
    let (sent, rest) = session.split_once("' | nc 127.0.0.1 11211\n").expect("sent by nc");
    let (expected, _) = rest.split_once("```").expect("an end");
    let process = Process::start(&mut command(ANY_PORT));
    let sent = sent.replace("\\r\\n", "\r\n");
    let mut stream = process.talk(&sent, &expected.replace('\n', "\r\n"));
    // It ends by itself.
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn root_serves_only_where_it_is_told_to() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for more in [&[][..], &["-d"], &["-u", ""]] {
        let refused = run(&[&["serve", "-l", "127.0.0.1", "-p", "0"][..], more].concat());
        assert!(!refused.status.success());
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(text.contains("can't run as root without the -u switch"), "{text}");
    }
}

fn assert_serves(address: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"mn\r\n").unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"MN\r\n");
}

#[test]
fn both_families_are_served_by_default() {
    let mut command = command(&["serve", "-u", "root", "-p", "-1", "-U", "-1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = output.lines().map(Result::unwrap);
    let port = lines.next().unwrap().strip_prefix("listening on 0.0.0.0:").unwrap().to_owned();
    // A machine without IPv6 has only the first.
    let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    if has_ipv6 {
        assert_eq!(lines.next().unwrap(), format!("listening on [::]:{port}"));
    }
    for host in ["127.0.0.1", "[::1]"].iter().take(1 + usize::from(has_ipv6)) {
        assert_serves(&format!("{host}:{port}"));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn two_addresses_are_served() {
    let mut command = command(&["serve", "-u", "root", "-l", "127.0.0.1:0,127.0.0.2:0"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    for line in output.lines().take(2) {
        let line = line.unwrap();
        assert_serves(line.strip_prefix("listening on ").unwrap());
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_daemon_leaves_its_pid_and_removes_it() {
    let (pids, ports) = (temporary("pid"), temporary("daemon-ports"));
    let status = command(ANY_PORT)
        .args(["-d", "-P"])
        .arg(&pids)
        .env("MEMCACHED_PORT_FILENAME", &ports)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    // The command returns once the daemon serves.
    let pid: i32 = std::fs::read_to_string(&pids).unwrap().trim().parse().unwrap();
    let port = std::fs::read_to_string(&ports).unwrap();
    let port: u16 = port.trim().strip_prefix("TCP INET: ").unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"mn\r\n").unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    let start = Instant::now();
    while pids.exists() {
        assert!(start.elapsed() < PATIENCE, "the pid file stays");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::remove_file(&ports).unwrap();
}
