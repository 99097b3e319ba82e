//! `--help` as it is printed: options by topic, each with its default, and the exit codes. The
//! definitions of the options hold neither, so that each default stands in one place.

use clap::{Arg, Command};

use crate::cluster::{LISTEN, NodeOptions};
use crate::options::Options;

/// What a script can tell from the exit code of each command.
pub const EXIT_CODES: &str =
    "Exit codes: 0 success, 1 failure (the reason is on standard error), 2 wrong usage.";

/// The topics of the server's options; those of no topic stand under "Options".
const SERVER_TOPICS: &[(&str, &[&str])] = &[
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
        &["admin", "admin_public", "verbose", "log_level", "log_format", "stats_delimiter"],
    ),
];

/// The topics of a node's options.
const NODE_TOPICS: &[(&str, &[&str])] = &[
    ("Network", &["listen", "advertise", "clients", "port", "threads", "unavailable"]),
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
    ("Memory", &["engine", "memory", "chunk_memory"]),
    ("Backups", &["backups", "copy_sets", "rack", "backup_dir", "backup_mode", "backup_space"]),
    ("Security", &["join_token_file", "operator_token_file", "tls_cert", "tls_key", "tls_ca"]),
    ("Monitoring", &["admin", "admin_public", "log_level", "log_format"]),
];

/// The options of `cluster node` that `cluster dev` has no use for.
const OF_ONE_NODE: [&str; 3] = ["rack", "advertise", "clients"];

/// Completes the definition of the command line.
pub fn complete(command: Command, engines: String) -> Command {
    let serve = |serve: Command| {
        let serve = with_topics(serve, SERVER_TOPICS, &Options::default_texts());
        serve.after_help(format!("{engines}\n\n{EXIT_CODES}"))
    };
    let node = |node| with_topics(node, NODE_TOPICS, &NodeOptions::default_texts());
    let dev = |dev: Command| {
        let mut dev = node(dev);
        for option in OF_ONE_NODE {
            dev = dev.mut_arg(option, |arg| arg.hide(true));
        }
        dev.mut_arg("listen", |arg| {
            arg.help(format!(
                "Address of the first node for other nodes and clients of chunks; each further \
                 node takes the next port [default: {LISTEN}; any free ports with -p 0]"
            ))
        })
    };
    command
        .after_help(EXIT_CODES)
        .mut_subcommand("serve", serve)
        .mut_subcommand("cluster", |cluster| {
            cluster.mut_subcommand("node", node).mut_subcommand("dev", dev)
        })
}

/// Puts options under the headings of their topics, and appends their defaults to their help.
fn with_topics(
    mut command: Command,
    topics: &'static [(&'static str, &'static [&'static str])],
    defaults: &toml::Table,
) -> Command {
    let known: Vec<String> = command.get_arguments().map(|arg| arg.get_id().to_string()).collect();
    for (topic, options) in topics {
        for option in options.iter().filter(|option| known.iter().any(|id| id == *option)) {
            command =
                command.mut_arg(option, |arg| with_default(arg.help_heading(*topic), defaults));
        }
    }
    command
}

/// Appends the default of an option to its help, unless the help tells it already.
fn with_default(arg: Arg, defaults: &toml::Table) -> Arg {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let Some(value) = arg.get_long().and_then(|name| defaults.get(name)) else { return arg };
    if help.contains("[default") || !arg.get_default_values().is_empty() {
        return arg;
    }
    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    arg.help(format!("{help} [default: {value}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each option stands under a topic, so that a new one is not forgotten, and each that has a
    /// default tells it.
    #[test]
    fn options_have_topics_and_defaults() {
        let mut command = crate::command();
        command.build();
        let cluster = command.find_subcommand("cluster").expect("a command");
        let serve = command.find_subcommand("serve").expect("a command");
        let find = |name| cluster.find_subcommand(name).expect("a command");
        let tables = [
            (serve, Options::default_texts()),
            (find("node"), NodeOptions::default_texts()),
            (find("dev"), NodeOptions::default_texts()),
        ];
        let general = ["config", "extended", "license", "help", "version", "nodes"];
        for (command, defaults) in tables {
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let id = arg.get_id().as_str();
                let is_grouped = arg.get_help_heading().is_some();
                assert!(is_grouped || general.contains(&id), "{}: {id}", command.get_name());
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let has_default = arg.get_long().is_some_and(|name| defaults.contains_key(name));
                let tells = help.contains("[default") || !arg.get_default_values().is_empty();
                assert!(tells || !has_default, "{}: {id}: {help}", command.get_name());
            }
        }
    }
}
