//! `stats conns`: the listening sockets and the open connections.

use std::fmt::Display;

use amalgam_index::Store;

use crate::report::general::StatSink;
use crate::state::server_state::ServerState;

/// Reports `stats conns`. `own_number` is the file descriptor of the connection that asks.
pub fn conns<S: Store>(state: &ServerState<S>, own_number: i32, stat: &mut StatSink<'_>) {
    let seconds = state.clock.seconds();
    let mut rows = Vec::new();
    for listener in &state.listeners {
        let activity = if listener.is_udp { "conn_read" } else { "conn_listening" };
        let name = listener.name.clone();
        rows.push((listener.number, listener.is_udp, name, None, activity, seconds));
    }
    for info in state.registry.all() {
        let activity = match info.number == own_number {
            true => "conn_parse_cmd",
            false => info.state_name(),
        };
        let idle = seconds.saturating_sub(info.active_seconds());
        let local = Some(info.local.clone());
        rows.push((info.number, false, info.peer_name(), local, activity, idle));
    }
    rows.sort_by_key(|row| row.0);
    for (number, is_udp, name, local, activity, idle) in rows {
        let mut row = |title: &str, value: &dyn Display| stat(&format!("{number}:{title}"), value);
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
}
