//! `stats conns`: the listening sockets and the open connections.

use std::fmt::Display;
use std::io::Write;

use amalgam_index::Store;

use crate::state::server_state::ServerState;

/// Sockets that one call reports.
const ROWS: usize = 32;

/// Appends the lines of `stats conns` for the first [`ROWS`] sockets whose file descriptors are
/// above `after`. `own` is that of the connection that asks. Returns the last one; None if no other
/// follows.
pub fn conns<S: Store>(
    state: &ServerState<S>,
    own: i32,
    after: i32,
    out: &mut Vec<u8>,
) -> Option<i32> {
    let seconds = state.clock.seconds();
    let mut rows = Vec::new();
    for listener in state.listeners.iter().filter(|listener| listener.number > after) {
        let activity = if listener.is_udp { "conn_read" } else { "conn_listening" };
        let name = listener.name.clone();
        rows.push((listener.number, listener.is_udp, name, None, activity, seconds));
    }
    for info in state.registry.after(after, ROWS + 1) {
        let is_own = info.number == own;
        let activity = if is_own { "conn_parse_cmd" } else { info.state_name() };
        let idle = seconds.saturating_sub(info.active_seconds());
        let local = Some(info.local.clone());
        rows.push((info.number, false, info.peer_name(), local, activity, idle));
    }
    rows.sort_by_key(|row| row.0);
    let has_more = rows.len() > ROWS;
    rows.truncate(ROWS);
    let last = rows.last().map(|row| row.0);
    for (number, is_udp, name, local, activity, idle) in rows {
        let mut row = |title: &str, value: &dyn Display| {
            // Writing to memory does not fail.
            let _ = write!(out, "STAT {number}:{title} {value}\r\n");
        };
        if is_udp {
            row("UDP", &"UDP");
        }
        row("addr", &name);
        if let Some(local) = local {
            row("listen_addr", &local);
        }
        row("state", &activity);
        row("secs_since_last_cmd", &idle);
    }
    last.filter(|_| has_more)
}
