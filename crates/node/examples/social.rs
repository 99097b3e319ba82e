//! A client of a cluster's chunks: members of a social network, and who knows whom.
//!
//! ```sh
//! amalgam cluster dev --nodes 3        # prints where its nodes listen
//! cargo run -p amalgam-node --example social 127.0.0.1:PORT
//! ```

use amalgam_node::ClusterClient;
use amalgam_node::cluster::chunks::{Action, Response};
use amalgam_node::cluster::ids::ChunkId;

const MEMBERS: usize = 100;
/// Memory for where chunks are: what is in it is asked for once.
const CACHE_BYTES: usize = 1 << 20;
const LOCK_MS: u64 = 5_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nodes: Vec<String> = std::env::args().skip(1).collect();
    // Any node will do, several outlive one; "" is the join token of a cluster that has none.
    let mut client = ClusterClient::connect(&nodes, "", CACHE_BYTES)?;

    // What is asked for in one call travels together.
    let profile = |number| Action::Create(format!("profile of {number}").into_bytes());
    let mut members: Vec<ChunkId> = Vec::new();
    for done in client.call_all((0..MEMBERS).map(profile).collect()) {
        if let Response::Created(id) = done? {
            members.push(id);
        }
    }

    // Chunks hold the ids of others. A name leads to the first.
    let friends: Vec<u8> = members.iter().flat_map(|id| id.bits().to_le_bytes()).collect();
    let list = client.create(&friends)?;
    client.name(b"friends of 0", list)?;

    let found = client.named(b"friends of 0")?;
    let friends = client.get(found)?;
    let mut ids = Vec::new();
    for bits in friends.chunks_exact(8) {
        ids.push(ChunkId::from_bits(u64::from_le_bytes(bits.try_into()?))?);
    }
    let profiles = client.get_all(&ids).into_iter().collect::<Result<Vec<_>, _>>()?;
    println!("0 has {} friends; the last is {}", profiles.len(), text(&profiles[MEMBERS - 1]));

    // A client that reads, changes and writes a chunk that others write, too, locks it meanwhile.
    // If that takes longer than the lease, the put is refused and overwrites nothing.
    let token = client.lock(members[0], LOCK_MS)?;
    let mut changed = client.get(members[0])?;
    changed.extend_from_slice(b", who moved");
    client.put_fenced(members[0], &changed, token)?;
    client.unlock(members[0])?;
    println!("{}", text(&client.get(members[0])?));

    for id in members.into_iter().chain([list]) {
        client.delete(id)?;
    }
    client.unname(b"friends of 0")?;
    Ok(())
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
