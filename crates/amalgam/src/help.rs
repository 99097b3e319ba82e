//! `--help` as it is printed: options by topic, each with its default, and the exit codes. The
//! definitions of the options hold none of it, so that each default stands in one place.

use clap::{Arg, Command, ValueHint};

use crate::cluster::{LISTEN, NodeOptions};
use crate::extended;
use crate::options::{Options, engine_list};

/// What a script can tell from the exit code of each command.
pub const EXIT_CODES: &str =
    "Exit codes: 0 success, 1 failure (reason on standard error), 2 wrong usage.";

/// The same under memcached's name.
pub const MEMCACHED_EXIT_CODES: &str =
    "Exit codes: 0 success, 1 failure (reason on standard error), 64 wrong usage.";

/// A heading, and the ids of the options below it.
type Topic = (&'static str, &'static [&'static str]);

/// The topics of the commands with more than a handful of options, by the command's path. Options
/// of no topic stand under "Options".
const TOPICS: &[(&str, &[Topic])] = &[
    ("serve", SERVER_TOPICS),
    ("bench server", BENCH_TOPICS),
    ("advise", ADVISE_TOPICS),
    ("cluster node", NODE_TOPICS),
    ("cluster dev", NODE_TOPICS),
    ("cluster status", STATUS_TOPICS),
    ("cluster check", CONNECT_TOPICS),
    ("cluster drain", CONNECT_TOPICS),
    ("cluster restore", RESTORE_TOPICS),
    (
        "top",
        &[
            ("Security", &["auth_file", "tls_ca"]),
            ("Updates", &["every"]),
            ("Output", &["once", "json", "color"]),
        ],
    ),
    (
        "load",
        &[
            ("Servers", &["from", "to"]),
            ("Items", &["keys", "overwrite", "rate"]),
            ("Output", &["quiet", "json"]),
        ],
    ),
];

const SERVER_TOPICS: &[Topic] = &[
    (
        "Network",
        &[
            "port",
            "udp_port",
            "unix_socket",
            "unix_mask",
            "listen",
            "conn_limit",
            "listen_backlog",
            "protocol",
            "max_reqs_per_event",
            "napi_ids",
        ],
    ),
    (
        "Memory",
        &[
            "engine",
            "memory",
            "disable_evictions",
            "lock_memory",
            "max_item_size",
            "memory_file",
            "disable_cas",
            "slab_growth_factor",
            "slab_min_size",
            "enable_largepages",
        ],
    ),
    (
        "Security",
        &[
            "user",
            "enable_sasl",
            "auth_file",
            "enable_ssl",
            "enable_shutdown",
            "disable_flush_all",
            "disable_dumping",
            "disable_watch",
        ],
    ),
    ("Process", &["threads", "pin_threads", "daemon", "pidfile", "enable_coredumps"]),
    (
        "Monitoring",
        &[
            "admin",
            "admin_public",
            "admin_auth_file",
            "admin_tls",
            "verbose",
            "log_level",
            "log_format",
            "stats_delimiter",
        ],
    ),
];

const BENCH_TOPICS: &[Topic] = &[
    ("Servers", &["target", "ratio_to", "server_pid"]),
    ("Connections", &["protocol", "connections", "idle", "depth", "threads", "cores"]),
    (
        "Requests",
        &["set", "multi", "theta", "keys", "key_bytes", "value_bytes", "requests", "seed"],
    ),
    ("Measurement", &["seconds", "rounds", "no_load", "verify"]),
    ("Output", &["json"]),
];

const ADVISE_TOPICS: &[Topic] = &[
    ("Requests", &["server", "watch_seconds", "save", "most_requests"]),
    ("Engines", &["engine", "memory", "threads", "batch"]),
    ("Measurement", &["rounds", "seconds", "timed", "hit_ratio_tolerance"]),
    ("Output", &["svg", "json"]),
];

const NODE_TOPICS: &[Topic] = &[
    (
        "Network",
        &[
            "listen",
            "advertise",
            "clients",
            "port",
            "threads",
            "unavailable",
            "conn_limit",
            "listen_backlog",
            "protocol",
            "max_reqs_per_event",
        ],
    ),
    (
        "Membership",
        &[
            "etcd",
            "etcd_ca",
            "etcd_cert",
            "etcd_key",
            "etcd_user",
            "etcd_password_file",
            "cluster",
            "name",
            "lease_seconds",
            "super_peers",
        ],
    ),
    ("Memory", &["engine", "mode", "memory", "chunk_memory"]),
    ("Backups", &["backups", "copy_sets", "rack", "backup_dir", "backup_mode", "backup_space"]),
    (
        "Security",
        &[
            "join_token_file",
            "operator_token_file",
            "tls_cert",
            "tls_key",
            "tls_ca",
            "enable_sasl",
            "auth_file",
            "enable_ssl",
            "disable_flush_all",
            "disable_dumping",
            "disable_watch",
        ],
    ),
    (
        "Monitoring",
        &["admin", "admin_public", "admin_auth_file", "admin_tls", "log_level", "log_format"],
    ),
];

const CONNECTION: Topic = ("Connection", &["node"]);
const CREDENTIALS: Topic =
    ("Security", &["join_token_file", "operator_token_file", "tls_cert", "tls_key", "tls_ca"]);

const CONNECT_TOPICS: &[Topic] = &[CONNECTION, CREDENTIALS];

const STATUS_TOPICS: &[Topic] =
    &[CONNECTION, CREDENTIALS, ("Selection", &["key", "id"]), ("Output", &["json", "color"])];

const RESTORE_TOPICS: &[Topic] = &[
    (
        "Membership",
        &["etcd", "etcd_ca", "etcd_cert", "etcd_key", "etcd_user", "etcd_password_file", "cluster"],
    ),
    ("Copies", &["incomplete"]),
];

/// The names of values that shells complete; the values of all other names are typed.
const HINTS: &[(&str, ValueHint)] = &[
    ("FILE", ValueHint::FilePath),
    ("TRACE", ValueHint::FilePath),
    ("DIR", ValueHint::DirPath),
    ("USER", ValueHint::Username),
    ("ADDR", ValueHint::Hostname),
    ("HOST:PORT", ValueHint::Hostname),
    ("SERVER", ValueHint::Hostname),
];

/// The options of `cluster node` that `cluster dev` has no use for.
const OF_ONE_NODE: [&str; 3] = ["rack", "advertise", "clients"];

/// Completes the definition of the command line. `exit_codes` ends the help of every command.
pub fn complete(command: Command, exit_codes: &str) -> Command {
    let notes = |in_a_cluster| {
        let extended = extended::list(in_a_cluster);
        format!("{extended}\n\nEngines, and what to choose them for:\n{}", engine_list())
    };
    let dev = |mut dev: Command| {
        for option in OF_ONE_NODE {
            dev = dev.mut_arg(option, |arg| arg.hide(true));
        }
        let listen = format!(
            "Address of the first node for other nodes and clients of chunks; each further node \
             takes the next port [default: {LISTEN}; any free ports with -p 0]"
        );
        let etcd = "Endpoint of etcd, as http://HOST:PORT or https://HOST:PORT; may be repeated or \
                    hold a comma-separated list [default: a stand-in for etcd in this process]";
        dev.after_help(notes(true))
            .mut_arg("listen", |arg| arg.help(listen))
            .mut_arg("etcd", |arg| arg.help(etcd))
    };
    let command = command
        .mut_subcommand("serve", |serve| serve.after_help(notes(false)))
        .mut_subcommand("cluster", |cluster| {
            cluster
                .mut_subcommand("node", |node| node.after_help(notes(true)))
                .mut_subcommand("dev", dev)
                .mut_subcommand("drain", |drain| {
                    let help = "Address of the node to drain, as its option --listen names it";
                    drain.mut_arg("node", |arg| arg.help(help))
                })
        });
    finish(command, "", exit_codes)
}

/// Completes the command at `path` (the names of subcommands) and those below it.
fn finish(command: Command, path: &str, exit_codes: &str) -> Command {
    let topics = TOPICS.iter().find(|(of, _)| *of == path).map_or(&[][..], |(_, topics)| topics);
    let defaults = match path {
        "serve" => Options::default_texts(),
        "cluster node" | "cluster dev" => NodeOptions::default_texts(),
        _ => toml::Table::new(),
    };
    let after = match command.get_after_help() {
        Some(notes) => format!("{notes}\n\n{exit_codes}"),
        None => exit_codes.to_owned(),
    };
    with_topics(command, topics)
        .mut_args(|arg| with_hint(with_default(arg, &defaults)))
        .after_help(after)
        .mut_subcommands(|below| {
            let path = format!("{path} {}", below.get_name());
            finish(below, path.trim_start(), exit_codes)
        })
}

/// Puts options under the headings of their topics, in the order of the topics: clap orders the
/// headings as their first options were changed.
fn with_topics(mut command: Command, topics: &'static [Topic]) -> Command {
    let known: Vec<String> = command.get_arguments().map(|arg| arg.get_id().to_string()).collect();
    for (topic, options) in topics {
        for option in options.iter().filter(|option| known.iter().any(|id| id == *option)) {
            command = command.mut_arg(option, |arg| arg.help_heading(*topic));
        }
    }
    command
}

/// Appends the default of an option to its help, unless the help tells it already. Clap itself
/// would put it in another place where one option of the command has a long help.
fn with_default(arg: Arg, defaults: &toml::Table) -> Arg {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    if help.contains("[default") || !needs_default(&arg) {
        return arg;
    }
    let known = arg.get_long().and_then(|name| defaults.get(name));
    let value = match (arg.get_default_values(), known) {
        ([value, ..], _) => value.to_string_lossy().into_owned(),
        (_, Some(value)) => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
        (_, None) => "none".to_owned(),
    };
    arg.help(format!("{help} [default: {value}]")).hide_default_value(true)
}

/// Whether the help of an option tells what happens without it.
fn needs_default(arg: &Arg) -> bool {
    let is_ignored = arg.get_help().is_some_and(|help| help.to_string().starts_with("Ignored"));
    let is_optional =
        !arg.is_required_set() && (!arg.is_positional() || !arg.get_default_values().is_empty());
    is_optional && !is_ignored && arg.get_action().takes_values()
}

/// Says how shells complete the values of an option.
fn with_hint(arg: Arg) -> Arg {
    let Some([name]) = arg.get_value_names().filter(|_| arg.get_action().takes_values()) else {
        return arg;
    };
    let hint = HINTS.iter().find(|(known, _)| *known == name.as_str());
    let hint = hint.map_or(ValueHint::Other, |(_, hint)| *hint);
    arg.value_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of values that are typed. A name says what to type, so the name of an option
    /// (`--depth <DEPTH>`) is none.
    const TYPED: &[&str] = &[
        "ANSWER", "BYTES", "CHAR", "COMMAND", "CORES", "ENGINE", "ENGINES", "FACTOR", "FORMAT",
        "ID", "KEY", "LEVEL", "LIST", "MASK", "MODE", "NAME", "NUM", "PERCENT", "PIDS", "PROTOCOL",
        "SECONDS", "SHARE", "SHELL", "SIZE", "URL", "WHEN",
    ];

    /// Options that stand above the topics of their commands.
    const GENERAL: [&str; 7] =
        ["config", "extended", "license", "help", "version", "nodes", "files"];

    /// The most options of a command that are read without topics.
    const HANDFUL: usize = 5;

    /// Calls `check` with each command and its path.
    fn each(command: &Command, path: &str, check: &mut impl FnMut(&Command, &str)) {
        check(command, path);
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            each(below, format!("{path} {}", below.get_name()).trim_start(), check);
        }
    }

    fn all(mut check: impl FnMut(&Command, &str)) {
        let mut command = crate::command(EXIT_CODES);
        command.build();
        each(&command, "", &mut check);
    }

    #[test]
    fn every_option_says_what_it_is_and_what_it_takes() {
        all(|command, path| {
            assert!(command.get_about().is_some(), "{path}");
            for arg in command.get_arguments() {
                let id = arg.get_id();
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.len() > 3 && !help.ends_with('.'), "{path}: {id}: '{help}'");
                if !arg.get_action().takes_values() {
                    continue;
                }
                let names = arg.get_value_names().unwrap_or_default();
                let [name] = names else { panic!("{path}: {id} takes {names:?}") };
                let is_completed = HINTS.iter().any(|(known, _)| *known == name.as_str());
                let is_known = is_completed || TYPED.contains(&name.as_str());
                assert!(is_known, "{path}: {id} takes {name}");
                let defaults = help.matches("[default: ").count();
                assert!(defaults == 1 || !needs_default(arg), "{path}: {id}: {help}");
                let is_clap_s = !arg.get_default_values().is_empty();
                assert!(arg.is_hide_default_value_set() || !is_clap_s, "{path}: {id}: {help}");
            }
        });
    }

    #[test]
    fn commands_with_many_options_have_topics() {
        all(|command, path| {
            let options: Vec<&Arg> =
                command.get_arguments().filter(|arg| !arg.is_hide_set()).collect();
            let topics = TOPICS.iter().find(|(of, _)| *of == path).map(|(_, topics)| *topics);
            assert!(topics.is_some() || options.len() <= HANDFUL, "{path} has no topics");
            let Some(topics) = topics else { return };
            for arg in options.iter().filter(|arg| !arg.is_positional()) {
                let id = arg.get_id().as_str();
                let is_grouped = arg.get_help_heading().is_some();
                assert!(is_grouped || GENERAL.contains(&id), "{path}: {id} has no topic");
            }
            for id in topics.iter().flat_map(|(_, options)| *options) {
                let is_there = command.get_arguments().any(|arg| arg.get_id() == id);
                // The port is an option of `cluster dev` alone.
                assert!(is_there || *id == "port", "{path} has no {id}");
            }
        });
        let is_command = |path: &str| {
            let mut is_there = false;
            all(|_, known| is_there |= known == path);
            is_there
        };
        assert!(TOPICS.iter().all(|(path, _)| is_command(path)));
    }

    #[test]
    fn every_help_ends_with_the_exit_codes() {
        all(|command, path| {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.ends_with(EXIT_CODES), "{path}: {after}");
            assert_eq!(after.matches("Exit codes").count(), 1, "{path}: {after}");
        });
    }
}
