//! Formatting of numbers, and the whole screen as plain text for output that is not a terminal.

use std::fmt::Write as _;

use serde_json::Value;

use super::hosts::Host;
use crate::color::{Ink, Palette};

/// The number of past values in a chart.
const POINTS: usize = 60;

/// The number of hot keys that are shown, and the number of characters of each.
const KEYS: usize = 12;
const KEY_COLUMNS: usize = 34;

/// The number at a path, or 0 if there is none.
pub fn number(status: &Value, path: &str) -> f64 {
    status.pointer(path).and_then(Value::as_f64).unwrap_or(0.0)
}

/// The history of a number, oldest first.
pub fn column<'s>(status: &'s Value, name: &str) -> &'s [Value] {
    let values = status["history"][name].as_array();
    values.map_or(&[], Vec::as_slice)
}

/// The latest value of a number's history.
pub fn latest(status: &Value, name: &str) -> Option<f64> {
    column(status, name).last().and_then(Value::as_f64)
}

/// A number with at most four digits and its unit.
pub fn short(number: f64) -> String {
    match number {
        number if number >= 1e9 => format!("{:.2} G", number / 1e9),
        number if number >= 1e6 => format!("{:.2} M", number / 1e6),
        number if number >= 1e4 => format!("{:.1} k", number / 1e3),
        number => format!("{number:.0}"),
    }
}

/// A number of bytes for people, with its unit.
pub fn bytes(number: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = units.len() - 1;
    let unit = (0..power).find(|unit| number < 1024_f64.powi(*unit as i32 + 1)).unwrap_or(power);
    let digits = usize::from(unit > 0);
    format!("{:.digits$} {}", number / 1024_f64.powi(unit as i32), units[unit])
}

/// The length of a hot key's value.
pub fn value_size(hot: &Value) -> String {
    hot["value_bytes"].as_f64().map_or_else(|| "–".into(), bytes)
}

/// A time with its unit.
pub fn duration(microseconds: Option<f64>) -> String {
    match microseconds {
        None => "–".into(),
        Some(time) if time < 1e3 => format!("{time:.0} µs"),
        Some(time) if time < 1e6 => format!("{:.1} ms", time / 1e3),
        Some(time) => format!("{:.1} s", time / 1e6),
    }
}

/// A time of seconds to days, with its unit.
pub fn long_duration(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7_200.0 => format!("{:.0} min", (seconds / 60.0).floor()),
        seconds if seconds < 172_800.0 => format!("{:.0} h", (seconds / 3_600.0).floor()),
        seconds => format!("{:.0} days", (seconds / 86_400.0).floor()),
    }
}

/// A share for people, in percent.
pub fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "–".into(), |share| format!("{:.1} %", 100.0 * share))
}

