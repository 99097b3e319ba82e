//! The cluster behind the face of a store, so that the server answers memcached's clients for all
//! nodes: its workers execute what this node owns, and have the owners of other keys execute the
//! rest. This node's event loop is such an owner too, for what a worker may not do by itself. No
//! worker waits for either: answers come later ([`LateAnswers`]), except to datagrams.
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

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

use amalgam_cluster::chunks::{
    Action, ChunkError, ItemAnswer, ItemOp, ItemRecord, ItemVerb, Response, from_relative,
    with_times,
};
use amalgam_cluster::client::{ClientStatistics, Completion};
use amalgam_cluster::ids::ChunkId;
use amalgam_index::{
    Begun, Cursor, Flush, Found, LateAnswers, Metric, Patience, Sink, Statistics, Store, Ticket,
    Worker,
};
use amalgam_op::{Expiry, Get, HashSeed, Hit, ItemView, Key, Now, Op, Outcome, Value, Verb};

use crate::client::ClusterClient;
use crate::client_connection::ClientError;
use crate::clock::{boot_ms, unix_ms};
use crate::cluster_status::Overview;
use crate::handshake::Credentials;
use crate::late::{Done, LateOperations, NewOperation, ValueUse};
use crate::membership::{Joined, Membership, Snapshot};
use crate::node_engines::NodeEngines;
use crate::node_state::NodeState;
use crate::owned_items::{OwnedItems, ReadEnd};
use crate::report::{LateCounts, show_lease, show_memory};
use crate::silence::{Deadlines, SilentNodes};

/// Memory of a worker for the owners of keys, in bytes.
const CACHE_BYTES: usize = 4 << 20;
/// Keys of a batch that are looked at together.
const BATCH_KEYS: usize = 128;
/// Time after which an operation is given up, in milliseconds.
const OPERATION_MS: u64 = 1_000;
/// Silence after which a node that owes answers counts as silent, in milliseconds.
const SILENT_MS: u64 = 500;
/// Flushes of a worker's connections that are under way at a time, at most; further ones fail.
const FLUSHES_MAX: usize = 8;
/// Interval at which the end of a flush is looked for.
const FLUSH_TICK: Duration = Duration::from_millis(5);
/// Number of the first flush, far from those of the client's operations.
const FIRST_FLUSH: u64 = 1 << 63;
/// Time limit of a flush, for members that do not answer and have not left either, in milliseconds.
const FLUSH_MS: u64 = 30_000;

/// A store whose items are those of the whole cluster. Any thread may call it. Statistics and scans
/// are of the items of this node.
pub struct Gateway {
    engines: Arc<dyn NodeEngines>,
    state: Arc<NodeState>,
    flusher: Arc<Flusher>,
    joined: Joined,
    credentials: Credentials,
    silent: Arc<SilentNodes>,
    answers_misses: bool,
    counts: LateCounts,
    overview: Arc<Overview>,
}

impl Gateway {
    /// In front of a node that has these engines and has joined as `joined`.
    pub fn new(
        engines: Arc<dyn NodeEngines>,
        state: Arc<NodeState>,
        membership: Arc<dyn Membership>,
        joined: Joined,
        credentials: Credentials,
    ) -> Self {
        let silent = Arc::default();
        let answers_misses = false;
        let flusher =
            Flusher { state: Arc::clone(&state), membership, credentials: credentials.clone() };
        let flusher = Arc::new(flusher);
        let counts = LateCounts::default();
        let overview = Arc::default();
        Self {
            engines,
            state,
            flusher,
            joined,
            credentials,
            silent,
            answers_misses,
            counts,
            overview,
        }
    }

    /// Answers reads that cannot be answered with misses, as a cache may.
    pub fn answer_misses(self) -> Self {
        Self { answers_misses: true, ..self }
    }

