//! The errors that a server answers when it does not execute a request.

use crate::status;

/// An error, in the words of the text protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line of the text protocols, without its line end.
    pub line: &'static str,
    /// The status of the binary protocol, which implies its text.
    pub(crate) status: u16,
}

macro_rules! problems {
    ($($(#[$document:meta])* $name:ident $status:ident $line:literal;)*) => {
        impl Problem {
            $($(#[$document])*
            pub const $name: Self = Self { line: $line, status: status::$status };)*
        }
    };
}

problems! {
    /// The command does not exist.
    UNKNOWN UNKNOWN_COMMAND "ERROR";
    /// `stats` of something that does not exist.
    UNKNOWN_STATISTIC NOT_FOUND "ERROR";
    /// A line without the arguments its command needs.
    BAD_FORMAT INVALID "CLIENT_ERROR bad command line format";
    /// `delete` with four words behind the key, or more.
    DELETE_USAGE INVALID "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
    /// A line too short for its command (`stats cachedump` with too few arguments).
    BAD_LINE INVALID "CLIENT_ERROR bad command line";
    /// The value is not followed by a line end.
    BAD_DATA INVALID "CLIENT_ERROR bad data chunk";
    /// `touch`, `gat` or `flush_all` with an expiry that is not a number.
    BAD_EXPIRY INVALID "CLIENT_ERROR invalid exptime argument";
    /// `incr` or `decr` by something that is not a number.
    BAD_DELTA INVALID "CLIENT_ERROR invalid numeric delta argument";
    /// `incr` or `decr` of something that is not a number.
    NOT_A_NUMBER NOT_A_NUMBER "CLIENT_ERROR cannot increment or decrement non-numeric value";
    /// The item would be longer than items may be.
    TOO_LARGE TOO_LARGE "SERVER_ERROR object too large for cache";
    /// A meta command whose opaque token is too long.
    LONG_OPAQUE INVALID "CLIENT_ERROR opaque token too long";
    /// There is no memory for a value.
    OUT_OF_MEMORY OUT_OF_MEMORY "SERVER_ERROR out of memory storing object";
    /// There is no memory for the answers of a `get`.
    OUT_OF_MEMORY_ANSWERING OUT_OF_MEMORY "SERVER_ERROR out of memory writing get response";
    /// There is no memory for a number.
    OUT_OF_MEMORY_COUNTING OUT_OF_MEMORY "SERVER_ERROR out of memory";
    /// `flush_all` where it is switched off.
    FLUSH_DISABLED AUTHENTICATION "CLIENT_ERROR flush_all not allowed";
    /// `flush_all` that some machine may not have executed.
    FLUSH_INCOMPLETE INTERNAL "SERVER_ERROR not all nodes have dropped their items";
    /// `shutdown` where it is not switched on.
    SHUTDOWN_DISABLED INVALID "SERVER_ERROR: shutdown not enabled";
    /// `shutdown` in a way that does not exist.
    BAD_SHUTDOWN_MODE INVALID "CLIENT_ERROR invalid shutdown mode";
    /// `cache_memlimit` below 8 MiB.
    MEMORY_LIMIT_TOO_SMALL INVALID "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m";
    /// `cache_memlimit` with a number that can only be meant in bytes.
    MEMORY_LIMIT_IN_BYTES INVALID "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes";
    /// `cache_memlimit` that the server cannot follow.
    MEMORY_LIMIT_REFUSED INVALID "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust";
    /// `stats detail` with something other than on, off or dump.
    STATS_DETAIL_USAGE NOT_FOUND "CLIENT_ERROR usage: stats detail on|off|dump";
    /// `stats detail` where dumps are switched off.
    STATS_DETAIL_DISABLED NOT_FOUND "CLIENT_ERROR stats detail not allowed";
    /// `stats cachedump` where dumps are switched off.
    CACHEDUMP_DISABLED INVALID "CLIENT_ERROR stats cachedump not allowed";
    /// `stats cachedump` of a slab class that cannot exist.
    ILLEGAL_SLAB_CLASS INVALID "CLIENT_ERROR Illegal slab id";
    /// `watch` where it is switched off.
    WATCH_DISABLED INVALID "CLIENT_ERROR watch commands not allowed";
    /// A command before authentication, or (binary) credentials that are wrong.
    NOT_AUTHENTICATED AUTHENTICATION "CLIENT_ERROR unauthenticated";
    /// Credentials that are wrong (text).
    WRONG_CREDENTIALS AUTHENTICATION "CLIENT_ERROR authentication failure";
    /// Credentials of more bytes than any server reads.
    LONG_CREDENTIALS INVALID "CLIENT_ERROR auth token too long";
    /// Credentials without a line end behind them.
    UNENDED_CREDENTIALS INVALID "CLIENT_ERROR bad command line termination";
    /// Credentials that are not a user and a password.
    BAD_CREDENTIALS INVALID "CLIENT_ERROR bad authentication token format";
    /// The machine that holds the item could not be asked.
    UNAVAILABLE TEMPORARY_FAILURE "SERVER_ERROR the key's owner is unavailable; nothing was done";
    /// The machine that holds the item was asked and did not answer in time.
    OUTCOME_UNKNOWN INTERNAL "SERVER_ERROR unknown outcome: the key's owner did not answer in time";
    /// There is no memory for anything else.
    NO_MEMORY OUT_OF_MEMORY "SERVER_ERROR out of memory";
}
