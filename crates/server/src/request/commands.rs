//! Requests about the server itself.

use std::sync::atomic::Ordering;

use amalgam_index::{Flush, Store};
use amalgam_op::Expiry;
use amalgam_protocol::{Arguments, Command, Problem, Reply, ShutdownMode};

use crate::auth::sasl::{self, SaslStep};
use crate::compat::MEMCACHED_VERSION;
use crate::request::context::BatchContext;
use crate::request::slot::RequestSlot;
use crate::request::{admin_commands, late, stats_command};
use crate::state::clock::NeedsSweep;
use crate::watch::events::Events;

/// memcached's highest verbosity; higher requests are clamped to it.
const MOST_VERBOSE: u32 = 2;

/// Executes a command, whose first byte is `start`, and answers it.
pub fn run<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    command: &Command<'_>,
    reply: &Reply<'_>,
    start: u32,
) {
    let state = context.state;
    let out = &mut slot.output.bytes;
    match command {
        Command::Version => reply.version(out, MEMCACHED_VERSION),
        Command::Quit => {
            reply.ok(out);
            slot.is_closing = true;
        }
        Command::NoOperation => reply.ok(out),
        Command::Stats(arguments) => stats_command::run(context, slot, *arguments, reply),
        Command::Verbosity(level) => {
            let level = (*level).min(MOST_VERBOSE) as u8;
            state.verbosity.store(level, Ordering::Relaxed);
            reply.ok(out);
        }
        Command::FlushAll { .. } if !state.settings.allows_flush => {
            reply.problem(out, Problem::FLUSH_DISABLED);
        }
        Command::FlushAll { delay_seconds } => {
            let Some(flush) = late::flush(context, slot, *delay_seconds, start) else { return };
            if flush == Flush::ByClock && flush_by_clock(context, *delay_seconds).is_err() {
                return await_sweep(context, slot, start);
            }
            context.counts.cmd_flush += 1;
            let out = &mut slot.output.bytes;
            if flush != Flush::Incomplete {
                reply.ok(out);
            } else {
                reply.problem(out, Problem::FLUSH_INCOMPLETE);
            }
        }
        Command::Shutdown(_) if !state.settings.allows_shutdown => {
            reply.problem(out, Problem::SHUTDOWN_DISABLED);
        }
        Command::Shutdown(ShutdownMode::Unknown) => reply.problem(out, Problem::BAD_SHUTDOWN_MODE),
        Command::Shutdown(mode) => {
            slot.is_closing = true;
            match mode {
                ShutdownMode::Graceful => state.stop_gracefully(),
                _ => state.stop(),
            }
        }
        Command::MemoryLimit { mebibytes } => {
            state.set_memory_limit((*mebibytes as usize) << 20);
            reply.ok(out);
        }
        Command::Lru(arguments) => admin_commands::lru(context, slot, *arguments, reply),
        Command::Slabs(arguments) => admin_commands::slabs(context, slot, *arguments, reply),
        Command::LruCrawler(arguments) => {
            admin_commands::lru_crawler(context, slot, *arguments, reply)
        }
        Command::ListMechanisms => reply.body(out, sasl::MECHANISMS),
        Command::LogIn { user, password } => {
            let is_right = state.users.as_ref().is_some_and(|users| users.verify(user, password));
            conclude(context, slot, reply, is_right, Problem::WRONG_CREDENTIALS);
        }
        Command::Authenticate { is_step, mechanism, message } => {
            let exchange = std::mem::take(&mut slot.protocol_state.exchange);
            match sasl::step(exchange, *is_step, mechanism, message, state.users.as_ref()) {
                SaslStep::Continue(exchange, challenge) => {
                    slot.protocol_state.exchange = exchange;
                    reply.challenge(out, &challenge);
                }
                SaslStep::Done(is_right) => {
                    conclude(context, slot, reply, is_right, Problem::NOT_AUTHENTICATED);
                }
            }
        }
        Command::DebugTime(arguments) if state.settings.is_under_test => {
            let seconds = { *arguments }.next().and_then(|word| str::from_utf8(word).ok());
            match seconds.map(str::parse) {
                Some(Ok(seconds)) => {
                    state.clock.skip_ahead(seconds);
                    reply.ok(out);
                }
                _ => reply.problem(out, Problem::UNKNOWN),
            }
        }
        Command::Watch(arguments) => watch(context, slot, *arguments, reply),
        Command::RefreshCertificates => {
            let result = if state.has_certificates() {
                state.refresh_certificates()
            } else {
                Err("Error TLS not enabled".into())
            };
            match result {
                Ok(()) => reply.ok(out),
                // As in memcached, `noreply` does not silence it.
                Err(error) => out.extend_from_slice(format!("{error}\r\n").as_bytes()),
            }
        }
        Command::DebugTime(_) | Command::DebugItem(_) | Command::Misbehave => {
            reply.problem(out, Problem::UNKNOWN);
        }
    }
}

/// Registers the connection as a watcher; it stops being served after this batch.
fn watch<S: Store>(
    context: &BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    arguments: Arguments<'_>,
    reply: &Reply<'_>,
) {
    let state = context.state;
    let line: &[u8] = if !state.settings.allows_watch {
        Problem::WATCH_DISABLED.line.as_bytes()
    } else if !slot.output.is_empty() || !slot.is_connection() {
        b"ERROR cannot pipeline other commands before watch"
    } else if let Some(events) = Events::parse(arguments) {
        if state.log.reserve() {
            state.log.want(events);
            state.watch_evictions();
            slot.watches = Some(events);
            b"OK"
        } else {
            b"WATCHER_TOO_MANY log watcher limit reached"
        }
    } else {
        Problem::UNKNOWN.line.as_bytes()
    };
    reply.line(&mut slot.output.bytes, line);
}

/// Ends an attempt to authenticate. A failed attempt also revokes an earlier successful one.
fn conclude<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    slot: &mut RequestSlot,
    reply: &Reply<'_>,
    is_right: bool,
    problem: Problem,
) {
    context.counts.auth_cmds += 1;
    slot.protocol_state.is_authenticated = is_right;
    if is_right {
        reply.authenticated(&mut slot.output.bytes);
    } else {
        context.counts.auth_errors += 1;
        slot.has_failed_login = true;
        reply.problem(&mut slot.output.bytes, problem);
    }
}

/// Makes all items dead, now or later. What follows in the same batch is written after the flush.
fn flush_by_clock<S: Store>(
    context: &mut BatchContext<'_, '_, S>,
    delay_seconds: i64,
) -> Result<(), NeedsSweep> {
    let clock = &context.state.clock;
    if delay_seconds > 0 {
        clock.flush_at(Expiry::from_client(delay_seconds, &context.now).0);
        return Ok(());
    }
    clock.flush()?;
    context.now = clock.begin_batch(context.worker);
    Ok(())
}

/// Stalls a connection at its flush, which begins at byte `start`, until a sweep has ended: others
/// of the worker do not wait for that.
#[cold]
fn await_sweep<S: Store>(context: &BatchContext<'_, '_, S>, slot: &mut RequestSlot, start: u32) {
    slot.stall(start as usize, 0);
    slot.awaits_sweep = true;
    // The main thread sweeps no more.
    slot.is_closing |= context.state.is_stopping();
    context.state.wake_main();
}