/// Text that came over the network, without what a terminal would obey.
pub fn tame(value: &Value) -> String {
    let text = value.as_str().unwrap_or("?");
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// A hot key as clients write it: without its percent-encoding, if that leaves printable text.
pub fn hot_key(hot: &Value) -> String {
    let key = tame(&hot["key"]);
    // Some characters that are not shown change how others are, such as the order of letters.
    let is_hidden =
        |letter: char| matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{206f}');
    let is_plain =
        |text: &String| !text.chars().any(|letter| letter.is_control() || is_hidden(letter));
    decoded(&key).filter(is_plain).unwrap_or(key)
}

/// The text without its percent-encoding; `None` if it is malformed, or no UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, behind @ ..] = rest {
        rest = behind;
        if *byte == b'%' {
            let (digits, behind) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = behind;
        } else {
            bytes.push(*byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// The head of a table of servers; [`summary`] has its columns.
pub const SUMMARY_HEAD: [&str; SUMMARY_COLUMNS] = [
    "engine",
    "requests/s",
    "hit ratio",
    "99 %",
    "evicted/s",
    "memory",
    "used",
    "clients",
    "cores",
];

/// The columns of [`summary`].
pub const SUMMARY_COLUMNS: usize = 9;

/// The numbers of a server in a line.
pub fn summary(status: &Value) -> [String; SUMMARY_COLUMNS] {
    let rate = |name| latest(status, name).map_or_else(|| "–".into(), short);
    let (used, limit) = (number(status, "/memory/used"), number(status, "/memory/limit"));
    [
        tame(&status["engine"]),
        rate("commands_per_second"),
        percent(latest(status, "hit_ratio")),
        duration(latest(status, "p99_us")),
        rate("evictions_per_second"),
        bytes(limit),
        percent((limit > 0.0).then(|| used / limit)),
        short(number(status, "/connections/open")),
        latest(status, "cpu_cores").map_or_else(|| "–".into(), |cores| format!("{cores:.2}")),
    ]
}

/// The sums over all servers that answer.
pub fn sums(hosts: &[Host]) -> String {
    let answering = || hosts.iter().filter(|host| host.problem.is_none()).map(|host| &host.status);
    let rate = |name| answering().filter_map(|status| latest(status, name)).sum::<f64>();
    let total = |path| answering().map(|status| number(status, path)).sum::<f64>();
    format!(
        "{} of {} servers   {} requests/s   {} items in {} of {}   {} evicted/s",
        answering().count(),
        hosts.len(),
        short(rate("commands_per_second")),
        short(total("/index/items")),
        bytes(total("/memory/used")),
        bytes(total("/memory/limit")),
        short(rate("evictions_per_second")),
    )
}

/// Several servers, one a line, and their sums.
pub fn table(hosts: &[Host], palette: Palette) -> String {
    let name_columns = hosts.iter().map(|host| host.name.chars().count()).max().unwrap_or(0).max(6);
    let line = |name: &str, cells: &[String]| -> String {
        let mut line = format!("{name:<name_columns$}  {:<9}", cells[0]);
        cells[1..].iter().for_each(|cell| line.push_str(&format!(" {cell:>10}")));
        line
    };
    let head = line("SERVER", &SUMMARY_HEAD.map(str::to_uppercase));
    let mut text = palette.paint(&head, Ink::Bold) + "\n";
    for host in hosts {
        // Writing to a string does not fail.
        let _ = match &host.problem {
            None => writeln!(text, "{}", line(&host.name, &summary(&host.status))),
            Some(_) => {
                let missing = palette.paint("does not answer", Ink::Red);
                writeln!(text, "{:<name_columns$}  {missing}", host.name)
            }
        };
    }
    text + "\n" + &sums(hosts) + "\n"
}

/// The whole picture of a server, at most 80 columns wide.
pub fn screen(status: &Value, palette: Palette) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{}  {}  version {}  up {}\n",
        palette.paint("Amalgam", Ink::Bold),
        tame(&status["engine"]),
        tame(&status["version"]),
        long_duration(number(status, "/uptime_seconds"))
    );
    let memory = number(status, "/memory/used");
    let _ = writeln!(
        text,
        "items {}   memory {} of {}   connections {} of {}   threads {}\n",
        short(number(status, "/index/items")),
        bytes(memory),
        bytes(number(status, "/memory/limit")),
        short(number(status, "/connections/open")),
        short(number(status, "/connections/limit")),
        number(status, "/threads")
    );
    let mut chart = |name, title, ink, tell: fn(Option<f64>) -> String| {
        let (now, bars) = (tell(latest(status, name)), palette.paint(&bars(status, name), ink));
        let _ = writeln!(text, "{title:<10} {now:>8}  {bars}");
    };
    let rate = |value: Option<f64>| value.map_or_else(|| "–".into(), short);
    chart("commands_per_second", "requests/s", Ink::Cyan, rate);
    chart("hit_ratio", "hit ratio", Ink::Green, percent);
    chart("evictions_per_second", "evicted/s", Ink::Red, rate);
    chart("p50_us", "median", Ink::Blue, duration);
    chart("p99_us", "99 %", Ink::Magenta, duration);
    hot_keys(&mut text, status, palette);
    engine(&mut text, status, palette);
    text
}

/// A number's last minute as a row of bars.
fn bars(status: &Value, name: &str) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values = column(status, name);
    let shown = &values[values.len().saturating_sub(POINTS)..];
    let most = shown.iter().filter_map(Value::as_f64).fold(0.0, f64::max);
    let bar = |value: &Value| match value.as_f64() {
        Some(value) if most > 0.0 => BARS[((value / most * 7.0).round() as usize).min(7)],
        Some(_) => BARS[0],
        None => ' ',
    };
    let bars: String = shown.iter().map(bar).collect();
    format!("{bars:>POINTS$}")
}

