//! memcached's extended options, the comma-separated list of `-o`.

use amalgam_index::Eviction;
use anyhow::{Context, bail};

use crate::tls::TlsOptions;

/// The extended options that were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// `idle_timeout`: seconds without a request after which a connection is closed, 0 for never;
    /// `None` where it was not given.
    pub idle_timeout_seconds: Option<u32>,
    /// `send_timeout`, which memcached does not have: seconds without progress after which a
    /// connection with unsent answers is closed, 0 for never; `None` where it was not given.
    pub send_timeout_seconds: Option<u32>,
    /// `maxconns_fast` or `no_maxconns_fast`: whether connections above the limit are refused with
    /// an error; `None` where neither was given.
    pub refuses_fast: Option<bool>,
    /// `hashpower`: the binary logarithm of the number of items that the table is built for; `None`
    /// where it was not given.
    pub hash_power: Option<u32>,
    /// `eviction`: how the victims of eviction are chosen; `None` where it was not given.
    pub eviction: Option<Eviction>,
    /// Whether the policy follows the load (`eviction=auto`); `None` where no policy was given.
    pub chooses_eviction: Option<bool>,
    /// `mrc` or `no_mrc`: whether the miss ratio with other memory sizes is estimated; `None` where
    /// neither was given.
    pub estimates_misses: Option<bool>,
    /// `read_buf_mem_limit`: the limit in bytes of all connections' buffers; `None` for the
    /// default.
    pub buffer_bytes: Option<usize>,
    /// `sock_cookie_id`: the mark of the sockets that listen; `None` where it was not given.
    pub socket_mark: Option<u32>,
    /// The options of TLS (`ssl_*`).
    pub tls: TlsOptions,
    /// The names of given options that have no effect; a warning lists them.
    pub ignored: Vec<String>,
    /// The names and values that `stats settings` shows for options without effect.
    pub tunables: Vec<(String, String)>,
}

/// The options of every server that have an effect, with what each takes and means, for `--help`.
const EVERYWHERE: &[(&str, &str)] = &[
    ("idle_timeout=SECONDS", "Close a connection after this time without a request [default: 0]"),
    ("send_timeout=SECONDS", "Close one whose answers make no progress; 0 is never [default: 60]"),
    ("maxconns_fast", "Refuse connections above -c with an error [default]"),
    ("no_maxconns_fast", "Accept no connection above -c until another closes"),
    ("read_buf_mem_limit=NUM", "Megabytes of all connections' buffers [default: a quarter of -m]"),
    ("sock_cookie_id=NUM", "Mark of the listening sockets, for filters of packets [default: none]"),
];

/// The policy of eviction, which nodes of a cluster have too.
const EVICTION: (&str, &str) =
    ("eviction=POLICY", "clock, gclock or probation; nodes, with --mode cache alone: gclock");

/// Those that nodes of a cluster do not have.
const WITHOUT_A_CLUSTER: &[(&str, &str)] = &[
    ("eviction=auto", "The one of these three that misses least [default]"),
    ("hashpower=NUM", "Room for 2 to the power of NUM items, 12 to 32 [default: grows]"),
    ("mrc, no_mrc", "Estimate the misses with other memory sizes, or not [default: mrc]"),
];

/// Those of certificates.
const OF_TLS: &[(&str, &str)] = &[
    ("ssl_chain_cert=FILE", "Certificate; this and the next for -Z and --admin-tls"),
    ("ssl_key=FILE", "Its private key [default: in the certificate's file]"),
    ("ssl_keyformat=NUM", "1 PEM, 2 DER [default: 1]"),
    ("ssl_ca_cert=FILE", "Authorities of clients' certificates [default: none]"),
    ("ssl_verify_mode=NUM", "Clients' certificates: 0 none, 1 request, 2 require [default: 0]"),
    ("ssl_ciphers=LIST", "Suites of TLS 1.2 [default: all]"),
    ("ssl_min_version=NUM", "2 for TLS 1.2, 3 for TLS 1.3 [default: 2]"),
    ("ssl_session_cache", "Let clients resume sessions"),
    ("ssl_wbuf_size=NUM", "Kilobytes written at once [default: 64]"),
];

