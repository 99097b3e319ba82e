//! What somebody wants to be told of requests: counts by prefix. Nobody does, usually, and then
//! requests pay for one comparison.

use amalgam_index::Index;
use amalgam_op::{Op, Outcome, Verb};

use crate::server::Shared;
use crate::statistics::{Deed, Prefixes};

/// Who is to be told in this turn.
#[derive(Clone, Copy)]
pub struct Observer<'s> {
    prefixes: Option<&'s Prefixes>,
}

impl<'s> Observer<'s> {
    /// Whoever wants to be told now; none if nobody does.
    #[inline]
    pub fn of<I: Index>(shared: &'s Shared<I>) -> Option<Self> {
        let prefixes = shared.prefixes.is_on().then_some(&shared.prefixes);
        prefixes.map(|_| Self { prefixes })
    }

    /// A key was read.
    #[cold]
    pub fn read(&self, key: &[u8], is_hit: bool) {
        if let Some(prefixes) = self.prefixes {
            prefixes.count(key, Deed::Get { is_hit });
        }
    }

    /// An operation was carried out.
    #[cold]
    pub fn applied(&self, op: &Op<'_>, outcome: &Outcome) {
        let Some(prefixes) = self.prefixes else { return };
        let deed = match op.verb {
            Verb::Get(_) => Deed::Get { is_hit: matches!(outcome, Outcome::Hit(_)) },
            Verb::Store(_) => Deed::Set,
            Verb::Delete(_) => Deed::Delete,
            Verb::Arithmetic(_) => return,
        };
        prefixes.count(op.key.bytes(), deed);
    }
}
