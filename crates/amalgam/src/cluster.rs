//! `amalgam cluster`: runs a node or a whole cluster on one machine, and shows a cluster's status.

use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amalgam_bench::{Usage, ensure_usage};
use amalgam_index::{Engine, EngineVisitor, with_engine};
use amalgam_node::{
    Credentials, Embedded, FINAL_TARGET, Membership, MutualTls, NodeConfiguration, RunningNode,
    start_local,
};
use amalgam_server::{ListenAddress, Server, Settings};
use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use rustix::process::Resource;
use serde::{Deserialize, Serialize};

use crate::clients;
use crate::extended::Extended;
use crate::logs::Threshold;
use crate::options::{SharedOptions, default_port, layered};
use crate::serve::{RELOAD_SIGNAL, STOP_SIGNALS, raise_to_maximum, random_seed};
use crate::size::Size;
use addresses::{address, check_advertised};
use configuration::{configuration, etcd, is_open_to_all, tls_files};
use secrets::{operator_token, token};

mod addresses;
mod check;
mod configuration;
mod drain;
mod holding;
mod restore;
mod secrets;
mod status;

/// How long a starting node waits until every key has an owner.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// How long a node that is told to stop may take to hand over its contents to other nodes.
const LEAVE_PATIENCE: Duration = Duration::from_secs(20);
/// The interval at which nodes and servers are checked for having stopped.
const WATCH: Duration = Duration::from_millis(50);
/// How long a node must have run to join again by itself after it lost its lease: one that loses it
/// at once again has a reason that an operator should find.
const REJOIN_AFTER: Duration = Duration::from_secs(10);
/// The lease of nodes whose coordinator is in the same process. It is long because the nodes and
/// the coordinator run and pause together.
const EMBEDDED_LEASE_MS: u64 = 600_000;

/// Percentage of the nodes that are super peers.
const SUPER_PEERS: u8 = 8;

/// Seconds without a sign of life after which a node is no member.
const LEASE_SECONDS: u64 = 3;

/// The address that a node listens on for other nodes, unless it is told another.
pub const LISTEN: &str = "127.0.0.1:7911";

/// The environment variable that marks a program that started anew to join again.
const REJOIN_VARIABLE: &str = "AMALGAM_REJOINS";

/// The subcommands of `amalgam cluster`.
#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Run one node of a cluster whose coordinator is etcd
    Node(Box<NodeOptions>),
    /// Run a whole cluster on this machine
    Dev(Box<DevOptions>),
    /// Show the nodes of a cluster and what they hold
    Status(status::StatusOptions),
    /// Tell whether any one node may be taken away now: exit code 0 if so, else 1, with the reasons
    Check(ConnectOptions),
    /// Move all contents of a node to the other nodes and wait for it; then the node can be stopped
    Drain(ConnectOptions),
    /// Write the state of a cluster to an etcd that lost it, from the copies of its nodes
    Restore(restore::RestoreOptions),
    /// Make a join token or an operator token, and print it
    Token,
}

/// The kinds of failure that backups survive.
#[derive(Clone, Copy, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackupMode {
    /// Backups survive the end of the process: they are handed to the operating system
    Buffered,
    /// Backups survive a loss of power too: they are flushed to the medium
    Fsync,
}

/// What a read gets whose key's owner does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unavailable {
    /// An error, so that no client takes a key for missing that exists
    Error,
    /// A miss, as clients of a cache expect
    Miss,
}

/// What happens to keys when their memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// New keys are refused, and with backups room is kept for what a dead node had
    Store,
    /// Keys that are read little make way for new ones
    Cache,
}

