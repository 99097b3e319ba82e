//! The cluster behind the face of a store, so that the server answers memcached's clients for all
//! nodes: its workers execute what this node owns, and have the owners of other keys execute the
//! rest. This node's event loop is such an owner too, for what a worker may not do by itself.
//!
//! Invariants of this module:
//! 1. The owner of a key executes the whole operation, so its linearization point is that of the
//!    owner's engine, whichever node's gateway received it.
//! 2. What cannot be answered is an error to the client: [`Outcome::Unavailable`] if nothing was
//!    done, [`Outcome::Unknown`] if the owner may have executed it, which it does within
//!    [`OPERATION_MS`] or never. A read without an answer is a miss only if the operator wants that
//!    ([`Gateway::answer_misses`]). What was refused leaves the old value.
//! 3. `flush_all` succeeds when every member has executed it, and fails if that is not known within
//!    [`FLUSH_MS`], or the coordinator does not answer. One with a delay succeeds when the
//!    coordinator has it: whichever node finds it due has it executed.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use amalgam_cluster::chunks::{
    Action, ChunkError, ItemAnswer, ItemOp, ItemRecord, ItemVerb, Response, from_relative,
    with_times,
};
use amalgam_cluster::ids::ChunkId;
use amalgam_index::{Cursor, Flush, Found, Sink, Statistics, Store, Worker};
use amalgam_op::{Expiry, HashSeed, Hit, ItemView, Key, Now, Op, Outcome, Value, Verb};

use crate::client::ClusterClient;
use crate::client_connection::ClientError;
use crate::clock::{boot_ms, unix_ms};
use crate::handshake::Credentials;
use crate::membership::{Membership, Snapshot};
use crate::node_engines::NodeEngines;
use crate::node_state::NodeState;
use crate::owned_items::{OwnedItems, ReadEnd};
use crate::silence::{Deadlines, SilentNodes};

/// Memory of a worker for the owners of keys, in bytes.
const CACHE_BYTES: usize = 4 << 20;
/// Keys of a batch that are requested at a time: a worker holds their values before it answers the
/// first, however long they are.
const BATCH_KEYS: usize = 128;
/// Time after which an operation is given up, in milliseconds.
const OPERATION_MS: u64 = 1_000;
/// Silence after which a node that owes answers counts as silent, in milliseconds.
const SILENT_MS: u64 = 500;
/// Pause after the gateway could not connect to its node, in milliseconds.
const RECONNECT_MS: u64 = 1_000;
/// Time limit of a flush, for members that do not answer and have not left either, in milliseconds.
const FLUSH_MS: u64 = 30_000;

/// A store whose items are those of the whole cluster. Any thread may call it. Statistics and scans
/// are of the items of this node.
pub struct Gateway {
    engines: Arc<dyn NodeEngines>,
    state: Arc<NodeState>,
    membership: Arc<dyn Membership>,
    node_address: String,
    credentials: Credentials,
    silent: Arc<SilentNodes>,
    answers_misses: bool,
}

impl Gateway {
    /// In front of a node that has these engines and listens at `node_address`.
    pub fn new(
        engines: Arc<dyn NodeEngines>,
        state: Arc<NodeState>,
        membership: Arc<dyn Membership>,
        node_address: String,
        credentials: Credentials,
    ) -> Self {
        let silent = Arc::default();
        let answers_misses = false;
        Self { engines, state, membership, node_address, credentials, silent, answers_misses }
    }

    /// Answers reads that cannot be answered with misses, as a cache may.
    pub fn answer_misses(self) -> Self {
        Self { answers_misses: true, ..self }
    }

    fn connect(&self) -> Result<ClusterClient, ClientError> {
        let home = std::slice::from_ref(&self.node_address);
        let mut client = ClusterClient::connect(home, &self.credentials, CACHE_BYTES)?;
        let silent = Arc::clone(&self.silent);
        let (operation_ms, silent_ms) = (OPERATION_MS, SILENT_MS);
        client.set_deadlines(Deadlines { operation_ms, silent_ms, silent });
        Ok(client)
    }

