//! The command line: names, help, wrong usage, and what a start says.

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::{ANY_PORT, PATIENCE, Process, Running, command, talk, temporary};

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().expect("runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn wrong_usage_of_every_command_ends_with_2() {
    for (arguments, mention) in [
        (&["no-such-command"][..], "no-such-command"),
        (&["serve", "--engine", "steam"], "no engine 'steam'"),
        (&["bench", "server", "--target", "127.0.0.1:1", "--depth", "0"], "--depth"),
        (
            &["bench", "server", "--target", "nowhere", "--keys", "1", "--requests", "1"],
            "HOST:PORT",
        ),
        (&["bench", "index", "--keys", "0"], "amalgam-lab"),
        (&["advise"], "a server to watch"),
        (&["advise", "--server", "127.0.0.1:1", "--rounds", "0"], "--rounds"),
        (&["advise", "--server", "127.0.0.1:1", "--engine", "steam"], "steam"),
        (&["advise", "--server", "nowhere"], "--server nowhere: must be HOST:PORT"),
        (&["serve", "-u", "root", "-f", "0.5"], "-f (the factor of slab classes)"),
        (&["serve", "-u", "root", "-f", "NaN"], "must be greater than 1"),
        (&["serve", "-u", "root", "-n", "0"], "-n must be greater than 0"),
        (&["serve", "-u", "root", "-N", "0"], "-N must be greater than 0"),
        (&["serve", "-u", "root", "-Y", "x", "-U", "1"], "UDP (-U) has no authentication"),
        (
            &["serve", "-u", "root", "-Z", "-U", "1", "-o", "ssl_chain_cert=x,ssl_verify_mode=2"],
            "UDP (-U) has no authentication",
        ),
        (&["cluster", "node"], "--etcd"),
        (&["cluster", "node", "--etcd", "https://localhost:1"], "--etcd-ca"),
        (&["cluster", "node", "--etcd", "x", "--listen", "0.0.0.0:0"], "--advertise"),
        (&["cluster", "node", "--etcd", "x", "--backups", "1"], "--backup-dir"),
        (&["cluster", "node", "--etcd", "x", "--tls-key", "x"], "--tls-cert"),
        (&["cluster", "dev", "--nodes", "0"], "--nodes"),
        (&["cluster", "dev", "--nodes", "9", "-p", "65530"], "too many"),
        (&["cluster", "dev", "--rack", "a"], "--rack is for one node"),
        (&["cluster", "dev", "--engine", "steam"], "no engine 'steam'"),
        (&["cluster", "dev", "-t", "0"], "-t must be"),
        (&["cluster", "status", "--tls-ca", "x"], "--tls-cert"),
        (&["cluster", "status", "--node", "nowhere"], "--node nowhere: must be HOST:PORT"),
        (&["cluster", "drain", "--node", "nowhere"], "--node nowhere: must be HOST:PORT"),
        (&["cluster", "drain", "--key", "k"], "--key"),
        (&["cluster", "restore"], "FILE"),
        (&["top", "nowhere"], "HOST:PORT"),
        (&["load", "--from", "nowhere", "--to", "127.0.0.1:1"], "HOST:PORT"),
        (&["man", "nothing"], "no command 'nothing'"),
        (&["man", "cluster", "nothing"], "no command 'cluster nothing'"),
        (&["man", "serve", "--out", "x"], "--out"),
        (&["top", "--color", "sometimes"], "auto, always, never"),
        (&["completions", "nothing"], "nothing"),
    ] {
        let output = run(arguments);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(mention), "{arguments:?}: {errors}");
        for unwanted in ["\\n", "panicked", "backtrace"] {
            assert!(!errors.contains(unwanted), "{arguments:?}: {errors}");
        }
    }
}

#[test]
fn a_user_who_does_not_exist_is_wrong_usage() {
    if !rustix::process::geteuid().is_root() {
        // Only a process of root becomes another user.
        return;
    }
    let output = run(&["serve", "-u", "no-such-user", "-p", "0"]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("there is no user 'no-such-user'"), "{errors}");
}

const UNKNOWN_HOST: &str =
    "nameless-nameless-nameless-nameless-nameless-nameless-nameless-nameless:1";

