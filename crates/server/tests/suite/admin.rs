//! The admin address: its answers, its refusals, and its shutdown.

use std::collections::{BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use amalgam_server::Settings;
use serde_json::{Value, json};

use crate::support::{Running, settings};

fn with_admin() -> Settings {
    Settings { admin: Some(SocketAddr::from(([127, 0, 0, 1], 0))), ..settings(2) }
}

/// Sends a raw request and reads the response to its end.
fn exchange(server: &Running, request: &str) -> String {
    let address = server.admin.expect("an admin address");
    let mut stream = TcpStream::connect(address).expect("accepts");
    stream.set_read_timeout(Some(crate::support::PATIENCE)).expect("a timeout");
    stream.write_all(request.as_bytes()).expect("sends");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

fn get(server: &Running, path: &str) -> (String, String) {
    let answer = exchange(server, &format!("GET {path} HTTP/1.1\r\nHost: localhost:1\r\n\r\n"));
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let length = format!("Content-Length: {}\r\n", body.len());
    assert!(head.contains(&length), "{head}");
    (head.lines().next().expect("a status").to_owned(), body.to_owned())
}

/// The value of a metric series.
fn sample(text: &str, series: &str) -> f64 {
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {series} in {text}")).parse().expect("a number")
}

#[test]
fn metrics_count_what_clients_did() {
    let server = Running::start(with_admin());
    let mut client = server.connect();
    client.talk("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    client.talk("get a b\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    // Counts of a batch are published at its end: this request makes sure that the batches before
    // are counted.
    client.talk("stats reset\r\n", "RESET\r\n");
    let (status, text) = get(&server, "/metrics");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert_eq!(sample(&text, "amalgam_commands_total{command=\"get\"}"), 2.0);
    assert_eq!(sample(&text, "amalgam_commands_total{command=\"set\"}"), 1.0);
    let hits = "amalgam_lookups_total{command=\"get\",result=\"hit\"}";
    assert_eq!(sample(&text, hits), 1.0);
    assert_eq!(sample(&text, "amalgam_items"), 1.0);
    assert_eq!(sample(&text, "amalgam_connections"), 1.0);
    assert!(sample(&text, "process_resident_memory_bytes") > 0.0);
    let open_files = sample(&text, "process_open_fds");
    // The client's socket and the listeners are among them.
    assert!((3.0..=sample(&text, "process_max_fds")).contains(&open_files), "{open_files}");
}

#[test]
fn health_is_reported() {
    let server = Running::start(with_admin());
    assert_eq!(get(&server, "/healthz"), ("HTTP/1.1 200 OK".into(), "alive\n".into()));
    assert_eq!(get(&server, "/readyz"), ("HTTP/1.1 200 OK".into(), "ready\n".into()));
    assert_eq!(get(&server, "/nothing").0, "HTTP/1.1 404 Not Found");
    let head = exchange(&server, "HEAD /healthz HTTP/1.1\r\n\r\n");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn invalid_and_foreign_requests_are_refused() {
    let server = Running::start(with_admin());
    for (request, status) in [
        ("POST /metrics HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi", "405"),
        ("get a\r\n\r\n", "400"),
        ("GET /metrics HTTP/1.1\r\nHost: rebound.example.com\r\n\r\n", "403"),
    ] {
        let answer = exchange(&server, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    let endless = format!("GET /{} HTTP/1.1\r\n", "a".repeat(20_000));
    assert!(exchange(&server, &endless).starts_with("HTTP/1.1 431 "));
}

#[test]
fn all_but_the_health_needs_a_password_if_there_are_users() {
    let path = std::env::temp_dir().join(format!("amalgam-admin-users-{}", std::process::id()));
    std::fs::write(&path, "ann:secret\nbob:b:c\n").expect("a file");
    let admin_users_file = Some(path.clone());
    let server = Running::start(Settings { admin_users_file, ..with_admin() });
    let ask = |path: &str, pair: &str| {
        let mut coded = Vec::new();
        amalgam_server::append_base64(&mut coded, pair.as_bytes());
        let coded = String::from_utf8(coded).expect("base64");
        let field = format!("Authorization: Basic {coded}\r\n");
        exchange(&server, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{field}\r\n"))
    };
    for path in ["/", "/page.js", "/metrics", "/api/status", "/api/hotkeys", "/api/history", "/x"] {
        let refused = exchange(&server, &format!("GET {path} HTTP/1.1\r\n\r\n"));
        assert!(refused.starts_with("HTTP/1.1 401 "), "{path}: {refused}");
        assert!(refused.contains("\r\nWWW-Authenticate: Basic realm="), "{refused}");
        assert!(!refused.contains("amalgam_"), "{refused}");
    }
    for (pair, status) in
        [("ann:secret", 200), ("bob:b:c", 200), ("ann:b:c", 401), ("ann:secret2", 401)]
    {
        let answer = ask("/metrics", pair);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{pair}: {answer}");
    }
    assert_eq!(get(&server, "/healthz").0, "HTTP/1.1 200 OK");
    assert_eq!(get(&server, "/readyz").0, "HTTP/1.1 200 OK");
    std::fs::remove_file(path).expect("a file");
}

#[test]
fn wrong_passwords_keep_nobody_out() {
    /// More than anybody waits for, if each took the time of a wrong password.
    const GUESSES: usize = 2_000;
    let path = std::env::temp_dir().join(format!("amalgam-admin-guess-{}", std::process::id()));
    std::fs::write(&path, "ann:secret\n").expect("a file");
    let admin_users_file = Some(path.clone());
    let server = Running::start(Settings { admin_users_file, ..with_admin() });
    let address = server.admin.expect("an admin address");
    let (ended, end) = std::sync::mpsc::channel();
    let guessing = std::thread::spawn(move || {
        let mut guesses = VecDeque::new();
        for _ in 0..GUESSES {
            let mut stream = TcpStream::connect(address).expect("accepts");
            // The server may have closed it for another.
            let _ = write!(stream, "GET / HTTP/1.1\r\nAuthorization: Basic YW5uOng=\r\n\r\n");
            guesses.push_back(stream);
            // Those that stay are more than are served at once.
            if guesses.len() > 100 {
                guesses.pop_front();
            }
        }
        // The test may have failed.
        let _ = ended.send(guesses);
    });
    let guesses = end.recv_timeout(crate::support::PATIENCE).expect("one gives way to the next");
    assert_eq!(get(&server, "/healthz").0, "HTTP/1.1 200 OK");
    drop(guesses);
    guessing.join().expect("it is over");
    std::fs::remove_file(path).expect("a file");
}

#[test]
fn silent_clients_delay_neither_others_nor_the_shutdown() {
    let server = Running::start(with_admin());
    let address = server.admin.expect("an admin address");
    let silent: Vec<_> = (0..8).map(|_| TcpStream::connect(address).expect("accepts")).collect();
    assert_eq!(get(&server, "/healthz").0, "HTTP/1.1 200 OK");
    server.stopper.stop();
    server.join();
    drop(silent);
}

#[test]
fn hot_keys_are_listed_for_clients_and_for_the_operator() {
    let server = Running::start(with_admin());
    let mut client = server.connect();
    let mut listed = String::new();
    // The list covers the last seconds, which may pass on a slow machine before it is asked for.
    for _ in 0..100 {
        for _ in 0..16 {
            client.send("mg <b>\u{e9}\r\nget a a a a\r\n".repeat(64));
            client.expect("EN\r\nEND\r\n".repeat(64));
        }
        client.send("stats hotkeys\r\n");
        listed = client.until("END\r\n");
        if listed.lines().count() >= 3 {
            break;
        }
    }
    let rows: Vec<Vec<_>> = listed.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(rows[0][..2], ["STAT", "a"], "{listed}");
    assert_eq!(rows[1][..2], ["STAT", "%3Cb%3E%C3%A9"], "{listed}");
    let share: f64 = rows[0][2].parse().expect("a share");
    let error: f64 = rows[0][3].parse().expect("an error bound");
    assert!((share - 0.8).abs() < 0.2 && error < 0.3, "{listed}");
    let (_, text) = get(&server, "/api/hotkeys");
    assert!(text.starts_with("[{") || text == "[]\n", "{text}");
}

#[test]
fn a_hot_key_shows_the_length_of_its_value_and_is_not_read_by_that() {
    let server = Running::start(with_admin());
    let mut client = server.connect();
    client.talk("ms a 300\r\n", "");
    client.send("x".repeat(300) + "\r\n");
    client.expect("HD\r\n");
    // The list covers the last seconds, which may pass on a slow machine before it is asked for.
    for _ in 0..100 {
        // Quiet reads, which do not count as uses of the item either.
        client.send("mg a u q k\r\nmg b u q k\r\n".repeat(1000) + "mn\r\n");
        client.until("MN\r\n");
        let hot = json(&get(&server, "/api/hotkeys").1);
        let of = |key| hot.as_array().and_then(|all| all.iter().find(|hot| hot["key"] == key));
        if let (Some(stored), Some(missing)) = (of("a"), of("b")) {
            assert_eq!(
                [&stored["value_bytes"], &missing["value_bytes"]],
                [&json!(300), &Value::Null]
            );
            client.talk("mg a h u\r\n", "HD h0\r\n");
            return;
        }
    }
    panic!("the keys are not listed");
}

#[test]
fn misses_with_other_memory_sizes_are_shown_once_enough_was_read() {
    let server = Running::start(with_admin());
    let mut client = server.connect();
    client.send("stats mrc\r\n");
    assert!(client.until("END\r\n").contains("STAT mrc:state too_few_requests\r\n"));
    assert!(!get(&server, "/metrics").1.contains("amalgam_mrc_miss_ratio"));
    // Half of the keys are stored, and each is read twice: one read in two misses, whatever the
    // memory.
    for start in (0..160_000).step_by(1000) {
        let keys = start..start + 1000;
        let set = |key: i32| format!("set k{key} 0 0 1 noreply\r\nx\r\n");
        let mg = |key: i32| format!("mg k{key}\r\n").repeat(2);
        let sets: String = keys.clone().step_by(2).map(set).collect();
        let reads: String = keys.map(mg).collect();
        client.send(format!("{sets}{reads}"));
        client.expect("HD\r\nHD\r\nEN\r\nEN\r\n".repeat(500));
    }
    client.send("stats mrc\r\n");
    let shown = client.until("END\r\n");
    let value = |name: &str| -> f64 {
        let value = shown.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name));
        value.unwrap_or_else(|| panic!("no {name}: {shown}")).trim().parse().expect("a number")
    };
    assert!(shown.contains("STAT mrc:state ready\r\n"), "{shown}");
    for size in ["1/4", "1/2", "3/4", "1", "3/2", "2", "3", "4"] {
        let ratio = value(&format!("mrc:{size}:miss_ratio"));
        assert!((ratio - 0.5).abs() < 0.01, "{shown}");
    }
    assert!(value("mrc:sampled_keys") > 100.0 && value("mrc:rate") < 0.1, "{shown}");
    let metrics = get(&server, "/metrics").1;
    assert!((sample(&metrics, "amalgam_mrc_miss_ratio{memory=\"0.25\"}") - 0.5).abs() < 0.01);
    assert!(get(&server, "/api/status").1.contains("\"state\":\"ready\""));
    client.talk("stats reset\r\n", "RESET\r\n");
    client.send("stats mrc\r\n");
    assert!(client.until("END\r\n").contains("STAT mrc:state too_few_requests\r\n"));
}

#[test]
fn misses_with_other_memory_sizes_are_not_estimated_if_nobody_wants_that() {
    for settings in [
        Settings { estimates_misses: false, ..with_admin() },
        Settings { evicts: false, ..with_admin() },
    ] {
        let server = Running::start(settings);
        server.connect().talk("get a\r\nstats mrc\r\n", "END\r\nERROR\r\n");
        assert!(!get(&server, "/metrics").1.contains("_mrc_"));
    }
}

#[test]
fn hot_keys_are_hidden_if_keys_may_not_be_listed() {
    let server = Running::start(Settings { allows_dump: false, ..with_admin() });
    let mut client = server.connect();
    client.talk("get a\r\nstats hotkeys\r\n", "END\r\nERROR\r\n");
    assert_eq!(get(&server, "/api/hotkeys").1, "null\n");
}

#[test]
fn the_page_has_all_its_assets() {
    let server = Running::start(with_admin());
    let (_, page) = get(&server, "/");
    let quoted = page.split('"').filter(|text| text.starts_with('/') || text.contains("//"));
    let mut count = 0;
    for asset in quoted {
        let (status, body) = get(&server, asset);
        assert_eq!(status, "HTTP/1.1 200 OK", "{asset}");
        assert!(!body.is_empty(), "{asset}");
        count += 1;
    }
    assert!(count >= 4, "{page}");
    let (_, status) = get(&server, "/api/status");
    for name in ["history", "hot_keys", "classes", "lengths", "commands_per_second"] {
        assert!(status.contains(&format!("\"{name}\":")), "{name} in {status}");
    }
    // The page draws the last minutes and the last day from the same columns.
    let (_, day) = get(&server, "/api/history");
    let (status, day) = (json(&status), json(&day));
    let columns = |history: &Value| -> BTreeSet<String> {
        history.as_object().expect("an object").keys().cloned().collect()
    };
    assert_eq!(columns(&status["history"]), columns(&day));
    assert_eq!([&day["seconds_per_point"], &status["history"]["seconds_per_point"]], [60, 1]);
    let (_, script) = get(&server, "/page.js");
    for (_, column) in
        script.match_indices("column: \"").map(|(at, of)| script[at..].split_at(of.len()))
    {
        let column = column.split('"').next().expect("a name");
        assert!(columns(&day).contains(column), "the page draws {column}");
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("a JSON document")
}

/// The names in a text that start with `amalgam_`.
fn metrics_of(text: &str) -> BTreeSet<&str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.split(|letter| !is_part(letter)).filter(|word| word.starts_with("amalgam_")).collect()
}

#[test]
fn dashboard_and_alerts_use_existing_metrics() {
    let server = Running::start(with_admin());
    let (_, text) = get(&server, "/metrics");
    let known = metrics_of(&text);
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    for file in ["grafana/amalgam.json", "prometheus/alerts.yml"] {
        let asked = std::fs::read_to_string(packaging.join(file)).expect("a file");
        // What follows is about nodes of a cluster, whose test is in `amalgam`.
        let asked = asked.split("- alert: AmalgamNode").next().expect("a part");
        let names = metrics_of(asked);
        assert!(names.len() > 3, "{file}: {names:?}");
        for name in names {
            assert!(known.contains(name), "{file} asks for {name}");
        }
    }
}

#[test]
fn trickling_clients_keep_nobody_out_and_do_not_delay_the_end() {
    /// More than are served at once.
    const TRICKLING: usize = 20;
    let server = Running::start(with_admin());
    let address = server.admin.expect("an admin address");
    // A client that asks before they are connected may be the oldest, and give way to them.
    let are_connected = &Barrier::new(TRICKLING + 1);
    // Every other one has sent a whole request, and trickles behind it.
    let trickle = |number: usize| {
        let mut stream = TcpStream::connect(address).expect("accepts");
        let rest = if number.is_multiple_of(2) { "" } else { "Host: localhost\r\n\r\n" };
        let _ = write!(stream, "GET /metrics HTTP/1.1\r\n{rest}");
        are_connected.wait();
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    std::thread::scope(|scope| {
        for number in 0..TRICKLING {
            scope.spawn(move || trickle(number));
        }
        are_connected.wait();
        for _ in 0..20 {
            assert_eq!(get(&server, "/healthz").0, "HTTP/1.1 200 OK");
        }
        let (ended, end) = std::sync::mpsc::channel();
        scope.spawn(move || {
            drop(server);
            let _ = ended.send(());
        });
        end.recv_timeout(crate::support::PATIENCE).expect("the server ends while clients trickle");
    });
}