    /// A client for one worker, whose home is this node.
    fn client(&self) -> Result<ClusterClient, ClientError> {
        let Joined { peer, cluster, .. } = self.joined;
        let mut client = ClusterClient::at(peer, cluster, &self.credentials, CACHE_BYTES)?;
        let silent = Arc::clone(&self.silent);
        let (operation_ms, silent_ms) = (OPERATION_MS, SILENT_MS);
        client.set_deadlines(Deadlines { operation_ms, silent_ms, silent });
        client.ask_directly(Arc::clone(&self.state))?;
        Ok(client)
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
}

/// Drops all items of the cluster, which may take as long as a failover.
struct Flusher {
    state: Arc<NodeState>,
    membership: Arc<dyn Membership>,
    credentials: Credentials,
}

impl Flusher {
    /// As [`Store::flush`]; blocks.
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
            if self.state.is_stopping() {
                return Err("the node stops".to_owned());
            }
            std::thread::sleep(FLUSH_TICK);
        }
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
        let client = self.client();
        if let Err(error) = &client {
            log::error!(error:%; "a worker cannot reach other nodes until the server starts again");
        }
        GatewayWorker {
            gateway: self,
            items,
            client: client.ok(),
            snapshot: Arc::default(),
            late: LateOperations::default(),
            ended: Vec::new(),
            has_begun: false,
            counted: ClientStatistics::default(),
            flushes: Vec::new(),
            flush_count: 0,
        }
    }

    fn seed(&self) -> &HashSeed {
        self.engines.seed()
    }

    fn statistics(&self) -> Statistics {
        self.engines.statistics()
    }

    fn sample_buckets(&self, statistics: &mut Statistics) {
        self.engines.sample_buckets(statistics);
    }

    fn pinned_bytes(&self) -> usize {
        self.engines.pinned_bytes()
    }

    fn set_memory_limit(&self, bytes: usize) {
        self.engines.set_memory_limit(bytes);
    }

    fn cluster(&self) -> Option<String> {
        // None only before the event loop's first second.
        let report = self.state.report();
        Some(self.overview.json(report.as_ref(), &self.credentials))
    }

    fn unready(&self) -> Option<&'static str> {
        let has_ended = boot_ms() >= self.state.deadline_ms();
        has_ended.then_some("the node has no lease: etcd does not answer it, or it is no member")
    }

    fn show_metrics(&self, show: &mut dyn FnMut(&Metric<'_>)) {
        if let Some(report) = self.state.report() {
            report.show(show);
        }
        show_lease(self.state.deadline_ms().saturating_sub(boot_ms()), show);
        show_memory(&self.state.memory(), show);
        self.counts.show(show);
    }

    fn flush(&self, delay_seconds: i64) -> Flush {
        self.flusher.flush(delay_seconds)
    }
}

/// A server's worker: a client of the cluster.
pub struct GatewayWorker<'i> {
    gateway: &'i Gateway,
    items: OwnedItems<'i>,
    /// None if the system refused what it needs.
    client: Option<ClusterClient>,
    /// The members that `client` knows.
    snapshot: Arc<Snapshot>,
    late: LateOperations,
    /// What the client's last turn ended.
    ended: Vec<Completion>,
    /// Whether operations were begun since the client's last turn.
    has_begun: bool,
    /// The client's statistics that the gateway's counts contain.
    counted: ClientStatistics,
    /// Flushes under way, each with its number among `late` and what its thread tells at its end.
    flushes: Vec<(u64, Receiver<Flush>)>,
    /// The number of flushes so far.
    flush_count: u64,
}

/// The request to a key's owner.
fn item_action(key: &Key<'_>, verb: ItemVerb) -> Action {
    let op = Box::new(ItemOp { key: key.bytes().to_vec(), verb });
    Action::Item { id: ChunkId::named(key.hash()), op }
}