/// Options of `amalgam cluster node`, which also apply to all nodes of `amalgam cluster dev`.
#[derive(Args, Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeOptions {
    #[command(flatten)]
    #[serde(flatten)]
    pub shared: SharedOptions,
    /// Read options from a TOML file; its keys are the long names, the command line overrides
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Endpoint of etcd, as http://HOST:PORT or https://HOST:PORT; may be repeated or hold a
    /// comma-separated list [default: none, but a node needs one]
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub etcd: Vec<String>,
    /// The CA that signed etcd's certificates (PEM); required for https
    #[arg(long, value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// The certificate to present to etcd, followed by intermediate certificates (PEM)
    #[arg(long, value_name = "FILE")]
    pub etcd_cert: Option<PathBuf>,
    /// The private key of --etcd-cert (PEM) [default: in the file of the certificate]
    #[arg(long, value_name = "FILE")]
    pub etcd_key: Option<PathBuf>,
    /// The user of etcd to authenticate as
    #[arg(long, value_name = "NAME")]
    pub etcd_user: Option<String>,
    /// A file with that user's password [default: the environment variable AMALGAM_ETCD_PASSWORD]
    #[arg(long, value_name = "FILE")]
    pub etcd_password_file: Option<PathBuf>,
    /// Name of the cluster in etcd
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    /// Name of this node, unique in the cluster; a restart under the same name keeps the node's
    /// number [default: the address at which other nodes reach it]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Where it listens for other nodes and clients of chunks.
    #[arg(
        long,
        value_name = "HOST:PORT",
        // Brackets would be a link in a comment.
        help = "Address to listen on for other nodes and clients of chunks; [::]:PORT is all \
                addresses"
    )]
    pub listen: Option<String>,
    /// Address at which other nodes reach this one; without a port, that of --listen. Must be given
    /// if --listen is all addresses [default: that of --listen]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Where it listens for memcached clients.
    #[arg(
        long,
        value_name = "HOST:PORT",
        help = "Address to listen on for memcached clients; [::]:PORT is all addresses"
    )]
    pub clients: Option<String>,
    /// A file with the join token, a secret that all nodes of the cluster must share
    #[arg(long, value_name = "FILE")]
    pub join_token_file: Option<PathBuf>,
    /// A file with the operator token, a secret whose holders may drain the node and move its
    /// chunks [default: clients on the node's own machine may]
    #[arg(long, value_name = "FILE")]
    pub operator_token_file: Option<PathBuf>,
    /// This node's certificate, followed by intermediate certificates (PEM). Nodes and clients of
    /// chunks then speak TLS and must present a certificate; give it to all nodes or to none
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert (PEM) [default: in the file of the certificate]
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// The CA that signed the certificates of all nodes and clients of chunks (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// Percentage of the nodes that are super peers, which keep the metadata; at least five nodes
    /// are, if there are as many. Must be the same on all nodes
    #[arg(long, value_name = "PERCENT")]
    pub super_peers: Option<u8>,
    /// Seconds without a sign of life after which a node is removed from the cluster
    #[arg(long, value_name = "NUM")]
    pub lease_seconds: Option<u64>,
    /// What happens to keys when their memory is full. Must be the same on all nodes
    #[arg(long, value_enum, value_name = "MODE")]
    pub mode: Option<Mode>,
    /// Memory for keys and their values
    #[arg(short = 'm', long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Memory for chunks
    #[arg(long, value_name = "SIZE")]
    pub chunk_memory: Option<Size>,
    /// Number of nodes that keep backups of each key and chunk
    #[arg(long, value_name = "NUM")]
    pub backups: Option<usize>,
    /// Number of replica sets over which each node spreads its backups: fewer sets make a loss of
    /// data rarer and recovery slower; 0 chooses a set for each range. Must be the same on all
    /// nodes
    #[arg(long, value_name = "NUM")]
    pub copy_sets: Option<usize>,
    /// Failure domain of this node, such as its rack or machine; replicas are placed in different
    /// ones as far as possible
    #[arg(long, value_name = "NAME")]
    pub rack: Option<String>,
    /// Folder for the backups of other nodes' keys and chunks
    #[arg(long, value_name = "DIR")]
    pub backup_dir: Option<PathBuf>,
    /// What backups survive: the end of the process (buffered), or a loss of power too (fsync)
    #[arg(long, value_enum, value_name = "MODE")]
    pub backup_mode: Option<BackupMode>,
    /// Disk space for backups
    #[arg(long, value_name = "SIZE")]
    pub backup_space: Option<Size>,
    /// What to answer to a read whose key's owner does not answer
    #[arg(long, value_enum, value_name = "ANSWER")]
    pub unavailable: Option<Unavailable>,
}

impl NodeOptions {
    fn defaults() -> Self {
        let megabytes = Size::mebibytes(64);
        Self {
            cluster: Some("default".to_owned()),
            listen: Some(LISTEN.to_owned()),
            clients: Some(format!("{}:{}", Ipv4Addr::LOCALHOST, default_port())),
            super_peers: Some(SUPER_PEERS),
            lease_seconds: Some(LEASE_SECONDS),
            shared: SharedOptions::defaults(),
            mode: Some(Mode::Store),
            memory: Some(megabytes),
            chunk_memory: Some(megabytes),
            backups: Some(0),
            copy_sets: Some(0),
            backup_mode: Some(BackupMode::Buffered),
            backup_space: Some(Size::mebibytes(4_096)),
            unavailable: Some(Unavailable::Error),
            ..Self::default()
        }
    }