fn hot_keys(text: &mut String, status: &Value, palette: Palette) {
    let Some(keys) = status["hot_keys"].as_array() else { return };
    let head = format!(
        "{:<KEY_COLUMNS$} {:>9}  {:>10} {:>9} {:>9}",
        "HOT KEYS", "SHARE", "ERROR", "A SECOND", "VALUE"
    );
    let _ = writeln!(text, "\n{}", palette.paint(&head, Ink::Bold));
    for hot in keys.iter().take(KEYS) {
        let key: String = hot_key(hot).chars().take(KEY_COLUMNS).collect();
        let share = 100.0 * number(hot, "/share");
        let error = 100.0 * number(hot, "/error");
        let rate = hot["requests_per_second"].as_f64().map_or_else(|| "–".into(), short);
        let size = value_size(hot);
        let _ = writeln!(
            text,
            "{key:<KEY_COLUMNS$} {share:>7.2} %  ± {error:>6.2} % {rate:>9} {size:>9}"
        );
    }
}

/// Facts about the engine, one per line.
pub fn engine_facts(status: &Value) -> Vec<String> {
    let is_expanding = status.pointer("/index/is_expanding") == Some(&Value::Bool(true));
    let mut facts = vec![
        format!(
            "load factor {:.2}   {} buckets",
            number(status, "/index/load_factor"),
            short(number(status, "/index/buckets"))
        ),
        format!(
            "{} expansions{}   longest pause {}",
            short(number(status, "/index/expansions")),
            if is_expanding { ", one runs" } else { "" },
            duration(Some(number(status, "/index/longest_pause_ns") / 1e3))
        ),
        format!(
            "{} evicted   {} reclaimed",
            short(number(status, "/index/evictions")),
            short(number(status, "/index/reclaimed"))
        ),
        format!("{} stores out of memory", short(number(status, "/index/out_of_memory"))),
    ];
    // For engines whose heads follow hot items: the share of the sampled buckets with at least
    // two items whose head is a hot item.
    let hot_heads = number(status, "/index/hot_heads");
    if hot_heads > 0.0 {
        let shared: f64 = lengths(status).skip(2).map(|(_, buckets)| buckets).sum();
        let share = (hot_heads / shared.max(1.0)).min(1.0);
        facts.push(format!("{} of the buckets are led by a hot item", percent(Some(share))));
    }
    facts
}

/// The distribution of items over the sampled buckets: pairs of a number of items, from 0 upwards,
/// and the number of buckets that hold it.
pub fn lengths(status: &Value) -> impl Iterator<Item = (usize, f64)> {
    let lengths = status["index"]["lengths"].as_array().map_or(&[][..], Vec::as_slice);
    lengths.iter().map(|buckets| buckets.as_f64().unwrap_or(0.0)).enumerate()
}

/// The numbers of items that some buckets hold, each with its share of the buckets. Numbers that
/// no bucket holds are left out.
pub fn shares(status: &Value) -> impl Iterator<Item = (usize, f64)> {
    let all = lengths(status).map(|(_, buckets)| buckets).sum::<f64>().max(1.0);
    let filled = lengths(status).filter(|(_, buckets)| *buckets > 0.0);
    filled.map(move |(length, buckets)| (length, (buckets / all).clamp(0.0, 1.0)))
}

