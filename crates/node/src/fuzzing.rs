//! Entry points for fuzz targets into what programs reach only through sockets. Compiled with
//! `--cfg fuzzing` alone.

use serde_json::Value;

use crate::etcd::Etcd;
use crate::etcd_client::EtcdConfiguration;
pub use crate::etcd_client::answer as etcd_answer;
pub use crate::handshake::{Handshake, Identity};
use crate::membership::{ClusterState, MembershipError};

/// An etcd that is never called, whose cluster is named `default`.
pub fn etcd() -> Etcd {
    let endpoints = vec!["http://127.0.0.1:1".to_owned()];
    let configuration = EtcdConfiguration { endpoints, ..EtcdConfiguration::default() };
    Etcd::open(&configuration).expect("an endpoint")
}

/// The state of the cluster in etcd's answer about all keys of the cluster, and the names of the
/// members that are alive.
///
/// # Errors
///
/// [`MembershipError::Unreadable`].
pub fn etcd_state(
    etcd: &Etcd,
    answer: &Value,
) -> Result<(Option<ClusterState>, Vec<String>), MembershipError> {
    etcd.keys(answer).map(|keys| (keys.state, keys.alive))
}
