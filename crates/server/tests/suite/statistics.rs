//! `stats` and item dumps, as clients read them.

use std::io::Read;
use std::net::TcpStream;
use std::time::Instant;

use amalgam_index::Mercury;
use amalgam_server::Settings;

use crate::support::{Client, PATIENCE, Running, settings};

/// Sends a command and reads the answer up to `end`.
fn ask(client: &mut Client<TcpStream>, command: &str, end: &str) -> String {
    client.send(format!("{command}\r\n"));
    read_to(client, end)
}

fn read_to(client: &mut Client<TcpStream>, end: &str) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(end.as_bytes()) {
        client.0.read_exact(&mut byte).expect("an answer");
        text.push(byte[0]);
    }
    String::from_utf8(text).expect("text")
}

/// The names that memcached 1.6.45 reports for `stats` when started without options.
const GENERAL: &str = "pid uptime time version libevent pointer_size rusage_user rusage_system \
    max_connections curr_connections total_connections rejected_connections connection_structures \
    response_obj_oom response_obj_count response_obj_bytes read_buf_count read_buf_bytes \
    read_buf_bytes_free read_buf_oom reserved_fds cmd_get cmd_set cmd_flush cmd_touch cmd_meta \
    get_hits get_misses get_expired get_flushed delete_misses delete_hits incr_misses incr_hits \
    decr_misses decr_hits cas_misses cas_hits cas_badval touch_hits touch_misses store_too_large \
    store_no_memory auth_cmds auth_errors bytes_read bytes_written limit_maxbytes accepting_conns \
    listen_disabled_num time_in_listen_disabled_us threads conn_yields hash_power_level hash_bytes \
    hash_is_expanding slab_reassign_rescues slab_reassign_chunk_rescues \
    slab_reassign_inline_reclaim slab_reassign_busy_items slab_reassign_busy_deletes \
    slab_reassign_busy_nomem slab_reassign_last_busy_status slab_reassign_running slabs_moved \
    lru_crawler_running lru_crawler_starts lru_maintainer_juggles malloc_fails log_worker_dropped \
    log_worker_written log_watcher_skipped log_watcher_sent log_watchers unexpected_napi_ids \
    round_robin_fallback bytes curr_items total_items slab_global_page_pool expired_unfetched \
    evicted_unfetched evicted_active evictions reclaimed crawler_reclaimed crawler_items_checked \
    lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru direct_reclaims \
    lru_bumps_dropped";

fn names(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("STAT ")?.split_once(' ').map(|(name, _)| name))
        .collect()
}

#[test]
fn general_statistics_have_memcacheds_names_in_memcacheds_order() {
    let server = Running::start(settings(1));
    let text = ask(&mut server.connect(), "stats", "END\r\n");
    let expected: Vec<_> = GENERAL.split_whitespace().collect();
    assert_eq!(names(&text), expected);
}

/// Asks each worker for the counts of the other, and for those of a closed connection.
#[test]
fn answered_requests_are_counted_when_another_worker_is_asked() {
    let server = Running::start(settings(2));
    let mut clients = [server.connect(), server.connect()];
    for round in 1..=300 {
        let [one, other] = &mut clients;
        one.talk("get a\r\n", "END\r\n");
        assert_eq!(other.stat("cmd_get"), round.to_string());
        let mut leaving = server.connect();
        leaving.send("quit\r\n");
        assert_eq!(leaving.rest(), b"");
        assert_eq!(one.stat("curr_connections"), "2", "round {round}");
        clients.reverse();
    }
}

#[test]
fn misses_on_expired_and_flushed_items_are_distinguished() {
    let server = Running::start(settings(1));
    let mut client = server.connect();
    // Maintenance may reclaim an item before the get that is to find it dead.
    let is_counted = |client: &mut Client<_>, name| client.stat(name) != "0";
    let mut rounds = 0;
    while rounds == 0
        || !is_counted(&mut client, "get_expired")
        || !is_counted(&mut client, "get_flushed")
    {
        rounds += 1;
        assert!(rounds < 100, "expired and flushed items are plain misses");
        client.talk("set a 0 2678400 1\r\nx\r\nget a\r\n", "STORED\r\nEND\r\n");
        let flush = "set b 0 0 1\r\nx\r\nflush_all\r\nget b nothing\r\n";
        client.talk(flush, "STORED\r\nOK\r\nEND\r\n");
        assert_eq!(client.stat("get_misses"), (3 * rounds).to_string());
    }
    client.talk("stats reset\r\n", "RESET\r\n");
    assert_eq!(client.stat("get_expired"), "0");
    assert_eq!(client.stat("total_items"), "0");
}

