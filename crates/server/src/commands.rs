//! Requests about the server itself.

use std::sync::atomic::Ordering;

use amalgam_index::{Flush, Store, Worker};
use amalgam_op::Expiry;
use amalgam_protocol::{Arguments, Command, Problem, Reply, ShutdownMode};

use crate::batch::{Seat, Turn};
use crate::sasl::{self, Outcome};
use crate::watch::Events;
use crate::{MEMCACHED_VERSION, statistics, tuning};

/// memcached logs no more than at this level.
const MOST_VERBOSE: u32 = 2;

/// Carries out a command and answers it.
pub fn run<I: Store>(
    turn: &mut Turn<'_, '_, I>,
    seat: &mut Seat,
    command: &Command<'_>,
    reply: &Reply<'_>,
) {
    let shared = turn.shared;
    let out = &mut seat.output.bytes;
    match command {
        Command::Version => reply.version(out, MEMCACHED_VERSION),
        Command::Quit => {
            reply.ok(out);
            seat.is_closing = true;
        }
        Command::NoOperation => reply.ok(out),
        Command::Stats(arguments) => statistics::report(turn, seat, *arguments, reply),
        Command::Verbosity(level) => {
            let level = (*level).min(MOST_VERBOSE) as u8;
            shared.verbosity.store(level, Ordering::Relaxed);
            reply.ok(out);
        }
        Command::FlushAll { .. } if !shared.settings.allows_flush => {
            reply.problem(out, Problem::FLUSH_DISABLED);
        }
        Command::FlushAll { delay_seconds } => {
            let is_complete = flush(turn, *delay_seconds);
            let out = &mut seat.output.bytes;
            if is_complete {
                reply.ok(out);
            } else {
                reply.problem(out, Problem::FLUSH_INCOMPLETE);
            }
        }
        Command::Shutdown(_) if !shared.settings.allows_shutdown => {
            reply.problem(out, Problem::SHUTDOWN_DISABLED);
        }
        Command::Shutdown(ShutdownMode::Unknown) => reply.problem(out, Problem::BAD_SHUTDOWN_MODE),
        Command::Shutdown(mode) => {
            seat.is_closing = true;
            match mode {
                ShutdownMode::Graceful => shared.stop_gracefully(),
                _ => shared.stop(),
            }
        }
        Command::MemoryLimit { mebibytes } => {
            shared.set_memory_limit((*mebibytes as usize) << 20);
            reply.ok(out);
        }
        Command::Lru(arguments) => tuning::lru(turn, seat, *arguments, reply),
        Command::Slabs(arguments) => tuning::slabs(turn, seat, *arguments, reply),
        Command::LruCrawler(arguments) => tuning::lru_crawler(turn, seat, *arguments, reply),
        Command::ListMechanisms => reply.body(out, sasl::MECHANISMS),
        Command::LogIn { user, password } => {
            let is_right = shared.users.as_ref().is_some_and(|users| users.knows(user, password));
            conclude(turn, seat, reply, is_right, Problem::WRONG_CREDENTIALS);
        }
        Command::Authenticate { is_step, mechanism, message } => {
            let exchange = std::mem::take(&mut seat.conversation.exchange);
            match sasl::step(exchange, *is_step, mechanism, message, shared.users.as_ref()) {
                Outcome::Continue(exchange, challenge) => {
                    seat.conversation.exchange = exchange;
                    reply.challenge(out, &challenge);
                }
                Outcome::Done(is_right) => {
                    conclude(turn, seat, reply, is_right, Problem::NOT_AUTHENTICATED);
                }
            }
        }
        Command::DebugTime(arguments) if shared.settings.is_under_test => {
            let seconds = { *arguments }.next().and_then(|word| str::from_utf8(word).ok());
            match seconds.map(str::parse) {
                Some(Ok(seconds)) => {
                    shared.clock.leap(seconds);
                    reply.ok(out);
                }
                _ => reply.problem(out, Problem::UNKNOWN),
            }
        }
        Command::Watch(arguments) => watch(turn, seat, *arguments, reply),
        Command::RefreshCertificates if shared.tls.is_some() => {
            match shared.refresh_certificates() {
                Ok(()) => reply.ok(out),
                Err(error) => reply.line(out, error.as_bytes()),
            }
        }
        Command::RefreshCertificates
        | Command::DebugTime(_)
        | Command::DebugItem(_)
        | Command::Misbehave => reply.problem(out, Problem::UNKNOWN),
    }
}

/// Makes a watcher of the connection.
fn watch<I: Store>(
    turn: &Turn<'_, '_, I>,
    seat: &mut Seat,
    arguments: Arguments<'_>,
    reply: &Reply<'_>,
) {
    let shared = turn.shared;
    let line: &[u8] = if !shared.settings.allows_watch {
        Problem::WATCH_DISABLED.line.as_bytes()
    } else if !seat.output.is_empty() || !seat.is_connection() {
        b"ERROR cannot pipeline other commands before watch"
    } else if let Some(events) = Events::parse(arguments) {
        if shared.log.reserve() {
            shared.log.want(events);
            if let Some(evictions) = shared.evictions() {
                evictions.watch(shared.log.wanted().meets(Events::EVICTIONS));
            }
            seat.watches = Some(events);
            b"OK"
        } else {
            b"WATCHER_TOO_MANY log watcher limit reached"
        }
    } else {
        Problem::UNKNOWN.line.as_bytes()
    };
    reply.line(&mut seat.output.bytes, line);
}

/// Ends an attempt to authenticate. A wrong one also ends what a right one before had opened.
fn conclude<I: Store>(
    turn: &mut Turn<'_, '_, I>,
    seat: &mut Seat,
    reply: &Reply<'_>,
    is_right: bool,
    problem: Problem,
) {
    turn.counts.auth_cmds += 1;
    seat.conversation.is_authenticated = is_right;
    if is_right {
        reply.authenticated(&mut seat.output.bytes);
    } else {
        turn.counts.auth_errors += 1;
        reply.problem(&mut seat.output.bytes, problem);
    }
}

/// Drops everything, now or later; whether it did or will. What follows in the same batch is
/// written after the flush.
fn flush<I: Store>(turn: &mut Turn<'_, '_, I>, delay_seconds: i64) -> bool {
    turn.counts.cmd_flush += 1;
    match turn.shared.index.flush(delay_seconds) {
        Flush::ByClock => {}
        result => return result == Flush::Done,
    }
    let clock = &turn.shared.clock;
    if delay_seconds > 0 {
        clock.flush_at(Expiry::from_client(delay_seconds, &turn.now).0);
        return true;
    }
    while clock.flush().is_err() {
        // Dozens of flushes in a row: the dead must be swept before the count comes round. This
        // worker must hold up neither the sweep nor the memory that it frees.
        clock.end_turn(turn.worker);
        turn.index.quiesce();
        turn.shared.wake_main();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    turn.now = clock.begin_turn(turn.worker);
    true
}
