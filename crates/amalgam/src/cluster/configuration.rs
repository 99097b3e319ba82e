//! What the options of a node say: how it joins, what it keeps, and where its coordinator is.

use std::path::PathBuf;
use std::sync::Arc;

use amalgam_bench::{Usage, ensure_usage};
use amalgam_node::cluster::log::Durability;
use amalgam_node::cluster::ranges::BACKUPS_MAX;
use amalgam_node::{
    BackupConfiguration, Etcd, EtcdConfiguration, EtcdUser, Membership, NodeConfiguration, TlsFiles,
};
use anyhow::{Context, bail, ensure};

use super::addresses::{address, advertised};
use super::secrets::{operator_token, secret, token};
use super::{BackupMode, LEASE_SECONDS, Mode, NodeOptions, REJOIN_VARIABLE, SUPER_PEERS};
use crate::extended::Extended;
use crate::size::Size;

/// Memory of a node's cache of chunk locations.
const CACHE_BYTES: usize = 16 << 20;

/// The environment variable with the password of etcd's user, used if no file is given.
const ETCD_PASSWORD_VARIABLE: &str = "AMALGAM_ETCD_PASSWORD";

/// How a node is backed up; None if it is not.
fn backups(options: &NodeOptions) -> anyhow::Result<Option<BackupConfiguration>> {
    let count = options.backups.unwrap_or(0);
    ensure!(count <= BACKUPS_MAX, "--backups must be 0 to {BACKUPS_MAX}, not {count}");
    if count == 0 {
        return Ok(None);
    }
    let folder = options.backup_dir.clone().context("--backups needs a folder: --backup-dir")?;
    let durability = match options.backup_mode {
        Some(BackupMode::Fsync) => Durability::Synced,
        Some(BackupMode::Buffered) | None => Durability::Buffered,
    };
    let space = options.backup_space.unwrap_or(Size::mebibytes(4_096));
    let space_bytes = space.in_bytes(1 << 20).context("--backup-space")? as u64;
    let copy_sets = options.copy_sets.unwrap_or(0);
    Ok(Some(BackupConfiguration { count, copy_sets, folder, durability, space_bytes }))
}

/// The configuration of a node.
///
/// # Errors
///
/// If an option makes no sense; the text names it.
pub(super) fn configuration(
    options: &NodeOptions,
    extended: &Extended,
) -> anyhow::Result<NodeConfiguration> {
    let listen = options.listen.as_deref().unwrap_or_default();
    let super_share_percent = options.super_peers.unwrap_or(SUPER_PEERS);
    ensure!(
        (1..=100).contains(&super_share_percent),
        "--super-peers must be 1 to 100 percent of the nodes, not {super_share_percent}"
    );
    let bytes = |size: Option<Size>| size.unwrap_or(Size::mebibytes(64)).in_bytes(1 << 20);
    let evicts = options.mode == Some(Mode::Cache);
    let eviction = extended.eviction;
    ensure!(
        extended.chooses_eviction != Some(true),
        "-o eviction=auto is for a server without a cluster: nodes do not compare the policies"
    );
    ensure!(
        evicts || eviction.is_none(),
        "-o eviction is for a cache (--mode cache): a store refuses new items when it is full"
    );
    let listen = address(listen, "--listen")?;
    let advertise = options.advertise.as_deref();
    let advertise = advertise.map(|text| advertised(text, listen)).transpose()?;
    Ok(NodeConfiguration {
        name: options.name.clone().unwrap_or_default(),
        listen,
        advertise: advertise.map(|address| address.to_string()),
        rack: options.rack.clone().unwrap_or_default(),
        token: token(options.join_token_file.as_deref())?,
        operator_token: operator_token(options.operator_token_file.as_deref())?,
        tls: tls_files(&options.tls_cert, &options.tls_key, &options.tls_ca)?,
        memory_bytes: bytes(options.memory).context("--memory")?,
        evicts,
        eviction: eviction.unwrap_or_default(),
        chunk_memory_bytes: bytes(options.chunk_memory).context("--chunk-memory")?,
        threads: options.shared.thread_count()?,
        cache_bytes: CACHE_BYTES,
        super_share_percent,
        was_member: std::env::var_os(REJOIN_VARIABLE).is_some(),
        backups: backups(options)?,
        ..NodeConfiguration::default()
    })
}

/// Whether anybody on the network could join the cluster or use its chunks.
pub(super) fn is_open_to_all(configuration: &NodeConfiguration) -> bool {
    let is_alone = configuration.listen.ip().is_loopback();
    !is_alone && configuration.token.is_empty() && configuration.tls.is_none()
}

/// The certificate that a node or client shows others, and by which it knows them.
pub(super) fn tls_files(
    certificate: &Option<PathBuf>,
    key: &Option<PathBuf>,
    authorities: &Option<PathBuf>,
) -> anyhow::Result<Option<TlsFiles>> {
    match (certificate.clone(), authorities.clone()) {
        (Some(certificate), Some(authorities)) => {
            Ok(Some(TlsFiles { certificate, key: key.clone(), authorities }))
        }
        (Some(_), None) => bail!("--tls-cert needs the CA of the other nodes' too: --tls-ca"),
        (None, Some(_)) => bail!("--tls-ca needs a certificate of this side: --tls-cert"),
        (None, None) => {
            ensure!(key.is_none(), "--tls-key needs a certificate: --tls-cert");
            Ok(None)
        }
    }
}