impl GatewayWorker<'_> {
    /// Tells the client the present members.
    fn refresh_members(&mut self) {
        let snapshot = self.gateway.state.snapshot();
        if !Arc::ptr_eq(&snapshot, &self.snapshot)
            && let Some(client) = &mut self.client
        {
            let members = snapshot.members().map(|(peer, address)| (peer, address.to_owned()));
            client.set_members(snapshot.view.revision, members);
            self.snapshot = snapshot;
        }
    }

    /// Whether this node is cut off: then it could only wait, and its clients should turn to
    /// another.
    fn is_cut_off(&self) -> bool {
        boot_ms() >= self.gateway.state.deadline_ms()
    }

    /// Takes the results of flushes, and returns their number.
    fn end_flushes(&mut self, answered: &mut Vec<u64>) -> usize {
        let (late, before) = (&mut self.late, self.flushes.len());
        self.flushes.retain(|(number, receiver)| {
            let done = match receiver.try_recv() {
                Err(TryRecvError::Empty) => return true,
                Ok(Flush::Done) => Ok(Response::Ok),
                Ok(_) | Err(TryRecvError::Disconnected) => Err(ChunkError::Unavailable),
            };
            late.end(*number, done, answered);
            false
        });
        before - self.flushes.len()
    }

    /// Executes operations, and waits for the answers.
    fn call(&mut self, actions: Vec<Action>) -> Vec<Done> {
        let mut answers = vec![Err(ChunkError::Unavailable); actions.len()];
        if self.is_cut_off() {
            return answers;
        }
        self.refresh_members();
        let Some(client) = &mut self.client else { return answers };
        let mut places = BTreeMap::new();
        for (place, action) in actions.into_iter().enumerate() {
            match client.submit(action) {
                Ok(number) => drop(places.insert(number, place)),
                Err(error) => answers[place] = Err(error),
            }
        }
        let mut others = Vec::new();
        while !places.is_empty() {
            client.turn(&mut self.ended);
            for (number, done) in self.ended.drain(..) {
                match places.remove(&number) {
                    Some(place) => answers[place] = done,
                    None => others.push((number, done)),
                }
            }
            if !places.is_empty() {
                client.wait();
            }
        }
        // The next turn takes them.
        self.has_begun |= !others.is_empty();
        self.ended = others;
        answers
    }

    /// Reads at most [`BATCH_KEYS`] keys, which have positions from `first` on. Those that others
    /// have to read were asked for, or are asked for later, or now all together if the sink waits.
    /// Returns how many were answered, and whether the batch ended there.
    fn get_part(
        &mut self,
        keys: &[Key<'_>],
        first: usize,
        now: &Now,
        sink: &mut impl Sink,
    ) -> (usize, bool) {
        let mut others = self.places_of_others(keys);
        let mut answers = Vec::new();
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
                    ReadEnd::Refused => others |= u128::MAX << place & places_below(keys.len()),
                }
                continue;
            }
            let done = match sink.patience(first + place) {
                Patience::Later(ticket) => self.late.take(ticket),
                Patience::Never => Some(Err(ChunkError::Unavailable)),
                Patience::Waits => {
                    if answers.get(place).is_none_or(Option::is_none) {
                        self.ask(keys, others & u128::MAX << place, &mut answers);
                    }
                    answers[place].take()
                }
            };
            let Some(done) = done else {
                sink.later(first + place);
                return (place, true);
            };
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
            // Reading it may have changed it.
            Ok(ItemAnswer { item: Some(record), outcome: Outcome::Hit(hit) }) => {
                emit(sink, position, key.bytes(), (&record, hit), now)
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

    /// The outcome of an operation that its owner has answered.
    fn conclude(&self, op: &Op<'_>, done: Done, now: &Now, sink: &mut impl Sink) -> Outcome {
        match item_answer(done) {
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
        let patience = sink.patience(0);
        if let Patience::Later(ticket) = patience
            && let Some(done) = self.late.take(ticket)
        {
            return self.conclude(op, done, now, sink);
        }
        self.items.refresh();
        if let Some(outcome) = self.items.apply(op, now, sink) {
            return outcome;
        }
        match patience {
            Patience::Later(_) => {
                sink.later(0);
                Outcome::Unavailable
            }
            Patience::Never => Outcome::Unavailable,
            Patience::Waits => {
                let done = self.call(vec![item_action(&op.key, ItemVerb::from(op.verb))]).pop();
                self.conclude(op, done.unwrap_or(Err(ChunkError::Unavailable)), now, sink)
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

    fn has_much_retired(&self) -> bool {
        self.items.has_much_retired()
    }

    fn late_answers(&mut self) -> Option<&mut dyn LateAnswers> {
        Some(self)
    }
}

impl LateAnswers for GatewayWorker<'_> {
    fn begin(&mut self, op: &Op<'_>, ticket: Ticket, must: bool) -> Begun {
        if let Some(is_answered) = self.late.is_answered(ticket) {
            return if is_answered { Begun::Now } else { Begun::Waits };
        }
        if !must && self.items.may_apply(op) {
            return Begun::Now;
        }
        let is_cut_off = self.is_cut_off();
        let Some(client) = self.client.as_mut().filter(|_| !is_cut_off) else {
            self.late.refuse(ticket, ChunkError::Unavailable);
            return Begun::Now;
        };
        let owner = client.owner(ChunkId::named(op.key.hash()));
        let value = ValueUse::of(op);
        let is_repeatable = match op.verb {
            Verb::Get(get) => !ItemVerb::Get(get).changes(),
            _ => false,
        };
        let operation = NewOperation { ticket, is_repeatable, owner, value };
        if !self.late.has_room(&operation) || !must && !self.late.has_room_ahead() {
            return Begun::NoRoom;
        }
        let verb = match op.verb {
            Verb::Get(get) if get == Get::default() => ItemVerb::Read,
            verb => ItemVerb::from(verb),
        };
        match client.submit(item_action(&op.key, verb)) {
            Ok(number) => {
                self.late.begin(&operation, number);
                self.has_begun = true;
                Begun::Waits
            }
            Err(error) => {
                self.late.refuse(ticket, error);
                Begun::Now
            }
        }
    }

    fn flush(&mut self, delay_seconds: i64, ticket: Ticket) -> Option<bool> {
        if let Some(done) = self.late.take(ticket) {
            return Some(done.is_ok());
        }
        if self.late.is_answered(ticket) == Some(false) {
            return None;
        }
        if self.flushes.len() >= FLUSHES_MAX {
            log::warn!("flush_all was refused: as many as a thread has at a time are under way");
            return Some(false);
        }
        let (sender, receiver) = sync_channel(1);
        let flusher = Arc::clone(&self.gateway.flusher);
        let thread = std::thread::Builder::new().name("flush".to_owned());
        let started = thread.spawn(move || {
            // Fails if the worker has ended meanwhile.
            let _ = sender.send(flusher.flush(delay_seconds));
        });
        if let Err(error) = started {
            log::error!(error:%; "flush_all failed: there is no thread for it");
            return Some(false);
        }
        let number = FIRST_FLUSH + self.flush_count;
        self.flush_count += 1;
        let (owner, is_repeatable) = (Some(self.gateway.joined.peer), false);
        let value = ValueUse::default();
        self.late.begin(&NewOperation { ticket, is_repeatable, owner, value }, number);
        self.flushes.push((number, receiver));
        None
    }

    fn value_bytes(&self) -> usize {
        self.late.value_bytes()
    }

    fn turn(&mut self, has_event: bool, answered: &mut Vec<u64>) -> usize {
        let flushed = self.end_flushes(answered);
        let has_begun = std::mem::take(&mut self.has_begun);
        let is_due = || self.next_turn().is_some_and(|left| left.is_zero());
        if !has_event && !has_begun && !is_due() {
            return flushed;
        }
        self.refresh_members();
        let Some(client) = &mut self.client else { return flushed };
        client.turn(&mut self.ended);
        let ended = flushed + self.ended.len();
        if !self.ended.is_empty() {
            let statistics = client.statistics();
            self.gateway.counts.add(&self.counted, &statistics);
            self.counted = statistics;
        }
        for (number, done) in self.ended.drain(..) {
            self.late.end(number, done, answered);
        }
        // Nobody may wait for an operation to end if there is none.
        if ended > 0 && self.late.is_idle() { usize::MAX } else { ended }
    }

    fn next_turn(&self) -> Option<Duration> {
        let due_ms = self.client.as_ref().and_then(ClusterClient::next_turn_ms);
        let due = due_ms.map(|due_ms| Duration::from_millis(due_ms.saturating_sub(boot_ms())));
        let flush = (!self.flushes.is_empty()).then_some(FLUSH_TICK);
        due.into_iter().chain(flush).min()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.client.as_ref().map(|client| client.epoll().as_fd())
    }

    fn discard(&mut self, connection: u64, position: u64, is_slow: bool) -> bool {
        self.late.discard(connection, position, is_slow)
    }
}
