//! `amalgam cluster drain`: a node hands over what it has, and goes on serving.

use std::io::Write;
use std::time::Duration;

use amalgam_node::ClusterClient;
use anyhow::{Context, ensure};

use super::ConnectOptions;

/// The pause between two requests for the progress.
const DRAIN_PAUSE: Duration = Duration::from_millis(500);

/// Drains a node, and says what is left until it can be stopped.
///
/// # Errors
///
/// If the node does not answer, does not accept the credentials, or is the only one and has no log.
pub fn drain(options: &ConnectOptions) -> anyhow::Result<()> {
    let node = options.node()?;
    let mut client = ClusterClient::connect(&[node.to_owned()], &options.credentials()?, 0)
        .with_context(|| format!("no node of a cluster answers at {node}"))?;
    let mut output = std::io::stdout().lock();
    let mut last = String::new();
    loop {
        let has_left = client.drain()?;
        let status = client.status()?;
        let is_only = status.members.len() <= 1;
        ensure!(
            !is_only || status.backups > 0,
            "the node is the only one, and has no log: nobody could take what it has"
        );
        let text = match (has_left, is_only) {
            (true, true) => "the node's own log has all that it has: it can be stopped".to_owned(),
            (true, false) => "others have all that the node had: it can be stopped".to_owned(),
            (false, true) => format!("{} ranges are not in its own log", status.reduced.0),
            (false, false) => {
                format!("{} partitions and {} chunk ids are left", status.partitions, status.ids)
            }
        };
        if last != text {
            writeln!(output, "{text}")?;
        }
        if has_left {
            return Ok(());
        }
        last = text;
        std::thread::sleep(DRAIN_PAUSE);
    }
}