    /// The value of each option that has a default, by its long name, for `--help`.
    pub fn default_texts() -> toml::Table {
        let mut table = toml::Table::try_from(Self::defaults()).unwrap_or_default();
        table.insert("log-level".to_owned(), "info".into());
        SharedOptions::add_default_texts(&mut table);
        table
    }

    /// These options over those of the configuration file, over the defaults.
    fn effective(&self) -> anyhow::Result<Self> {
        layered(&Self::defaults(), self, self.config.as_deref())
    }
}

/// Options of `amalgam cluster dev`.
#[derive(Args)]
pub struct DevOptions {
    /// Number of nodes
    #[arg(long, value_name = "NUM", default_value_t = 5)]
    nodes: usize,
    /// Port of the first node for memcached clients; each further node takes the next one. 0 lets
    /// the system choose, without --listen for the other nodes' connections too
    #[arg(short = 'p', long, value_name = "NUM", default_value_t = default_port() as u16)]
    port: u16,
    #[command(flatten)]
    node: NodeOptions,
}

impl DevOptions {
    /// The options that all nodes share.
    ///
    /// # Errors
    ///
    /// If an option makes sense for one node only, or there are not enough ports.
    fn common(&self) -> anyhow::Result<NodeOptions> {
        ensure!((1..=1000).contains(&self.nodes), "--nodes must be 1 to 1000");
        let given = layered(&NodeOptions::default(), &self.node, self.node.config.as_deref())?;
        let of_one_node = [
            ("--rack", given.rack.is_some()),
            ("--advertise", given.advertise.is_some()),
            ("--clients", given.clients.is_some()),
        ];
        if let Some((option, _)) = of_one_node.iter().find(|(_, is_given)| *is_given) {
            bail!(
                "{option} is for one node: start each with 'amalgam cluster node', or leave it out"
            );
        }
        let mut common = self.node.effective()?;
        if self.port == 0 && given.listen.is_none() {
            common.listen = Some(format!("{}:0", Ipv4Addr::LOCALHOST));
        }
        let listen = common.listen.as_deref().unwrap_or_default();
        for first in [self.port, address(listen, "--listen")?.port()] {
            let last = usize::from(first) + self.nodes - 1;
            ensure!(
                last <= u16::MAX.into(),
                "{} nodes from port {first} on are too many",
                self.nodes
            );
        }
        Ok(common)
    }
}

/// How to reach a node, for `amalgam cluster status`, `check` and `drain`.
#[derive(Args)]
pub struct ConnectOptions {
    /// Address of a node, as its option --listen names it; every node knows the others
    #[arg(long, value_name = "HOST:PORT", default_value = LISTEN)]
    node: String,
    /// The file with the cluster's join token
    #[arg(long, value_name = "FILE")]
    join_token_file: Option<PathBuf>,
    /// The file with the nodes' operator token, in place of the join token
    #[arg(long, value_name = "FILE", conflicts_with = "join_token_file")]
    operator_token_file: Option<PathBuf>,
    /// A certificate that the cluster's CA signed (PEM); required if the nodes speak TLS
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert (PEM) [default: in the file of the certificate]
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// The cluster's CA (PEM)
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

impl ConnectOptions {
    /// The address of the node.
    ///
    /// # Errors
    ///
    /// If it is no host and port, or the host has no address.
    fn node(&self) -> anyhow::Result<&str> {
        address(&self.node, "--node").usage()?;
        Ok(&self.node)
    }

