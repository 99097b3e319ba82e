//! `watch`: log lines for clients that ask for them.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;

use crate::support::{Running, settings};

/// A watcher that reads its lines.
struct Watcher(BufReader<TcpStream>);

impl Watcher {
    fn new(server: &Running, what: &str) -> Self {
        let mut client = server.connect();
        client.talk(format!("watch{what}\r\n"), "OK\r\n");
        Self(BufReader::new(client.0))
    }

    /// The next line, from its `type` on, without the word.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        let (head, rest) = line.split_once(" type=").unwrap_or_else(|| panic!("{line}"));
        assert!(head.starts_with("ts=") && head.contains(" gid="), "{line}");
        rest.trim_end().to_owned()
    }
}

#[test]
fn watchers_see_reads_stores_and_deletes() {
    let server = Running::start(settings(1));
    let mut watcher = Watcher::new(&server, " fetchers mutations deletions");
    let mut client = server.connect();
    client
        .talk("set a%b 0 0 4\r\nvbar\r\nget a%b\r\n", "STORED\r\nVALUE a%b 0 4\r\nvbar\r\nEND\r\n");
    let line = watcher.line();
    let (line, number) = line.rsplit_once(" cfd=").unwrap();
    assert_eq!(line, "item_get key=a%25b status=not_found clsid=0");
    let (number, size) = number.split_once(' ').unwrap();
    assert_eq!(size, "size=0");
    assert_eq!(
        watcher.line(),
        format!("item_store key=a%25b status=stored cmd=set ttl=0 clsid=1 cfd={number} size=4")
    );
    let read = format!("item_get key=a%25b status=found clsid=1 cfd={number} size=4");
    assert_eq!(watcher.line(), read);
    client.talk("add a%b 0 60 1\r\nx\r\n", "NOT_STORED\r\n");
    assert_eq!(watcher.line(), read);
    assert_eq!(
        watcher.line(),
        format!(
            "item_store key=a%25b status=not_stored cmd=add ttl=60 clsid=1 cfd={number} size=1"
        )
    );
    client.talk("md nothing\r\nmd a%b\r\ndelete a%b\r\n", "NF\r\nHD\r\nNOT_FOUND\r\n");
    assert_eq!(watcher.line(), "deleted key=a%25b cmd=md clsid=1 size=4");
}

#[test]
fn watchers_see_connections_and_why_they_were_closed() {
    let server = Running::start(settings(2));
    let mut watcher = Watcher::new(&server, " connevents");
    for (sent, reason) in [("quit\r\n", "normal"), ("GET / HTTP/1.1\r\n", "error")] {
        let mut client = server.connect();
        let port = client.0.local_addr().unwrap().port();
        client.send(sent);
        assert!(client.rest().is_empty());
        let begun = format!("conn_new rip=127.0.0.1 rport={port} transport=tcp cfd=");
        assert!(watcher.line().starts_with(&begun));
        let ended =
            format!("conn_close rip=127.0.0.1 rport={port} transport=tcp reason={reason} cfd=");
        assert!(watcher.line().starts_with(&ended));
    }
}

#[test]
fn a_watcher_that_does_not_read_skips_lines_and_delays_nobody() {
    let tunables = vec![("watcher_logbuf_size".to_owned(), "4096".to_owned())];
    let server = Running::start(amalgam_server::Settings { tunables, ..settings(1) });
    let mut watcher = Watcher::new(&server, "");
    let mut client = server.connect();
    let key = "k".repeat(250);
    let gets = format!("get {key}\r\n").repeat(1000);
    while client.stat("log_watcher_skipped") == "0" {
        client.talk(&gets, "END\r\n".repeat(1000));
    }
    let mut skipped = String::new();
    while !skipped.starts_with("skipped=") {
        skipped.clear();
        watcher.0.read_line(&mut skipped).expect("a line");
        // Reading makes room for another line, which reports the skipped ones.
        client.talk("get a\r\n", "END\r\n");
    }
    assert!(watcher.line().starts_with("item_get key="));
    assert_ne!(client.stat("log_watcher_sent"), "0");
}

#[test]
fn watchers_are_counted_bounded_and_removed() {
    let server = Running::start(settings(2));
    let mut client = server.connect();
    let mut watchers: Vec<_> = (0..20).map(|_| Watcher::new(&server, " mutations")).collect();
    assert_eq!(client.stat("log_watchers"), "20");
    client.talk("watch\r\n", "WATCHER_TOO_MANY log watcher limit reached\r\n");
    client.talk("watch nothing\r\nmn\r\n", "ERROR\r\nMN\r\n");
    client.talk("mn\r\nwatch\r\n", "MN\r\nERROR cannot pipeline other commands before watch\r\n");
    let full = "WATCHER_TOO_MANY log watcher limit reached\r\nMN\r\n";
    client.talk("watch\r\nmn\r\n", full);
    watchers.truncate(1);
    while client.stat("log_watchers") != "1" {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    client.talk("set a 0 0 1\r\nx\r\n", "STORED\r\n");
    assert!(watchers[0].line().starts_with("item_store key=a "));
    let mute = Running::start(amalgam_server::Settings { allows_watch: false, ..settings(1) });
    mute.connect().talk("watch\r\n", "CLIENT_ERROR watch commands not allowed\r\n");
}
