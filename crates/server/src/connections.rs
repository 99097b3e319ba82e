//! The connections of one worker, by number.

/// Names a connection of one worker. A number is reused, but not its token: what was said of an
/// earlier holder (an event that was fetched before it closed) does not reach a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(u64);

impl Token {
    /// As 64 bits, for the system to hand back.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// From such bits.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    fn place(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
}

/// See the head of this module.
pub struct Connections<C> {
    places: Vec<(u64, Option<Box<C>>)>,
    free: Vec<usize>,
}

impl<C> Default for Connections<C> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<C> Connections<C> {
    /// Takes one in.
    pub fn insert(&mut self, connection: C) -> Token {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() - 1
        });
        let (round, slot) = &mut self.places[place];
        *slot = Some(Box::new(connection));
        Token(*round << 32 | place as u64)
    }

    /// The connection, if it is still there.
    #[inline]
    pub fn get(&mut self, token: Token) -> Option<&mut C> {
        match self.places.get_mut(token.place()) {
            Some((round, slot)) if *round == token.0 >> 32 => slot.as_deref_mut(),
            _ => None,
        }
    }

    /// Gives it back, if it is still there.
    pub fn remove(&mut self, token: Token) -> Option<Box<C>> {
        self.get(token)?;
        let (round, slot) = &mut self.places[token.place()];
        *round = (*round + 1) & 0xffff_ffff;
        self.free.push(token.place());
        slot.take()
    }

    /// How many places there are; for walks over [`Connections::at`].
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// The connection in a place, if one is there.
    pub fn at(&mut self, place: usize) -> Option<(Token, &mut C)> {
        let (round, slot) = self.places.get_mut(place)?;
        let token = Token(*round << 32 | place as u64);
        slot.as_deref_mut().map(|connection| (token, connection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_reused_under_another_token() {
        let mut connections = Connections::default();
        let first = connections.insert('a');
        assert!(connections.remove(first).is_some());
        let second = connections.insert('a');
        assert_eq!(connections.places(), 1);
        assert_ne!(first, second);
        assert!(connections.get(first).is_none());
        assert!(connections.remove(first).is_none());
        assert!(connections.get(second).is_some());
    }
}