    fn credentials(&self) -> anyhow::Result<Credentials> {
        let files = tls_files(&self.tls_cert, &self.tls_key, &self.tls_ca).usage()?;
        let tls = files.map(MutualTls::open).transpose().map_err(anyhow::Error::msg).usage()?;
        let token = token(self.join_token_file.as_deref()).usage()?;
        let operator_token = operator_token(self.operator_token_file.as_deref()).usage()?;
        Ok(Credentials { token, operator_token, tls: tls.map(Arc::new) })
    }
}

/// Runs a subcommand of `amalgam cluster`.
///
/// # Errors
///
/// If an option makes no sense, or the node or cluster cannot start; the text says what to do.
pub fn run(command: &ClusterCommand) -> anyhow::Result<()> {
    match command {
        ClusterCommand::Node(options) => {
            let options = options.effective().usage()?;
            options.shared.start_log(Threshold::Info);
            raise_to_maximum(Resource::Nofile);
            ensure_usage!(
                !options.etcd.is_empty(),
                "a node needs a coordinator: name etcd with --etcd http://HOST:2379, or start a \
                 cluster on this machine with 'amalgam cluster dev'"
            );
            with_chosen_engine(&options, RunNode(&options))
        }
        ClusterCommand::Dev(options) => {
            let common = options.common().usage()?;
            common.shared.start_log(Threshold::Info);
            raise_to_maximum(Resource::Nofile);
            let (nodes, port) = (options.nodes, options.port);
            with_chosen_engine(&common, RunLocal { options: &common, nodes, port })
        }
        ClusterCommand::Status(options) => status::status(options),
        ClusterCommand::Check(options) => check::check(options),
        ClusterCommand::Drain(options) => drain::drain(options),
        ClusterCommand::Restore(options) => restore::restore(options),
        ClusterCommand::Token => secrets::make_token(),
    }
}

/// Runs `amalgam cluster node` with the chosen engine.
struct RunNode<'o>(&'o NodeOptions);

impl EngineVisitor for RunNode<'_> {
    type Output = anyhow::Result<()>;

    fn visit<E: Engine>(self) -> anyhow::Result<()> {
        run_node::<E>(self.0)
    }
}

/// Runs `amalgam cluster dev` with the chosen engine.
struct RunLocal<'o> {
    options: &'o NodeOptions,
    nodes: usize,
    port: u16,
}

impl EngineVisitor for RunLocal<'_> {
    type Output = anyhow::Result<()>;

    fn visit<E: Engine>(self) -> anyhow::Result<()> {
        run_local::<E>(self.options, self.nodes, self.port)
    }
}

/// Runs `visitor` with the engine that `options` name.
fn with_chosen_engine<V>(options: &NodeOptions, visitor: V) -> anyhow::Result<()>
where
    V: EngineVisitor<Output = anyhow::Result<()>>,
{
    let name = options.shared.known_engine().usage()?;
    with_engine(name, visitor).context("the table of engines lacks a name that it had")?
}

/// The settings of the port for memcached's clients of a node.
fn client_settings(
    options: &NodeOptions,
    extended: &Extended,
    configuration: &NodeConfiguration,
) -> anyhow::Result<Settings> {
    ensure!(
        extended.hash_power.is_none(),
        "-o hashpower is for a server without a cluster; leave it out"
    );
    if !extended.ignored.is_empty() {
        log::warn!(options = extended.ignored.join(","); "these options have no effect");
    }
    Ok(Settings {
        memory_bytes: configuration.memory_bytes,
        max_item_bytes: configuration.max_item_bytes,
        evicts: configuration.evicts,
        eviction: configuration.eviction,
        ..clients::settings(&options.shared, extended)?
    })
}

/// Opens the server of memcached clients in front of a node.
fn server(
    node: &RunningNode,
    listen: Vec<ListenAddress>,
    settings: &Settings,
    unavailable: Option<Unavailable>,
) -> anyhow::Result<Server<amalgam_node::Gateway>> {
    let settings = Settings { listen, ..settings.clone() };
    let mut gateway = node.gateway();
    if unavailable == Some(Unavailable::Miss) {
        gateway = gateway.answer_misses();
    }
    let server =
        Server::open_around(settings, gateway).context("memcached's clients cannot be answered")?;
    server.stop_on_signals(STOP_SIGNALS)?;
    server.reload_on_signal(RELOAD_SIGNAL)?;
    Ok(server)
}