#[test]
fn details_are_counted_when_switched_on() {
    let server = Running::start(settings(1));
    let mut client = server.connect();
    client.talk("set a:1 0 0 1\r\nx\r\nstats detail dump\r\n", "STORED\r\nEND\r\n");
    client.talk("stats detail on\r\nget a:1 a:2\r\n", "OK\r\nVALUE a:1 0 1\r\nx\r\nEND\r\n");
    client.talk("set b:1 0 0 1\r\nx\r\ndelete a:1\r\nget b\r\n", "STORED\r\nDELETED\r\nEND\r\n");
    client.talk(
        "stats detail dump\r\n",
        "PREFIX a get 2 hit 1 set 0 del 1\r\nPREFIX b get 0 hit 0 set 1 del 0\r\nEND\r\n",
    );
    client.talk("stats detail off\r\nget a:1\r\nstats reset\r\n", "OK\r\nEND\r\nRESET\r\n");
    client.talk("stats detail dump\r\nstats detail\r\n", "END\r\n");
    client.expect("CLIENT_ERROR usage: stats detail on|off|dump\r\n");
}

#[test]
fn connections_are_listed_with_their_states() {
    let server = Running::start(settings(2));
    let (mut waiting, mut client) = (server.connect(), server.connect());
    waiting.talk("mn\r\nset a 0 0 10\r\n", "MN\r\n");
    let own = client.0.local_addr().unwrap();
    let mut text = ask(&mut client, "stats conns", "END\r\n");
    // A connection's state is noted after its answer was sent.
    let begin = Instant::now();
    while !text.contains(":state conn_nread\r\n") && begin.elapsed() < PATIENCE {
        text = ask(&mut client, "stats conns", "END\r\n");
    }
    let place = format!("addr tcp:127.0.0.1:{}", server.port);
    assert!(text.contains(&format!(":{place}\r\n")), "{text}");
    assert!(text.contains(&format!(":listen_{place}\r\n")), "{text}");
    assert!(text.contains(&format!(":addr tcp:{own}\r\n")), "{text}");
    for state in ["conn_listening", "conn_nread", "conn_parse_cmd"] {
        assert_eq!(text.matches(&format!(":state {state}\r\n")).count(), 1, "{state}: {text}");
    }
}

#[test]
fn evictions_of_items_that_expire_are_counted_separately() {
    let memory_bytes = 8 << 20;
    let server = Running::start_with::<Mercury>(Settings { memory_bytes, ..settings(1) });
    let mut client = server.connect();
    let value = "v".repeat(66_560);
    let sum = |text: &str, name: &str| -> u64 {
        let rows = text.lines().filter_map(|line| line.split_once(&format!(":{name} ")));
        rows.map(|(_, count)| count.parse::<u64>().expect("a number")).sum()
    };
    // There is memory for about 100 items: items that expire first evict those that do not.
    for (ttl_seconds, mortal_range) in [(0, 0..=0), (600, 50..=150)] {
        for number in 0..200 {
            client.send(format!("set k{ttl_seconds}-{number} 0 {ttl_seconds} 66560 noreply\r\n"));
            client.send(&value);
            client.send("\r\n");
        }
        let text = ask(&mut client, "stats items", "END\r\n");
        let (evicted, mortal) = (sum(&text, "evicted"), sum(&text, "evicted_nonzero"));
        assert!(evicted >= 50 && mortal_range.contains(&mortal), "{mortal} of {evicted}");
    }
}

/// The keys in the lines of a dump that begin with `before`, sorted.
fn listed(text: &str, before: &str) -> Vec<String> {
    let key = |line: &str| Some(line.strip_prefix(before)?.split(' ').next()?.to_owned());
    let mut keys: Vec<_> = text.lines().filter_map(key).collect();
    keys.sort();
    keys
}

