//! What a client asks nodes about themselves, and has an operator's node do. These calls block.

use std::time::Duration;

use amalgam_cluster::ids::{ChunkId, IdRange, NodeId};
use amalgam_cluster::overlay::Peer;
use amalgam_cluster::wire::{Control, NodeMemory, NodeStatus, OwnedRange, Packet};
use amalgam_op::MAX_KEY_BYTES;

use super::{ClusterClient, DIAL_PATIENCE, HOMES_MAX, PATIENCE};
use crate::client_connection::{ClientError, open_first};
use crate::clock::boot_ms;

impl ClusterClient {
    /// The status of the node that was connected to first, with the members that it knows.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn status(&mut self) -> Result<NodeStatus, ClientError> {
        match self.ask_first(&Control::GetStatus)? {
            Control::Status(status) => {
                self.learn_members(&status);
                Ok(*status)
            }
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }

    /// The memory of the node that was connected to first.
    ///
    /// # Errors
    ///
    /// [`ClientError`], also if the node is of a release that does not tell.
    pub fn memory(&mut self) -> Result<NodeMemory, ClientError> {
        match self.ask_first(&Control::GetMemory)? {
            Control::Memory(memory) => Ok(memory),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }

    /// The range around an id on the node that was connected to first; None if it does not own the
    /// id.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn holding(&mut self, id: ChunkId) -> Result<Option<OwnedRange>, ClientError> {
        match self.ask_first(&Control::GetOwnership(id))? {
            Control::Ownership(holding) => Ok(holding),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }

    /// The named id of a key.
    ///
    /// # Errors
    ///
    /// [`ClientError`], also if the key is empty or too long.
    pub fn place(&mut self, key: &[u8]) -> Result<ChunkId, ClientError> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(ClientError::Answer(format!("a key has 1 to {MAX_KEY_BYTES} bytes")));
        }
        let question = Control::LocateItem(key.to_vec());
        let mut answer = self.ask(self.home, &question, DIAL_PATIENCE);
        for _ in 0..HOMES_MAX {
            if answer.is_ok() {
                break;
            }
            self.lose(self.home);
            self.find_home();
            answer = self.ask(self.home, &question, DIAL_PATIENCE);
        }
        match answer? {
            Control::ItemLocation(id) => Ok(id),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }

    /// Has the node that was connected to first move ids that it owns to another. Whether it
    /// starts to.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn migrate(&mut self, ids: IdRange, target: NodeId) -> Result<bool, ClientError> {
        match self.ask_first(&Control::Migrate { ids, target })? {
            Control::Migrating(does) => Ok(does),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }

    /// Has the node that was connected to first hand everything it has to other nodes and accept
    /// nothing more. Whether they have everything; call it again until they do.
    ///
    /// # Errors
    ///
    /// [`ClientError`].
    pub fn drain(&mut self) -> Result<bool, ClientError> {
        match self.ask_first(&Control::Drain)? {
            Control::Drained(is) => Ok(is),
            other => Err(ClientError::Answer(format!("{other:?}"))),
        }
    }

    /// Sends a control request to the node that was connected to first, never to another.
    fn ask_first(&mut self, question: &Control) -> Result<Control, ClientError> {
        match self.ask(self.first, question, PATIENCE)? {
            Control::Forbidden => Err(ClientError::Forbidden),
            answer => Ok(answer),
        }
    }

    /// Sends a control request and waits for the answer. Requires: no operation is in flight.
    fn ask(
        &mut self,
        peer: Peer,
        question: &Control,
        patience: Duration,
    ) -> Result<Control, ClientError> {
        let gone = || ClientError::Answer("the node does not answer".to_owned());
        if !self.connections.contains_key(&peer) {
            let address = self.addresses.get(&peer).cloned().ok_or_else(gone)?;
            let connection = open_first(&[address], &self.identity, patience)?;
            if (connection.peer, connection.cluster) != (peer, self.cluster) {
                return Err(ClientError::Answer(
                    "another node listens at this address now".to_owned(),
                ));
            }
            self.pending.remove(&peer);
            self.open(peer, connection);
        }
        self.number += 1;
        let connection = self.connections.get_mut(&peer).ok_or_else(gone)?;
        connection.push(self.number, &Packet::Control(question.clone()));
        let mut is_alive = connection.send().is_ok();
        let end_ms = boot_ms() + patience.as_millis() as u64;
        while is_alive && boot_ms() < end_ms {
            match connection.next() {
                Ok(Some((number, Packet::Control(answer)))) if number == self.number => {
                    return Ok(answer);
                }
                // A late answer to a request that was given up.
                Ok(Some(_)) => {}
                Ok(None) => {
                    connection.wait();
                    is_alive = connection.receive(&mut self.buffer);
                }
                Err(_) => is_alive = false,
            }
        }
        self.connections.remove(&peer);
        Err(gone())
    }
}