fn engine(text: &mut String, status: &Value, palette: Palette) {
    let _ = writeln!(text, "\n{}", engine_facts(status).join("\n"));
    for (length, share) in shares(status) {
        let bar = palette.paint(&"█".repeat((share * 50.0).round() as usize), Ink::Cyan);
        let _ = writeln!(text, "{length:>3} in a bucket {:>8} {bar}", percent(Some(share)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_short() {
        assert_eq!([short(7.0), short(12_345.0), short(2.5e6)], ["7", "12.3 k", "2.50 M"]);
        assert_eq!([bytes(0.0), bytes(1536.0), bytes(5e12)], ["0 B", "1.5 KiB", "4.5 TiB"]);
        assert_eq!(duration(Some(1500.0)), "1.5 ms");
        assert_eq!(percent(None), "–");
        let times = [119.0, 7_199.0, 90_000.0, 200_000.0].map(long_duration);
        assert_eq!(times, ["119 s", "119 min", "25 h", "2 days"]);
    }

    #[test]
    fn the_screen_shows_what_the_server_said() {
        let status = json!({
            "engine": "mer\u{1b}[2Jcury",
            "history": { "commands_per_second": [5.0, 250_000.0], "hit_ratio": [null, 0.875] },
            "hot_keys": [{ "key": "k".repeat(300), "share": 0.25, "error": 0.01,
                           "requests_per_second": 6250, "value_bytes": 2560 }],
            "index": { "items": 42, "lengths": [12, 4, 3, 1], "hot_heads": 1 },
        });
        let plain = Palette { is_on: false };
        let text = screen(&status, plain);
        for words in [
            "mer?[2Jcury",
            "250.0 k",
            "▁█",
            "87.5 %",
            "25.00 %",
            "1.00 %",
            "6250",
            "2.5 KiB",
            "60.0 %",
            "25.0 % of",
        ] {
            assert!(text.contains(words), "no {words} in {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 85), "{text}");
        let colored = screen(&status, Palette { is_on: true });
        assert!(colored.contains("\u{1b}[36m") && !text.contains('\u{1b}'), "{colored}");
        // Apart from its colours it is the same.
        let mut parts = colored.split('\u{1b}');
        let first = parts.next().expect("a beginning").to_owned();
        let rest = parts.map(|part| part.split_once('m').expect("the end of a sequence").1);
        assert_eq!(first + &rest.collect::<String>(), text);
    }

    #[test]
    fn hot_keys_are_shown_as_clients_write_them() {
        for (key, shown) in [
            ("user%3A7%2Fa%20b", "user:7/a b"),
            ("gr%C3%BC%C3%9Fe", "gr\u{fc}\u{df}e"),
            // Control characters, bytes that are no text, and what no server sends.
            ("a%1B%5B2J", "a%1B%5B2J"),
            ("%E2%80%AEa", "%E2%80%AEa"),
            ("%FF", "%FF"),
            ("50%", "50%"),
            ("%+1", "%+1"),
            ("%zz", "%zz"),
        ] {
            assert_eq!(hot_key(&json!({ "key": key })), shown);
        }
    }

    #[test]
    fn several_servers_are_a_table_with_sums() {
        let status = |rate: f64| {
            json!({
                "engine": "mercury",
                "history": { "commands_per_second": [rate], "evictions_per_second": [2.0] },
                "memory": { "used": 1024, "limit": 4096 },
            })
        };
        let mut hosts = vec![
            Host::answered("one.example:9150", status(2500.0)),
            Host::answered("two:9150", status(500.0)),
            Host::answered("three:9150", status(7.0)),
        ];
        hosts[2].problem = Some("no answer".into());
        let text = table(&hosts, Palette { is_on: false });
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("SERVER") && lines[1].contains(" 2500 "), "{text}");
        assert!(lines[1].contains("25.0 %") && lines[2].starts_with("two:9150 "), "{text}");
        assert_eq!(lines[3], "three:9150        does not answer");
        let sums = "2 of 3 servers   3000 requests/s   0 items in 2.0 KiB of 8.0 KiB   4 evicted/s";
        assert_eq!(lines[5], sums);
    }

    #[test]
    fn nonsense_is_survived() {
        for status in [json!(null), json!([1]), json!({ "history": 3, "index": { "lengths": {} } })]
        {
            assert!(screen(&status, Palette { is_on: false }).contains("Amalgam"));
            table(&[Host::answered("a", status)], Palette { is_on: false });
        }
    }
}
