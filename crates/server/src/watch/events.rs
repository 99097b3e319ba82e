//! The kinds of lines that a watcher can ask for.

/// A set of kinds of lines, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events(u16);

impl Events {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// Reads of keys.
    pub const FETCHERS: Self = Self(1);
    /// Stores of any kind.
    pub const MUTATIONS: Self = Self(2);
    /// Evictions of items.
    pub const EVICTIONS: Self = Self(4);
    /// Connections opened and closed.
    pub const CONNECTIONS: Self = Self(8);
    /// Deletes of items.
    pub const DELETIONS: Self = Self(16);

    /// Parses the arguments of `watch`; as in memcached, a prefix of a name is enough. None if one
    /// is unknown. Kinds that only memcached's proxy or debugging have are accepted and never sent.
    pub fn parse<'w>(words: impl Iterator<Item = &'w [u8]>) -> Option<Self> {
        const NAMES: [(&str, Events); 10] = [
            ("rawcmds", Events::NONE),
            ("evictions", Events::EVICTIONS),
            ("fetchers", Events::FETCHERS),
            ("mutations", Events::MUTATIONS),
            ("sysevents", Events::NONE),
            ("connevents", Events::CONNECTIONS),
            ("proxyreqs", Events::NONE),
            ("proxyevents", Events::NONE),
            ("proxyuser", Events::NONE),
            ("deletions", Events::DELETIONS),
        ];
        let mut events = None;
        for word in words {
            let (_, kind) = NAMES.iter().find(|(name, _)| name.as_bytes().starts_with(word))?;
            events = Some(Self(events.unwrap_or(Self::NONE).0 | kind.0));
        }
        Some(events.unwrap_or(Self::FETCHERS))
    }

    /// The set as bits.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// The set of these bits.
    pub fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The kinds in either set.
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the sets have a kind in common.
    #[inline]
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_parsed_as_memcached_parses_them() {
        let parse =
            |words: &[&'static str]| Events::parse(words.iter().map(|word| word.as_bytes()));
        assert_eq!(parse(&[]), Some(Events::FETCHERS));
        assert_eq!(parse(&["mut", "evictions"]), Some(Events(6)));
        assert_eq!(parse(&["rawcmds"]), Some(Events::NONE));
        assert_eq!(parse(&["fetchers", "nothing"]), None);
    }
}