#[test]
fn dumps_list_every_live_item_while_others_write() {
    let server = Running::start(settings(2));
    let (mut writer, mut client) = (server.connect(), server.connect());
    let count = 20_000;
    for number in 0..count {
        writer.send(format!("set stays{number:05} 7 0 2 noreply\r\nok\r\n"));
    }
    writer.talk("set dead 0 -1 1\r\nx\r\nmn\r\n", "STORED\r\nMN\r\n");
    client.send("lru_crawler metadump all\r\nnonsense\r\n");
    for number in 0..2000 {
        writer.send(format!("set comes{number} 0 0 2 noreply\r\nok\r\n"));
    }
    let text = read_to(&mut client, "END\r\n");
    assert!(text.starts_with("OK\r\n"));
    assert!(text.contains(" exp=-1 la="), "{}", &text[..200]);
    assert!(text.contains(" fetch=no cls=1 size=75 flags=7 \n"), "{}", &text[..200]);
    let mut keys = listed(&text, "key=");
    assert!(!keys.contains(&"dead".to_owned()));
    keys.retain(|key| key.starts_with("stays"));
    keys.dedup();
    assert_eq!(keys.len(), count);
    // Requests behind the dump are answered once it has ended.
    client.expect("ERROR\r\n");
    let text = ask(&mut client, "lru_crawler mgdump hash", "EN\r\n");
    let mut keys = listed(&text, "mg ");
    keys.retain(|key| key.starts_with("stays"));
    keys.dedup();
    assert_eq!(keys.len(), count);
    let text = ask(&mut client, "stats cachedump 1 5", "END\r\n");
    assert_eq!(listed(&text, "ITEM ").len(), 5);
    assert!(text.contains(" [2 b; 0 s]\r\n"));
}

#[test]
fn dumps_are_refused_where_memcached_refuses_them() {
    let server = Running::start(settings(1));
    let mut client = server.connect();
    client.talk("mg a v\r\nlru_crawler metadump all\r\n", "EN\r\n");
    client.expect("ERROR cannot pipeline other commands before metadump\r\n");
    client.talk("lru_crawler metadump 0\r\n", "BADCLASS invalid class id\r\n");
    client.talk("lru_crawler disable\r\nlru_crawler mgdump all\r\n", "OK\r\n");
    client.expect("CLIENT_ERROR lru crawler disabled\r\n");
    client.talk("stats cachedump 1\r\n", "CLIENT_ERROR bad command line\r\n");
    client.talk("stats cachedump 64 1\r\n", "CLIENT_ERROR Illegal slab id\r\n");
    client.talk("slabs automove x\r\n", "CLIENT_ERROR bad command line format\r\n");
    client.talk("slabs reassign 1 1\r\n", "SAME src and dst class are identical\r\n");
    client.talk("lru tune 10 20 0.5 1\r\nlru tune 50 50 1 1\r\n", "OK\r\n");
    client.expect("ERROR hot and warm pcts must not exceed 80\r\n");
    let text = ask(&mut client, "stats settings", "END\r\n");
    assert!(text.contains("STAT hot_lru_pct 10\r\n") && text.contains("STAT warm_lru_pct 20\r\n"));
    assert!(text.contains("STAT lru_crawler no\r\n"));
    let strict = crate::support::Running::start(amalgam_server::Settings {
        allows_dump: false,
        ..settings(1)
    });
    let mut client = strict.connect();
    client.talk("lru_crawler mgdump all\r\n", "ERROR key dump not allowed\r\n");
    client.talk("stats cachedump 1 1\r\n", "CLIENT_ERROR stats cachedump not allowed\r\n");
    client.talk("stats detail on\r\n", "CLIENT_ERROR stats detail not allowed\r\n");
}

#[test]
fn the_crawler_removes_dead_items() {
    let server = Running::start(settings(1));
    let mut client = server.connect();
    client.talk("set a 0 -1 1\r\nx\r\nset b 0 0 1\r\nx\r\n", "STORED\r\nSTORED\r\n");
    client.talk("lru_crawler crawl all\r\n", "OK\r\n");
    while client.stat("lru_crawler_running") != "0" {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(client.stat("lru_crawler_starts"), "1");
    assert_eq!(client.stat("curr_items"), "1");
}