/// The list of extended options for `--help`, a line each.
pub fn list(in_a_cluster: bool) -> String {
    let alone = if in_a_cluster { &[] } else { WITHOUT_A_CLUSTER };
    let all = EVERYWHERE.iter().chain([&EVICTION]).chain(alone).chain(OF_TLS);
    let lines = all.map(|(form, meaning)| format!("\n  {form:<23} {meaning}"));
    format!("Extended options (-o):{}", lines.collect::<String>())
}

/// The value of `eviction` with which the policy follows the load.
const AUTO: &str = "auto";

/// memcached's options that have no effect on this server, with and without a leading `no_`.
const WITHOUT_MEANING: &[&str] = &[
    "tail_repair_time",
    "hash_algorithm",
    "lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "resp_obj_mem_limit",
    "lru_maintainer",
    "hot_lru_pct",
    "warm_lru_pct",
    "hot_max_factor",
    "warm_max_factor",
    "temporary_ttl",
    "temp_lru",
    "slab_reassign",
    "slab_automove",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_automove_freeratio",
    "slab_chunk_max",
    "slab_sizes",
    "watcher_logbuf_size",
    "worker_logbuf_size",
    "track_sizes",
    "hashexpand",
    "inline_ascii_resp",
    "inline_ascii_response",
    "drop_privileges",
    "relaxed_privileges",
    "modern",
    "chunk_max",
];

/// Parses a comma-separated list of extended options.
///
/// # Errors
///
/// If an option is unknown or its value is invalid.
pub fn parse(list: &str) -> anyhow::Result<Extended> {
    let mut extended = Extended::default();
    for option in list.split(',').filter(|option| !option.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let number = || -> anyhow::Result<u32> {
            let value = value.with_context(|| format!("-o {name} needs a value: {name}=N"))?;
            value.parse().with_context(|| format!("-o {name}: '{value}' is not a number"))
        };
        match name {
            "idle_timeout" => extended.idle_timeout_seconds = Some(number()?),
            "send_timeout" => extended.send_timeout_seconds = Some(number()?),
            "maxconns_fast" => extended.refuses_fast = Some(true),
            "no_maxconns_fast" => extended.refuses_fast = Some(false),
            "hashpower" => {
                let power = number()?;
                if !(12..=32).contains(&power) {
                    bail!("-o hashpower must be 12 to 32, not {power}");
                }
                extended.hash_power = Some(power);
            }
            "eviction" => {
                let given = value.unwrap_or_default();
                extended.chooses_eviction = Some(given == AUTO);
                let policy = match given {
                    AUTO => Some(Eviction::default()),
                    _ => Eviction::from_name(given),
                };
                extended.eviction = Some(policy.with_context(|| {
                    let names = Eviction::ALL.map(Eviction::name).join(", ");
                    format!("-o eviction: there is no policy '{given}'; use {names} or {AUTO}")
                })?);
            }
            "mrc" => extended.estimates_misses = Some(true),
            "no_mrc" => extended.estimates_misses = Some(false),
            "sock_cookie_id" => extended.socket_mark = Some(number()?).filter(|mark| *mark != 0),
            "read_buf_mem_limit" => {
                let bytes = (number()? as usize) << 20;
                extended.buffer_bytes = Some(bytes).filter(|bytes| *bytes > 0);
                extended.tunables.push((name.to_owned(), bytes.to_string()));
            }
            _ if name.starts_with("ssl_") => extended.tls.set(name, value)?,
            _ if WITHOUT_MEANING.contains(&name.strip_prefix("no_").unwrap_or(name)) => {
                extended.ignored.push(name.to_owned());
                extended.tunables.extend(tunables(name, value));
            }
            _ => bail!("unknown extended option '{name}'; see amalgam serve --help"),
        }
    }
    if extended.chooses_eviction == Some(true) && extended.estimates_misses == Some(false) {
        bail!("-o eviction={AUTO} needs the estimate of misses; leave no_mrc out");
    }
    Ok(extended)
}