#[test]
fn what_fails_without_a_mistake_of_the_user_ends_with_1() {
    for arguments in [
        &["top", "--once", "127.0.0.1:1"][..],
        &["load", "--from", "127.0.0.1:1", "--to", "127.0.0.1:1"],
        &["cluster", "status", "--node", "127.0.0.1:1"],
        &["advise", "--server", "127.0.0.1:1"],
        // No label of a host's name is as long as these.
        &["serve", "-u", "root", "-l", UNKNOWN_HOST],
        &["serve", "-u", "root", "--admin-public", "--admin", UNKNOWN_HOST],
        &["top", UNKNOWN_HOST],
        &["cluster", "status", "--node", UNKNOWN_HOST],
        &["advise", "--server", UNKNOWN_HOST],
        &["cluster", "dev", "--admin", UNKNOWN_HOST],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn under_memcached_s_name_the_help_is_memcached_s() {
    let folder = temporary("name");
    std::fs::create_dir_all(&folder).expect("a folder");
    let link = folder.join("memcached");
    symlink(env!("CARGO_BIN_EXE_amalgam"), &link).expect("a link");
    let help = Command::new(&link).arg("-h").output().expect("runs");
    let help = text(&help.stdout);
    let version = Command::new(&link).arg("-V").output().expect("runs");
    let wrong = Command::new(&link).arg("--no-such-option").output().expect("runs");
    let refused = Command::new(&link).args(["-u", "root", "-t", "0"]).output().expect("runs");
    std::fs::remove_dir_all(&folder).expect("it is ours");
    assert!(help.starts_with("memcached 1.6."), "{help}");
    assert!(help.contains("Usage: memcached [OPTIONS]\n"), "{help}");
    assert!(!help.contains("amalgam serve"), "{help}");
    assert!(help.trim_end().ends_with("64 wrong usage."), "{help}");
    assert_eq!((wrong.status.code(), refused.status.code()), (Some(64), Some(64)));
    assert!(text(&version.stdout).starts_with("memcached 1.6."));
    let wrong = text(&wrong.stderr);
    assert!(wrong.contains("Usage: memcached [OPTIONS]") && !wrong.contains(" serve"), "{wrong}");
}

#[test]
fn help_tells_defaults_and_topics_and_exit_codes() {
    for (arguments, mentions) in [
        (
            &["serve", "--help"][..],
            &["Network:", "[default: 11211]", "[default: mercury]", "hashpower=NUM"][..],
        ),
        (&["cluster", "node", "--help"], &["Backups:", "[default: 127.0.0.1:7911]"]),
        (&["cluster", "dev", "--help"], &["[default: 5]", "next port"]),
        (&["--help"], &["Exit codes: 0"]),
        (&["cluster", "status", "--help"], &["Security:", "Exit codes: 0"]),
        (&["bench", "server", "--help"], &["Connections:", "--target <HOST:PORT>"]),
        (&["rtl", "--help"], &["amalgam-lab rtl --help"]),
        (&["bench", "index", "--help"], &["amalgam-lab bench index --help"]),
        (&["reproduce", "-h"], &["amalgam-lab reproduce -h"]),
    ] {
        let output = run(arguments);
        // Lines are wrapped where the terminal ends.
        let help = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        for mention in mentions {
            assert!(help.contains(mention), "{arguments:?}: '{mention}' is not in {help}");
        }
    }
    for (arguments, unwanted) in
        [(&["cluster", "drain", "--help"], "--key"), (&["cluster", "dev", "--help"], "--rack")]
    {
        let help = text(&run(arguments).stdout);
        assert!(!help.contains(unwanted), "{help}");
    }
}

/// A terminal, a container's log: where both streams go to one place, each fact is told once.
#[test]
fn a_start_is_told_once() {
    let path = temporary("one-log");
    let log = File::create(&path).expect("a file");
    let mut child = command(ANY_PORT)
        .args(["--admin", "127.0.0.1:0"])
        .stdout(log.try_clone().expect("a descriptor"))
        .stderr(log)
        .spawn()
        .expect("starts");
    let start = Instant::now();
    let written = loop {
        let written = std::fs::read_to_string(&path).expect("text");
        if written.contains("listening on") || start.elapsed() > PATIENCE {
            break written;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    child.kill().expect("runs");
    child.wait().expect("ends");
    std::fs::remove_file(&path).expect("it is ours");
    assert_eq!(written.matches("listening on 127.0.0.1:").count(), 1, "{written}");
    assert_eq!(written.matches("http://127.0.0.1:").count(), 1, "{written}");
    let configuration = written.lines().find(|line| line.contains("effective configuration"));
    let configuration = configuration.expect("a line");
    assert!(configuration.contains(" listen=127.0.0.1 "), "{configuration}");
    assert!(!configuration.contains('\\'), "{configuration}");
}

/// A listener's own protocol, its tag and its mark, as memcached 1.6.45 takes them.
#[test]
fn listeners_may_have_a_protocol_and_a_tag() {
    let addresses = "proto[ascii]:tag[front]:127.0.0.1:0,proto[binary]:tag_b_:127.0.0.1:0";
    let arguments = ["serve", "-u", "root", "-p", "0", "-l", addresses, "-o", "sock_cookie_id=7"];
    let mut child =
        command(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let output = BufReader::new(child.stdout.take().expect("output"));
    let address = |line: std::io::Result<String>| {
        line.expect("text").strip_prefix("listening on ").expect("an address").to_owned()
    };
    let found: Vec<String> = output.lines().take(2).map(address).collect();
    let mut noop = [0; 24];
    (noop[0], noop[1]) = (0x80, 0x0a);
    let answers = |address: &str, sent: &[u8]| {
        let mut stream = TcpStream::connect(address).expect("accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        stream.write_all(sent).expect("sends");
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).is_ok().then_some(answer)
    };
    let of_text = answers(&found[0], b"mn\r\n");
    let of_binary = answers(&found[1], &noop);
    let refused = answers(&found[1], b"mn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\n");
    child.kill().expect("runs");
    child.wait().expect("ends");
    assert_eq!(of_text, Some(*b"MN\r\n"));
    assert_eq!(of_binary.map(|answer| answer[..2] == [0x81, 0x0a]), Some(true));
    assert_ne!(refused, Some(*b"MN\r\n"), "it speaks the binary protocol only");
    for (addresses, mention) in [
        ("proto[ascii", "']' is missing"),
        ("proto[http]:127.0.0.1:0", "no protocol 'http'"),
        ("proto[proxy]:127.0.0.1:0", "no proxy"),
        ("tag[much too long]:127.0.0.1:0", "1 to 8 characters"),
        ("tag_x", "'_' is missing"),
    ] {
        let output = run(&["serve", "-u", "root", "-p", "0", "-l", addresses]);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{addresses}: {errors}");
        assert!(errors.contains(mention), "{addresses}: {errors}");
    }
}

/// Two ports in a row that nobody listens at.
fn free_ports() -> u16 {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    // Below the ports that the system hands out, and seldom the same ones in two runs.
    let first = 20_000 + (std::process::id() % 5_000) as u16;
    (first..first + 5_000)
        .find(|port| is_free(port) && is_free(&(port + 1)))
        .expect("two free ports in a row")
}

#[test]
fn the_ports_of_a_cluster_for_development_follow_from_the_first() {
    let port = free_ports();
    let listen = format!("127.0.0.1:{port}");
    let arguments = ["cluster", "dev", "--nodes", "2", "-p", "0", "-t", "1", "--listen", &listen];
    let cluster = Running::start(&arguments);
    let nodes: Vec<&str> = cluster.nodes.iter().map(|(node, _)| node.as_str()).collect();
    assert_eq!(nodes, [listen.clone(), format!("127.0.0.1:{}", port + 1)]);
    let status = run(&["cluster", "status", "--node", &listen, "--json"]);
    let rows: Vec<serde_json::Value> = text(&status.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let sum: u64 = rows.iter().map(|row| row["partitions"].as_u64().expect("a number")).sum();
    assert_eq!((rows.len(), sum), (2, 4_095), "{rows:?}");
    assert!(rows.iter().all(|row| row["answers"] == true && row["is_super_peer"] == true));
}

#[test]
fn top_and_load_print_json_and_colours() {
    let mut server = command(ANY_PORT);
    server.args(["--admin", "127.0.0.1:0"]);
    let mut child = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("output")).lines();
    let lines: Vec<String> = lines.take(2).map(|line| line.expect("text")).collect();
    let from = lines[0].strip_prefix("listening on ").expect("an address");
    let admin = lines[1].strip_prefix("admin on http://").expect("an address");
    let admin = admin.trim_end_matches('/');
    let status = run(&["top", "--json", admin]);
    let is_colored = |arguments: &[&str], no_color: &str| {
        let output = command(arguments).env("NO_COLOR", no_color).output().expect("runs");
        let shown = text(&output.stdout);
        assert!(shown.contains("HOT KEYS"), "{shown}");
        shown.contains('\u{1b}')
    };
    let colored = [
        is_colored(&["top", "--once", admin], ""),
        is_colored(&["top", "--color", "never", admin], ""),
        is_colored(&["top", "--color", "always", admin], "1"),
    ];
    let target = Process::start(&mut command(ANY_PORT));
    assert_eq!(talk(from, "set k 0 0 1\r\nv\r\n", "STORED\r\n"), "STORED\r\n");
    let to = format!("127.0.0.1:{}", target.port);
    let loaded = run(&["load", "--from", from, "--to", &to, "--json"]);
    child.kill().expect("runs");
    child.wait().expect("ends");
    assert_eq!(colored, [false, false, true], "a pipe is coloured on demand only");
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let fields = ["engine", "version", "uptime_seconds", "commands", "memory", "history"];
    assert!(fields.iter().all(|field| !status[field].is_null()), "{status}");
    let loaded: serde_json::Value = serde_json::from_slice(&loaded.stdout).expect("JSON");
    assert_eq!((&loaded["copied"], &loaded["keys"]), (&1.into(), &1.into()), "{loaded}");
}

/// Targets are looked up before millions of requests are made for them.
#[test]
fn a_bench_looks_its_targets_up_first() {
    for (target, code) in [("nowhere", 2), (UNKNOWN_HOST, 1)] {
        let output = run(&["bench", "server", "--target", target]);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(!errors.contains("generating"), "{errors}");
    }
}

/// The line is printed, and no other program is started, whatever lies in the folder.
#[test]
fn a_command_that_moved_runs_nothing() {
    for arguments in [&["rtl", "--help"][..], &["bench", "index", "--help"], &["reproduce", "-h"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(text(&output.stdout).lines().count(), 1, "{arguments:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}: {}", text(&output.stderr));
    }
}
