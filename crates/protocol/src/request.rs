//! The results of parsing.

use amalgam_op::{Get, ItemView, Verb};

use crate::{Arguments, Keys, Problem, Reply, WireKey};

/// The result of parsing the bytes received so far.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// The bytes do not yet hold a complete request.
    Incomplete {
        /// The total number of bytes that must be there before parsing again can yield more. It is
        /// exact once the length of a value was read, and then bounded by
        /// [`crate::Limits::max_item_bytes`].
        at_least: usize,
    },
    /// A whole request.
    Request {
        /// What to do.
        request: Request<'a>,
        /// How many bytes it took.
        used: usize,
    },
    /// An error to answer, or a connection to close.
    Refused {
        /// What to answer, and what else to do.
        refusal: Refusal<'a>,
        /// How many bytes it took, [`Refusal::swallow`] not among them.
        used: usize,
    },
}

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// A read of one or many keys that can be resolved together with others.
    Read(Read<'a>),
    /// One operation on each of one or many keys (gat, gats).
    Each(Each<'a>),
    /// One operation on one key.
    Apply(Apply<'a>),
    /// A command about the server rather than an item.
    Command {
        /// What to do.
        command: Command<'a>,
        /// The writer of the reply.
        reply: Reply<'a>,
    },
}

/// A read of `keys`: [`Reply::hit`] or [`Reply::miss`] for each in order, then [`Reply::end`].
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// The keys to look up.
    pub keys: Keys<'a>,
    /// How each of them is answered.
    pub answer: ReadAnswer<'a>,
}

/// How the keys of a read are answered: what is left of the request once its keys are taken out.
#[derive(Clone, Copy, Debug)]
pub struct ReadAnswer<'a> {
    /// The writer of the reply.
    pub reply: Reply<'a>,
    /// Whether the answer shows CAS ids.
    pub wants_cas: bool,
    /// Whether a hit on a stale item must tell the client to recache it (meta).
    pub(crate) checks_stale: bool,
}

impl ReadAnswer<'_> {
    /// Whether this item cannot be answered as it is, because answering changes it: it has no CAS
    /// id yet, or the client is the first to learn that it is stale. Then run [`ReadAnswer::verb`]
    /// on its key instead (and go on with the rest of the keys).
    #[inline]
    pub fn must_apply(&self, item: &ItemView<'_>) -> bool {
        (self.wants_cas && item.cas.is_none()) || (self.checks_stale && item.stale && !item.won)
    }

    /// The operation that answers a hit for which [`ReadAnswer::must_apply`] holds.
    pub fn verb(&self) -> Verb<'static> {
        let Self { wants_cas, checks_stale, .. } = *self;
        Verb::Get(Get { wants_cas, checks_stale, ..Get::default() })
    }
}

/// `get` on each of `keys`: [`Reply::hit`] from the sink, [`Reply::outcome`] with the outcome, for
/// each in order, then [`Reply::end`].
#[derive(Clone, Copy, Debug)]
pub struct Each<'a> {
    /// The keys to look up.
    pub keys: Keys<'a>,
    /// The operation on each key.
    pub get: Get,
    /// The writer of the reply.
    pub reply: Reply<'a>,
}

/// `verb` on `key`: [`Reply::hit`] from the sink, then [`Reply::outcome`] with the outcome.
///
/// memcached removes the present item where a set finds no memory, so that no client reads the old
/// value on; a server does so by a delete after [`amalgam_op::Outcome::OutOfMemory`].
#[derive(Clone, Copy, Debug)]
pub struct Apply<'a> {
    /// The item's key.
    pub key: WireKey<'a>,
    /// The operation on the item.
    pub verb: Verb<'a>,
    /// The writer of the reply.
    pub reply: Reply<'a>,
}

/// The manner of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownMode {
    /// The server stops at once, as on SIGINT.
    Now,
    /// The server keeps what it can for a warm restart, as on SIGUSR1.
    Graceful,
    /// The client asked for an unknown manner: the answer is [`Problem::BAD_SHUTDOWN_MODE`], where
    /// shutdown is enabled.
    Unknown,
}