/// The values that `stats settings` shows for an option without effect.
fn tunables(name: &str, value: Option<&str>) -> Vec<(String, String)> {
    let bytes = |unit: u64| {
        let number: u64 = value.and_then(|value| value.parse().ok()).unwrap_or(0);
        number.saturating_mul(unit).to_string()
    };
    let given = || value.unwrap_or("yes").to_owned();
    let pairs: Vec<(&str, String)> = match name {
        "no_modern" => vec![
            ("slab_reassign", "no".to_owned()),
            ("slab_automove", "0".to_owned()),
            ("lru_crawler", "no".to_owned()),
            ("lru_maintainer_thread", "no".to_owned()),
            ("lru_segmented", "no".to_owned()),
        ],
        "lru_maintainer" => vec![("lru_maintainer_thread", given()), ("lru_segmented", given())],
        "no_lru_maintainer" => {
            vec![("lru_maintainer_thread", "no".to_owned()), ("lru_segmented", "no".to_owned())]
        }
        "temporary_ttl" => vec![("temp_lru", "yes".to_owned()), (name, given())],
        "slab_automove" => vec![(name, value.unwrap_or("1").to_owned())],
        "watcher_logbuf_size" | "worker_logbuf_size" | "slab_chunk_max" => {
            vec![(name, bytes(1 << 10))]
        }
        _ => match name.strip_prefix("no_") {
            Some(name) => vec![(name, "no".to_owned())],
            None => vec![(name, given())],
        },
    };
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_the_help_is_of_options_that_are_read() {
        let text = list(false);
        let forms = text.lines().skip(1).map(|line| line.trim_start().split("  ").next());
        let forms: Vec<_> = forms.flat_map(|form| form.expect("a form").split(", ")).collect();
        assert!(forms.len() > 15, "{text}");
        for form in forms {
            let form = form.replace("POLICY", "clock").replace("=FILE", "=a.pem");
            // A number that each of them takes: `hashpower` refuses small ones.
            let read = [2, 16].map(|number| parse(&form.replace("NUM", &number.to_string())));
            let seconds = parse(&form.replace("SECONDS", "5"));
            let is_read = read.iter().chain([&seconds]).flatten().next();
            let is_ignored = is_read.is_some_and(|extended| !extended.ignored.is_empty());
            assert!(is_read.is_some() && !is_ignored, "{form}");
        }
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
        assert!(!list(true).contains("hashpower"));
    }

    #[test]
    fn known_options_are_read_and_unknown_ones_refused() {
        let extended = parse("idle_timeout=30,no_maxconns_fast,modern,no_lru_crawler").unwrap();
        assert_eq!(extended.idle_timeout_seconds, Some(30));
        assert_eq!(extended.refuses_fast, Some(false));
        assert_eq!(parse("send_timeout=5").unwrap().send_timeout_seconds, Some(5));
        assert_eq!(parse("no_mrc").unwrap().estimates_misses, Some(false));
        assert_eq!(extended.ignored, ["modern", "no_lru_crawler"]);
        assert!(extended.tunables.contains(&("lru_crawler".to_owned(), "no".to_owned())));
        let extended = parse("watcher_logbuf_size=8,temporary_ttl=240").unwrap();
        let shown: Vec<_> = extended.tunables.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(shown, ["8192", "yes", "240"]);
        assert_eq!(parse("sock_cookie_id=7").unwrap().socket_mark, Some(7));
        assert_eq!(parse("sock_cookie_id=0").unwrap().socket_mark, None, "as in memcached");
        for (list, policy, chooses) in [
            ("eviction=clock", Eviction::Clock, false),
            ("eviction=probation", Eviction::Probation, false),
            ("eviction=auto", Eviction::GClock, true),
            ("eviction=auto,eviction=probation,no_mrc", Eviction::Probation, false),
        ] {
            let extended = parse(list).unwrap();
            let shown = (extended.eviction, extended.chooses_eviction);
            assert_eq!(shown, (Some(policy), Some(chooses)), "{list}");
        }
        for list in [
            "eviction=POLICY",
            "eviction",
            "eviction=lru",
            "eviction=auto,no_mrc",
            "idle_timeout",
            "idle_timeout=x",
            "sock_cookie_id",
            "no_such_thing",
            "hashpower=99",
        ] {
            assert!(parse(list).is_err(), "{list}");
        }
    }
}