/// Runs servers in front of nodes until they are told to stop, or a node stops. If `has_others`,
/// there are nodes in other processes, to which these nodes first hand over their contents; a node
/// that lost its lease joins them again.
fn serve(
    mut running: Vec<(RunningNode, Server<amalgam_node::Gateway>)>,
    has_others: bool,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut output = std::io::stdout();
    let mut nodes = Vec::new();
    let mut threads = Vec::new();
    for (node, server) in running.drain(..) {
        let number = node.peer().node.get();
        // In a local cluster IPv6's loopback address has the same port.
        let shown = if has_others { usize::MAX } else { 1 };
        let clients = server.addresses().into_iter().take(shown).collect::<Vec<_>>().join(",");
        // A failed write is ignored: standard output may have no reader.
        let _ = writeln!(output, "node {number} at {}, clients at {clients}", node.address());
        if let Some(url) = server.admin_url() {
            let _ = writeln!(output, "admin on {url}");
        }
        let stopper = server.stopper()?;
        threads.push((std::thread::spawn(move || server.run()), stopper));
        nodes.push(node);
    }
    let _ = writeln!(output, "the cluster serves").and_then(|()| output.flush());
    let has_ended = || threads.iter().any(|(thread, _)| thread.is_finished());
    while !has_ended() && !nodes.iter().any(RunningNode::is_stopping) {
        std::thread::sleep(WATCH);
    }
    let is_failed = nodes.iter().any(RunningNode::is_stopping);
    threads.iter().for_each(|(_, stopper)| stopper.stop());
    for (thread, _) in threads {
        match thread.join() {
            Ok(result) => result?,
            Err(_) => bail!("a server panicked"),
        }
    }
    for node in nodes.iter().filter(|_| has_others && !is_failed) {
        if !node.leave(LEAVE_PATIENCE) {
            log::warn!(
                node = node.peer().node.get();
                "others did not take all that the node has; if there are none, its log did not"
            );
        }
    }
    nodes.iter_mut().for_each(RunningNode::stop);
    let has_lost_lease = has_others && nodes.iter().all(RunningNode::has_lost_lease);
    if has_lost_lease && began.elapsed() >= REJOIN_AFTER {
        return rejoin();
    }
    ensure!(
        !is_failed,
        "a node stopped: its lease ended, another process started under its name, or its log \
         failed; the log lines above say which"
    );
    Ok(())
}

/// Joins the cluster again as a new incarnation, which finds what its log holds: the program starts
/// anew in this process, so that nothing of the old node is left in it.
fn rejoin() -> anyhow::Result<()> {
    log::info!(target: FINAL_TARGET, "the node joins again");
    let mut arguments = std::env::args_os();
    let name = arguments.next().context("the program has no name")?;
    let mut again = std::process::Command::new("/proc/self/exe");
    let error = again.arg0(name).args(arguments).env(REJOIN_VARIABLE, "1").exec();
    Err(error).context("the node could not start anew to join again")
}

fn run_node<E: Engine>(options: &NodeOptions) -> anyhow::Result<()> {
    let extended = options.shared.parse_extended().usage()?;
    let configuration = configuration(options, &extended).usage()?;
    check_advertised(&configuration).usage()?;
    if is_open_to_all(&configuration) {
        log::warn!(
            listen:% = configuration.listen;
            "whoever reaches this address may join the cluster and read all of it: have nodes show \
             what they know (--join-token-file) or certificates (--tls-cert)"
        );
    }
    let clients = address(options.clients.as_deref().unwrap_or_default(), "--clients").usage()?;
    let settings = client_settings(options, &extended, &configuration).usage()?;
    let node = RunningNode::start::<E>(&configuration, etcd(options)?)?;
    if let Err(error) = node.wait_until_ready(READY_PATIENCE) {
        log::warn!(error:%; "not all keys have an owner yet");
    }
    let listen = addresses::of_clients(clients);
    let server = server(&node, listen, &settings, options.unavailable)?;
    serve(vec![(node, server)], true)
}

fn run_local<E: Engine>(options: &NodeOptions, nodes: usize, port: u16) -> anyhow::Result<()> {
    let name = options.name.clone().unwrap_or_else(|| "dev".to_owned());
    let extended = options.shared.parse_extended().usage()?;
    let configuration = NodeConfiguration { name, ..configuration(options, &extended).usage()? };
    let membership: Arc<dyn Membership> = if options.etcd.is_empty() {
        Arc::new(Embedded::new(random_seed().max(1), random_seed(), EMBEDDED_LEASE_MS))
    } else {
        etcd(options)?
    };
    let mut settings = client_settings(options, &extended, &configuration).usage()?;
    let nodes = start_local::<E>(nodes, &configuration, &membership)?;
    let mut running = Vec::new();
    for (number, node) in nodes.into_iter().enumerate() {
        let port = if port == 0 { 0 } else { port + number as u16 };
        let server = server(&node, addresses::local(port), &settings, options.unavailable)?;
        // The first node serves the admin address for the whole process.
        settings.admin = None;
        running.push((node, server));
    }
    serve(running, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_coordinator_says_what_to_do() {
        let options = Box::new(NodeOptions::default());
        let error = run(&ClusterCommand::Node(options)).expect_err("it has none").to_string();
        assert!(error.contains("--etcd") && error.contains("cluster dev"), "{error}");
    }
}