/// A request about the server.
#[derive(Clone, Copy, Debug)]
pub enum Command<'a> {
    /// Report the version; [`Reply::version`].
    Version,
    /// Close the connection once earlier answers are sent (and [`Reply::ok`], which the text
    /// protocol leaves out).
    Quit,
    /// Nothing ([`Reply::ok`]): the client wants to know that everything before is answered.
    NoOperation,
    /// List the mechanisms of authentication (binary); [`Reply::body`] with their names, separated
    /// by spaces.
    ListMechanisms,
    /// Check credentials of the binary protocol; [`Reply::authenticated`], [`Reply::challenge`] or
    /// [`Problem::NOT_AUTHENTICATED`].
    Authenticate {
        /// Whether the message continues an exchange.
        is_step: bool,
        /// The name of the mechanism.
        mechanism: &'a [u8],
        /// The client's message.
        message: &'a [u8],
    },
    /// Check credentials of the text protocol; [`Reply::authenticated`] or
    /// [`Problem::WRONG_CREDENTIALS`].
    LogIn {
        /// The user.
        user: &'a [u8],
        /// The password.
        password: &'a [u8],
    },
    /// Report; [`Reply::stat`], then [`Reply::end`]. memcached takes any beginning of a
    /// subcommand's name for the whole name.
    Stats(Arguments<'a>),
    /// Log at this level; [`Reply::ok`].
    Verbosity(u32),
    /// Drop everything; [`Reply::ok`]. Zero or less: now; otherwise when this many seconds have
    /// passed (above 30 days: at this Unix time).
    FlushAll {
        /// When to flush, as described above.
        delay_seconds: i64,
    },
    /// Stop the server.
    Shutdown(ShutdownMode),
    /// Change the memory limit; [`Reply::ok`].
    MemoryLimit {
        /// The new limit in mebibytes, at least 8.
        mebibytes: u32,
    },
    /// Send log lines to this connection.
    Watch(Arguments<'a>),
    /// Inspect or steer the crawler.
    LruCrawler(Arguments<'a>),
    /// Tune the replacement policy.
    Lru(Arguments<'a>),
    /// Move slab pages.
    Slabs(Arguments<'a>),
    /// Load certificates again; [`Reply::ok`].
    RefreshCertificates,
    /// Stop, start or set the clock; only where a test harness asks for it.
    DebugTime(Arguments<'a>),
    /// Keep a reference to an item; only where a test harness asks for it.
    DebugItem(Arguments<'a>),
    /// Try what the sandbox forbids; only where a test harness asks for it.
    Misbehave,
}

/// A request that cannot be executed.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    pub(crate) reply: Reply<'a>,
    pub(crate) problem: Option<Problem>,
    /// Throw away this many bytes that follow.
    pub swallow: usize,
    /// Close the connection once earlier answers are sent.
    pub closes: bool,
    /// Remove this key's item: the client meant to replace its value.
    pub removes: Option<WireKey<'a>>,
}

impl<'a> Refusal<'a> {
    pub(crate) fn new(reply: Reply<'a>, problem: Problem) -> Self {
        Self { reply, problem: Some(problem), swallow: 0, closes: false, removes: None }
    }

    pub(crate) fn close(reply: Reply<'a>) -> Self {
        Self { reply, problem: None, swallow: 0, closes: true, removes: None }
    }

    /// The same refusal with the reason that there is no memory to receive the value.
    pub fn out_of_memory(self) -> Self {
        Self { problem: self.problem.map(|_| Problem::OUT_OF_MEMORY), ..self }
    }

    /// The refusal of a read of more keys than may be answered at once.
    pub fn of_answers(reply: Reply<'a>) -> Self {
        Self::new(reply, Problem::OUT_OF_MEMORY_ANSWERING)
    }

    /// The error to answer; None if the connection is closed without an answer.
    pub fn problem(&self) -> Option<Problem> {
        self.problem
    }

    /// Appends the answer, if there is one.
    pub fn write(&self, out: &mut Vec<u8>) {
        if let Some(problem) = self.problem {
            self.reply.problem(out, problem);
        }
    }
}
