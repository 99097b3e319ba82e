//! `amalgam cluster restore`: a cluster under an etcd that has lost its state, or under a new one.

use std::io::Write;
use std::path::PathBuf;

use amalgam_node::RestorePlan;
use anyhow::{Context, ensure};
use clap::Args;

use super::NodeOptions;
use super::configuration::open_etcd;

/// Options of `amalgam cluster restore`.
#[derive(Args)]
pub struct RestoreOptions {
    /// The file `cluster-state` of each node's --backup-dir, or copies of them; no node may be
    /// running
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Endpoint of the new etcd; may be repeated or hold a comma-separated list
    #[arg(long, value_name = "URL", value_delimiter = ',', required = true)]
    etcd: Vec<String>,
    /// The CA that signed etcd's certificates (PEM); required for https
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// The certificate to present to etcd, followed by intermediate certificates (PEM)
    #[arg(long, value_name = "FILE")]
    etcd_cert: Option<PathBuf>,
    /// The private key of --etcd-cert (PEM) [default: in the file of the certificate]
    #[arg(long, value_name = "FILE")]
    etcd_key: Option<PathBuf>,
    /// The user of etcd to authenticate as
    #[arg(long, value_name = "NAME")]
    etcd_user: Option<String>,
    /// A file with that user's password [default: the environment variable AMALGAM_ETCD_PASSWORD]
    #[arg(long, value_name = "FILE")]
    etcd_password_file: Option<PathBuf>,
    /// Name of the cluster in etcd
    #[arg(long, value_name = "NAME", default_value = "default")]
    cluster: String,
    /// Restore although copies are missing: what only those nodes have is lost
    #[arg(long)]
    incomplete: bool,
}

/// Checks what the copies cover, says so, and writes the state.
///
/// # Errors
///
/// If a copy cannot be read, the copies are not complete and `--incomplete` is not given, or etcd
/// holds the cluster already; the text says what to do.
pub fn restore(options: &RestoreOptions) -> anyhow::Result<()> {
    let plan = RestorePlan::read(&options.files).map_err(anyhow::Error::msg)?;
    let mut output = std::io::stdout().lock();
    writeln!(
        output,
        "cluster {:x} at revision {}: {} members, {} groups of super peers",
        plan.state.cluster, plan.revision, plan.members, plan.groups
    )?;
    if !plan.missing.is_empty() {
        writeln!(output, "without a copy: {}", plan.missing.join(", "))?;
    }
    if plan.broken_groups > 0 {
        writeln!(output, "groups of which too few copies are here: {}", plan.broken_groups)?;
    }
    ensure!(
        plan.is_complete() || options.incomplete,
        "the copies are not complete: give the file 'cluster-state' of every node, or restore what \
         there is with --incomplete"
    );
    let node = NodeOptions {
        etcd: options.etcd.clone(),
        etcd_ca: options.etcd_ca.clone(),
        etcd_cert: options.etcd_cert.clone(),
        etcd_key: options.etcd_key.clone(),
        etcd_user: options.etcd_user.clone(),
        etcd_password_file: options.etcd_password_file.clone(),
        cluster: Some(options.cluster.clone()),
        ..NodeOptions::default()
    };
    open_etcd(&node)?.restore(&plan.state).context("the state was not written to etcd")?;
    writeln!(output, "the state is written: start all nodes with their names and folders")?;
    if !plan.is_complete() {
        writeln!(output, "where a folder is lost, start the node of that name with an empty one")?;
    }
    Ok(())
}
