//! Starts a whole cluster in this process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use amalgam_index::Engine;

use crate::membership::Membership;
use crate::node::{NodeConfiguration, NodeError, RunningNode};

/// Time limit for the nodes to share all partitions of the named ids.
const PATIENCE: Duration = Duration::from_secs(120);

/// Starts nodes that find each other through `membership`, and waits until they share all keys.
/// They listen on the port of `template` and those after it, or on any free ports where that is 0,
/// and differ otherwise only in their names.
///
/// # Errors
///
/// [`NodeError`] of the first that does not start.
pub fn start_local<E: Engine>(
    nodes: usize,
    template: &NodeConfiguration,
    membership: &Arc<dyn Membership>,
) -> Result<Vec<RunningNode>, NodeError> {
    let start = |number: usize| {
        let name = format!("{}-{}", template.name, number + 1);
        // Port 0 lets the system choose.
        let port = match template.listen.port() {
            0 => 0,
            first => first.saturating_add(number as u16),
        };
        let listen = SocketAddr::new(template.listen.ip(), port);
        let mut configuration = NodeConfiguration { name, listen, ..template.clone() };
        if let Some(backups) = &mut configuration.backups {
            backups.folder.push(&configuration.name);
        }
        RunningNode::start::<E>(&configuration, Arc::clone(membership))
    };
    let running = (0..nodes).map(start).collect::<Result<Vec<_>, _>>()?;
    if let Some(first) = running.first() {
        first.wait_until_ready(PATIENCE)?;
    }
    Ok(running)
}
