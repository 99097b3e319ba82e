//! The lines of the log, in memcached's words.

use amalgam_index::mem::Evicted;

use super::{Events, Log};
use crate::hot_keys::uri_encoded;
use crate::roster::Badge;

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Get {
    /// An item with a value of so many bytes.
    Found(usize),
    /// None.
    NotFound,
    /// One that was flushed.
    Flushed,
    /// One that had expired.
    Expired,
}

/// What came of a store.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'s> {
    /// memcached's word for what came of it.
    pub status: &'s str,
    /// The name of the command.
    pub command: &'s str,
    /// Seconds to live; 0 for ever.
    pub ttl_seconds: u32,
    /// Bytes of the value that was sent.
    pub value_bytes: usize,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It broke, or the client broke the protocol.
    Error,
    /// The client closed it.
    Normal,
    /// It was silent for too long.
    IdleTimeout,
    /// The server shuts down.
    Shutdown,
}

/// Makes lines of what happens on one connection.
#[derive(Clone, Copy)]
pub struct Lines<'s> {
    /// Where they go.
    pub log: &'s Log,
    /// What is asked for.
    pub wanted: Events,
}

/// memcached's class of an item is not known here; its smallest stands for all.
const CLASS: u32 = 1;

impl Lines<'_> {
    /// A key was read on the connection with this number.
    pub fn get(&self, key: &[u8], get: Get, number: i32) {
        let (status, class, bytes) = match get {
            Get::Found(bytes) => ("found", CLASS, bytes),
            Get::NotFound => ("not_found", 0, 0),
            Get::Flushed => ("flushed", CLASS, 0),
            Get::Expired => ("expired", CLASS, 0),
        };
        let key = uri_encoded(key);
        self.log.add(
            Events::FETCHERS,
            format_args!(
                "type=item_get key={key} status={status} clsid={class} cfd={number} size={bytes}"
            ),
        );
    }

    /// A value was to be stored.
    pub fn stored(&self, key: &[u8], stored: &Stored<'_>, number: i32) {
        let Stored { status, command, ttl_seconds, value_bytes } = stored;
        let key = uri_encoded(key);
        self.log.add(
            Events::MUTATIONS,
            format_args!(
                "type=item_store key={key} status={status} cmd={command} ttl={ttl_seconds} \
                 clsid={CLASS} cfd={number} size={value_bytes}"
            ),
        );
    }

    /// An item whose value had so many bytes was deleted.
    pub fn deleted(&self, key: &[u8], command: &str, value_bytes: usize) {
        let key = uri_encoded(key);
        self.log.add(
            Events::DELETIONS,
            format_args!("type=deleted key={key} cmd={command} clsid={CLASS} size={value_bytes}"),
        );
    }
}

impl Log {
    /// An item was removed to make room.
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

    /// A connection began.
    pub fn opened(&self, badge: &Badge) {
        if self.wanted().meets(Events::CONNECTIONS) {
            let (ip, port, transport) = endpoint(badge);
            let number = badge.number;
            self.add(
                Events::CONNECTIONS,
                format_args!(
                    "type=conn_new rip={ip} rport={port} transport={transport} cfd={number}"
                ),
            );
        }
    }

    /// A connection ended.
    pub fn closed(&self, badge: &Badge, ending: Ending) {
        if self.wanted().meets(Events::CONNECTIONS) {
            let (ip, port, transport) = endpoint(badge);
            let number = badge.number;
            let reason = match ending {
                Ending::Error => "error",
                Ending::Normal => "normal",
                Ending::IdleTimeout => "idle_timeout",
                Ending::Shutdown => "shutdown",
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

fn endpoint(badge: &Badge) -> (String, u16, &'static str) {
    match badge.peer {
        Some(peer) => (peer.ip().to_string(), peer.port(), "tcp"),
        None => ("unix".to_owned(), 0, "local"),
    }
}
