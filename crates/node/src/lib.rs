//! Runs a node of the cluster: the sockets, clocks and threads around [`amalgam_cluster`].
//!
//! `membership` is what the coordinator decides for all nodes; it is kept in this process or in
//! etcd (`etcd`, `etcd_client`). `lease_keeper` renews a node's lease there. `event_loop` is the
//! thread that reads, decides and sends, over each `connection`, of which `admission` bounds those
//! that proved nothing yet; `file_storage` holds its backups.
//! `client` talks to all nodes (`client_connection`), and `gateway` lets the server answer
//! memcached's clients for the whole cluster, with the items of its own node at hand
//! (`owned_items`), what its event loop has to execute by way of `own_requests`, and those of
//! others later (`late`). `state_file` keeps a copy of what etcd holds
//! next to a node's backups, and `restore` makes a cluster of such copies. `report` and
//! `cluster_status` tell what a node and all nodes do, with `round_trips` between them.
//! `fuzzing`, in builds of fuzz targets only, has doors to what is otherwise reached through
//! sockets.
//!
//! Invariants of this crate:
//! 1. [`amalgam_cluster`] makes all decisions of a node; this crate only brings it its inputs.
//! 2. Every queue and every wait is bounded.
//! 3. No `unsafe`.

#![forbid(unsafe_code)]

mod admission;
mod cached_count;
mod client;
mod client_connection;
mod clock;
mod cluster_status;
mod connection;
mod etcd;
mod etcd_client;
mod event_loop;
mod file_storage;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gateway;
mod handshake;
mod late;
mod lease_keeper;
mod local;
mod log_writer;
mod membership;
mod node;
mod node_engines;
mod node_state;
mod own_requests;
mod owned_items;
mod report;
mod reserve;
mod restore;
mod round_trips;
mod silence;
mod state_file;

pub use amalgam_cluster as cluster;
pub use amalgam_tls::{MutualTls, TlsError, TlsFiles};
pub use client::ClusterClient;
pub use client_connection::ClientError;
pub use clock::boot_ms;
pub use cluster_status::{ClusterStatus, NodeAnswer, NodeEntry};
pub use etcd::Etcd;
pub use etcd_client::{EtcdConfiguration, EtcdUser};
pub use file_storage::FileStorage;
pub use gateway::{Gateway, GatewayWorker};
pub use handshake::{Credentials, HandshakeError};
pub use lease_keeper::FINAL_TARGET;
pub use local::start_local;
pub use membership::{
    ClusterState, ClusterStateError, Embedded, Joined, Membership, MembershipError, Snapshot,
};
pub use node::{BackupConfiguration, NodeConfiguration, NodeError, RunningNode};
pub use restore::RestorePlan;
pub use state_file::STATE_FILE;
