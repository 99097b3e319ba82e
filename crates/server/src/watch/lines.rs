//! The lines that watchers receive, in memcached's words.

use amalgam_index::mem::Evicted;

use crate::net::registry::{CloseReason, ConnectionInfo};
use crate::uri::uri_encoded;
use crate::watch::events::Events;
use crate::watch::log::WatchLog;

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadResult {
    /// An item; the length of its value in bytes.
    Found(usize),
    /// No item.
    NotFound,
    /// An item that was flushed.
    Flushed,
    /// An item that had expired.
    Expired,
}

/// An executed store.
#[derive(Clone, Copy, Debug)]
pub struct StoreEvent<'s> {
    /// memcached's word for its outcome.
    pub status: &'s str,
    /// The name of the command.
    pub command: &'s str,
    /// Seconds until the item expires; 0 for never.
    pub ttl_seconds: u32,
    /// Length of the value in bytes.
    pub value_bytes: usize,
}

/// Writes lines about the requests of one batch.
#[derive(Clone, Copy)]
pub struct Lines<'s> {
    /// The log to append to.
    pub log: &'s WatchLog,
    /// The kinds that watchers asked for when the batch began.
    pub wanted: Events,
}

/// The slab class in all lines about requests: the item's real class is not known here.
const CLASS: u32 = 1;

impl Lines<'_> {
    /// Reports that a key was read on the connection with file descriptor `number`.
    pub fn get(&self, key: &[u8], get: ReadResult, number: i32) {
        let (status, class, bytes) = match get {
            ReadResult::Found(bytes) => ("found", CLASS, bytes),
            ReadResult::NotFound => ("not_found", 0, 0),
            ReadResult::Flushed => ("flushed", CLASS, 0),
            ReadResult::Expired => ("expired", CLASS, 0),
        };
        let key = uri_encoded(key);
        self.log.add(
            Events::FETCHERS,
            format_args!(
                "type=item_get key={key} status={status} clsid={class} cfd={number} size={bytes}"
            ),
        );
    }

    /// Reports a store.
    pub fn stored(&self, key: &[u8], stored: &StoreEvent<'_>, number: i32) {
        let StoreEvent { status, command, ttl_seconds, value_bytes } = stored;
        let key = uri_encoded(key);
        self.log.add(
            Events::MUTATIONS,
            format_args!(
                "type=item_store key={key} status={status} cmd={command} ttl={ttl_seconds} \
                 clsid={CLASS} cfd={number} size={value_bytes}"
            ),
        );
    }

    /// Reports the deletion of an item with a value of `value_bytes`.
    pub fn deleted(&self, key: &[u8], command: &str, value_bytes: usize) {
        let key = uri_encoded(key);
        self.log.add(
            Events::DELETIONS,
            format_args!("type=deleted key={key} cmd={command} clsid={CLASS} size={value_bytes}"),
        );
    }
}

impl WatchLog {
    /// Reports an eviction.
    pub fn evicted(&self, evicted: &Evicted, class: u32) {
        let Evicted { key, is_fetched, ttl_seconds, value_bytes, .. } = evicted;
        let (key, fetched) = (uri_encoded(key), if *is_fetched { "yes" } else { "no" });
        let ttl = ttl_seconds.map_or(-1, i64::from);
        self.add(
            Events::EVICTIONS,
            format_args!(
                "type=eviction key={key} fetch={fetched} ttl={ttl} la=0 clsid={class} \
                 size={value_bytes}"
            ),
        );
    }

    /// Reports a new connection.
    pub fn opened(&self, info: &ConnectionInfo) {
        if self.wanted().meets(Events::CONNECTIONS) {
            let (ip, port, transport) = endpoint(info);
            let number = info.number;
            self.add(
                Events::CONNECTIONS,
                format_args!(
                    "type=conn_new rip={ip} rport={port} transport={transport} cfd={number}"
                ),
            );
        }
    }

    /// Reports that a connection was closed.
    pub fn closed(&self, info: &ConnectionInfo, reason: CloseReason) {
        if self.wanted().meets(Events::CONNECTIONS) {
            let (ip, port, transport) = endpoint(info);
            let number = info.number;
            let reason = match reason {
                CloseReason::Error => "error",
                CloseReason::Normal => "normal",
                CloseReason::IdleTimeout => "idle_timeout",
                CloseReason::SendTimeout => "send_timeout",
                CloseReason::BuffersFull => "buffers_full",
                CloseReason::Shutdown => "shutdown",
            };
            self.add(
                Events::CONNECTIONS,
                format_args!(
                    "type=conn_close rip={ip} rport={port} transport={transport} \
                     reason={reason} cfd={number}"
                ),
            );
        }
    }
}

fn endpoint(info: &ConnectionInfo) -> (String, u16, &'static str) {
    match info.peer {
        Some(peer) => (peer.ip().to_string(), peer.port(), "tcp"),
        None => ("unix".to_owned(), 0, "local"),
    }
}