    /// Drops all items of all nodes.
    fn flush_now(&self) -> Result<(), String> {
        let decided = self.membership.flush().map_err(|error| error.to_string())?;
        let end_ms = boot_ms() + FLUSH_MS;
        loop {
            let snapshot = self.state.snapshot();
            let behind: Vec<_> =
                snapshot.members().filter(|(_, at)| !self.has_flushed(at, decided)).collect();
            if snapshot.flushes >= decided && behind.is_empty() {
                return Ok(());
            }
            if boot_ms() >= end_ms {
                return Err(format!("{} nodes have not executed it in time", behind.len()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Number of partitions of the named ids that the members serve; None while one of them does
    /// not answer.
    pub fn partitions_served(&self) -> Option<usize> {
        let snapshot = self.state.snapshot();
        let served = snapshot.members().map(|(_, address)| {
            let client = ClusterClient::connect(&[address.to_owned()], &self.credentials, 0);
            Some(client.ok()?.status().ok()?.partitions as usize)
        });
        served.sum()
    }

    fn has_flushed(&self, address: &str, decided: u64) -> bool {
        let client = ClusterClient::connect(&[address.to_owned()], &self.credentials, 0);
        let status = client.and_then(|mut client| client.status());
        status.is_ok_and(|status| status.flushes >= decided)
    }
}

impl Store for Gateway {
    const NAME: &'static str = "cluster";
    const FAILED_SETS_REMOVE: bool = false;
    type Worker<'i> = GatewayWorker<'i>;

    fn worker(&self) -> GatewayWorker<'_> {
        let items = OwnedItems::new(self.engines.item_worker(), &self.state);
        let snapshot = Arc::default();
        GatewayWorker { gateway: self, items, client: None, retry_ms: 0, snapshot }
    }

    fn seed(&self) -> &HashSeed {
        self.engines.seed()
    }

    fn statistics(&self) -> Statistics {
        self.engines.statistics()
    }

    fn set_memory_limit(&self, bytes: usize) {
        self.engines.set_memory_limit(bytes);
    }

    fn flush(&self, delay_seconds: i64) -> Flush {
        if delay_seconds > 0 {
            let now = self.state.clock.now();
            let due = Expiry::from_client(delay_seconds, &now);
            let left_seconds = due.remaining_seconds(&now).unwrap_or(0);
            let due_unix_ms = unix_ms() + u64::from(left_seconds) * 1_000;
            if let Err(error) = self.membership.schedule_flush(due_unix_ms) {
                log::error!(error:%; "a delayed flush_all was not scheduled");
                return Flush::Incomplete;
            }
        } else if let Err(error) = self.flush_now() {
            log::error!(error; "flush_all failed");
            return Flush::Incomplete;
        }
        Flush::Done
    }
}

/// A server's worker: a client of the cluster.
pub struct GatewayWorker<'i> {
    gateway: &'i Gateway,
    items: OwnedItems<'i>,
    client: Option<ClusterClient>,
    /// When to try to connect again, in [`boot_ms`].
    retry_ms: u64,
    /// The members that `client` knows.
    snapshot: Arc<Snapshot>,
}

/// The request to a key's owner.
fn item_action(key: &Key<'_>, verb: ItemVerb) -> Action {
    let op = Box::new(ItemOp { key: key.bytes().to_vec(), verb });
    Action::Item { id: ChunkId::named(key.hash()), op }
}

impl GatewayWorker<'_> {
    fn call(&mut self, actions: Vec<Action>) -> Vec<Result<Response, ChunkError>> {
        let count = actions.len();
        // A node that is cut off could only wait; its clients should turn to another node.
        if boot_ms() >= self.gateway.state.deadline_ms() {
            return vec![Err(ChunkError::Unavailable); count];
        }
        if self.client.is_none() && boot_ms() >= self.retry_ms {
            match self.gateway.connect() {
                Ok(client) => self.client = Some(client),
                Err(error) => {
                    log::warn!(error:%; "the gateway cannot connect to its node; it tries again");
                    self.retry_ms = boot_ms() + RECONNECT_MS;
                }
            }
        }
        let Some(client) = &mut self.client else {
            return vec![Err(ChunkError::Unavailable); count];
        };
        let snapshot = self.gateway.state.snapshot();
        if !Arc::ptr_eq(&snapshot, &self.snapshot) {
            let members = snapshot.members().map(|(peer, address)| (peer, address.to_owned()));
            client.set_members(snapshot.view.revision, members);
            self.snapshot = snapshot;
        }
        client.call_all(actions)
    }

    /// Reads at most [`BATCH_KEYS`] keys, which have positions from `first` on: first those that
    /// others have to read, all together, then the rest here. Returns how many were answered, and
    /// whether the sink broke the batch.
    fn get_part(
        &mut self,
        keys: &[Key<'_>],
        first: usize,
        now: &Now,
        sink: &mut impl Sink,
    ) -> (usize, bool) {
        let mut others = self.places_of_others(keys);
        let mut answers = Vec::new();
        self.ask(keys, others, &mut answers);
        let mut place = 0;
        while place < keys.len() {
            let here = ((others >> place).trailing_zeros() as usize).min(keys.len() - place);
            if here > 0 {
                let keys_here = &keys[place..place + here];
                let (done, end) = self.items.get_batch(keys_here, first + place, now, sink);
                place += done;
                match end {
                    ReadEnd::All => {}
                    ReadEnd::Broken => return (place, true),
                    // What this node serves has just changed: others answer the rest.
                    ReadEnd::Refused => {
                        let rest = !others & u128::MAX << place & places_below(keys.len());
                        self.ask(keys, rest, &mut answers);
                        others |= rest;
                    }
                }
                continue;
            }
            let done = answers[place].take().unwrap_or(Err(ChunkError::Unavailable));
            let flow = self.show(&keys[place], first + place, done, now, sink);
            place += 1;
            if flow.is_break() {
                return (place, true);
            }
        }
        (place, false)
    }

    /// The places of keys that others have to read, as bits.
    fn places_of_others(&self, keys: &[Key<'_>]) -> u128 {
        let places = keys.iter().enumerate();
        let mut others: u128 =
            places.map(|(place, key)| u128::from(!self.items.may_read(key)) << place).sum();
        // A key that stands twice in a batch is read once by one side, or the later answer could be
        // the older. Only one that waits for backups could be read by both.
        let both = keys
            .iter()
            .enumerate()
            .filter(|(place, key)| others >> place & 1 == 1 && self.items.serves(key));
        let hashes: Vec<u64> = both.map(|(_, key)| key.hash()).collect();
        if !hashes.is_empty() {
            for (place, key) in keys.iter().enumerate() {
                others |= u128::from(hashes.contains(&key.hash())) << place;
            }
        }
        others
    }

    /// Asks the owners of the keys at `places`, and puts what they answer there.
    fn ask(
        &mut self,
        keys: &[Key<'_>],
        places: u128,
        answers: &mut Vec<Option<Result<Response, ChunkError>>>,
    ) {
        if places == 0 {
            return;
        }
        answers.resize_with(keys.len(), || None);
        let asked = || (0..keys.len()).filter(|place| places >> place & 1 == 1);
        let actions = asked().map(|place| item_action(&keys[place], ItemVerb::Read)).collect();
        for (place, done) in asked().zip(self.call(actions)) {
            answers[place] = Some(done);
        }
    }

    /// Passes an owner's answer to a read to the sink.
    fn show(
        &self,
        key: &Key<'_>,
        position: usize,
        done: Result<Response, ChunkError>,
        now: &Now,
        sink: &mut impl Sink,
    ) -> ControlFlow<()> {
        match item_answer(done) {
            Ok(ItemAnswer { item: Some(record), .. }) => {
                emit(sink, position, key.bytes(), (&record, Hit::default()), now)
            }
            Ok(_) => sink.miss(position),
            Err(error) => {
                log::debug!(error:%; "a key was not read");
                match self.gateway.answers_misses {
                    true => sink.miss(position),
                    false => sink.unanswered(position),
                }
            }
        }
    }
}

/// The bits of places below `count`, which is 1 to 128.
fn places_below(count: usize) -> u128 {
    u128::MAX >> (BATCH_KEYS - count)
}

/// Passes an item to a sink.
fn emit(
    sink: &mut impl Sink,
    position: usize,
    key: &[u8],
    (record, hit): (&ItemRecord, Hit),
    now: &Now,
) -> ControlFlow<()> {
    let item = ItemView {
        key,
        value: Value::Bytes(&record.value),
        flags: record.flags,
        expiry: from_relative(record.expiry, now),
        cas: record.cas,
        generation: now.generation,
        fetched: record.fetched,
        stale: record.stale,
        won: record.won,
        last_access_seconds: record.idle_seconds.map(|idle| now.seconds.saturating_sub(idle)),
    };
    sink.hit(position, &Found::new(item).with_hit(hit))
}

fn item_answer(done: Result<Response, ChunkError>) -> Result<ItemAnswer, ChunkError> {
    match done? {
        Response::Item(answer) => Ok(*answer),
        _ => Err(ChunkError::Unavailable),
    }
}

impl Worker for GatewayWorker<'_> {
    fn get_batch(&mut self, keys: &[Key<'_>], now: &Now, sink: &mut impl Sink) -> usize {
        let mut position = 0;
        for part in keys.chunks(BATCH_KEYS) {
            self.items.refresh();
            let (done, is_broken) = self.get_part(part, position, now, sink);
            position += done;
            if is_broken {
                break;
            }
        }
        position
    }

    fn apply(&mut self, op: &Op<'_>, now: &Now, sink: &mut impl Sink) -> Outcome {
        self.items.refresh();
        if let Some(outcome) = self.items.apply(op, now, sink) {
            return outcome;
        }
        let done = self.call(vec![item_action(&op.key, ItemVerb::from(op.verb))]).pop();
        match item_answer(done.unwrap_or(Err(ChunkError::Unavailable))) {
            Ok(ItemAnswer { outcome, item }) => {
                let outcome = with_times(outcome, |time| from_relative(time, now));
                if let (Outcome::Hit(hit), Some(record)) = (outcome, &item) {
                    let _ = emit(sink, 0, op.key.bytes(), (record, hit), now);
                }
                outcome
            }
            // `Forgotten`: the owner has discarded the cached reply, so the operation was executed.
            Err(ChunkError::Unknown | ChunkError::Forgotten) => Outcome::Unknown,
            Err(error) => {
                log::debug!(error:%; "an operation was not executed");
                let is_read = matches!(op.verb, Verb::Get(get) if get.touch.is_none());
                match is_read && self.gateway.answers_misses {
                    true => Outcome::NotFound,
                    false => Outcome::Unavailable,
                }
            }
        }
    }

    fn prefetch(&self, key: &Key<'_>) {
        self.items.prefetch(key);
    }

    fn scan(
        &mut self,
        from: Cursor,
        budget: usize,
        visit: &mut dyn FnMut(&ItemView<'_>) -> ControlFlow<()>,
    ) -> Option<Cursor> {
        self.items.scan(from, budget, visit)
    }

    fn quiesce(&mut self) {
        self.items.quiesce();
    }

    fn rest(&mut self) -> bool {
        self.items.rest()
    }
}