/// The coordinator of a node.
pub(super) fn etcd(options: &NodeOptions) -> anyhow::Result<Arc<dyn Membership>> {
    Ok(Arc::new(open_etcd(options)?))
}

/// The coordinator, with what `amalgam cluster restore` needs of it.
pub(super) fn open_etcd(options: &NodeOptions) -> anyhow::Result<Etcd> {
    let cluster = options.cluster.as_deref().unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    ensure_usage!(
        !cluster.is_empty() && cluster.bytes().all(is_plain),
        "--cluster is letters, digits, '-', '_' and '.'"
    );
    let configuration = EtcdConfiguration {
        endpoints: options.etcd.clone(),
        cluster: cluster.to_owned(),
        lease_seconds: options.lease_seconds.unwrap_or(LEASE_SECONDS),
        authorities: options.etcd_ca.clone(),
        certificate: options.etcd_cert.clone(),
        key: options.etcd_key.clone(),
        user: etcd_user(options).usage()?,
    };
    Etcd::open(&configuration).map_err(anyhow::Error::msg).usage()
}

/// The user of etcd. Its password is in a file or in the environment, because other users of the
/// machine can read a command line.
fn etcd_user(options: &NodeOptions) -> anyhow::Result<Option<EtcdUser>> {
    let Some(name) = options.etcd_user.clone() else {
        ensure!(options.etcd_password_file.is_none(), "--etcd-password-file needs --etcd-user");
        return Ok(None);
    };
    let password = match &options.etcd_password_file {
        Some(path) => secret(path, "the password of etcd's user")?,
        None => std::env::var(ETCD_PASSWORD_VARIABLE).with_context(|| {
            format!(
                "--etcd-user needs a password: --etcd-password-file or {ETCD_PASSWORD_VARIABLE}"
            )
        })?,
    };
    Ok(Some(EtcdUser { name, password }))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::addresses::check_advertised;
    use super::super::{RunNode, with_chosen_engine};
    use super::*;

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let given = |change: fn(&mut NodeOptions)| {
            let mut options = NodeOptions::default();
            change(&mut options);
            options.effective().expect("options")
        };
        let unknown = given(|options| options.shared.engine = Some("none".to_owned()));
        let configuration = |options: &NodeOptions| configuration(options, &Extended::default());
        let error = with_chosen_engine(&unknown, RunNode(&unknown)).expect_err("no such engine");
        assert!(error.to_string().contains("mercury"));
        assert!(configuration(&given(|options| options.shared.threads = Some(0))).is_err());
        assert!(configuration(&given(|options| options.super_peers = Some(0))).is_err());
        assert!(configuration(&given(|options| options.super_peers = Some(101))).is_err());
        let half = configuration(&given(|options| options.super_peers = Some(50)));
        assert!(half.is_ok_and(|half| half.super_share_percent == 50));
        assert!(configuration(&given(|o| o.listen = Some("nowhere".to_owned()))).is_err());
        assert!(etcd(&given(|options| options.cluster = Some("a/b".to_owned()))).is_err());
        assert!(token(Some(Path::new("/nonexistent"))).is_err());
        let bare = given(|options| {
            (options.backups, options.backup_dir) = (Some(1), Some("copies".into()));
            options.backup_space = Some("64".parse().expect("a size"));
        });
        let space = backups(&bare).expect("backups").expect("some").space_bytes;
        assert_eq!(space, 64 << 20, "mebibytes, as for the other sizes");
    }

    #[test]
    fn others_are_told_an_address_at_which_they_find_the_node() {
        let given = |listen: &str, advertise: Option<&str>| {
            let listen = Some(listen.to_owned());
            let advertise = advertise.map(str::to_owned);
            let options = NodeOptions { listen, advertise, ..NodeOptions::default() };
            let options = options.effective().expect("options");
            configuration(&options, &Extended::default()).expect("a configuration")
        };
        let check = |listen, advertise| check_advertised(&given(listen, advertise));
        assert!(check("0.0.0.0:7911", Some("10.0.0.7:7911")).is_ok());
        assert!(check("10.0.0.7:0", None).is_ok(), "the port is known when it listens");
        for listen in ["0.0.0.0:7911", "[::]:7911"] {
            let error = check(listen, None).expect_err("it would be told to others").to_string();
            assert!(error.contains("--advertise"), "{error}");
            assert!(check("10.0.0.7:7911", Some(listen)).is_err());
        }
        assert!(check("10.0.0.7:7911", Some("10.0.0.7:0")).is_err());
        // Two nodes that listen on the same address have different names.
        assert_eq!(given("0.0.0.0:7911", Some("10.0.0.7:7911")).name, "", "the node's address");
        let mut exposed = given("0.0.0.0:7911", Some("127.0.0.1:7911"));
        assert!(is_open_to_all(&exposed) && !is_open_to_all(&given("127.0.0.1:7911", None)));
        exposed.token = "secret".to_owned();
        assert!(!is_open_to_all(&exposed));
    }
}
