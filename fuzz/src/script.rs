//! A script of what a target does: the input, read from its front.

/// The rest of an input.
pub struct Script<'d>(pub &'d [u8]);

impl<'d> Script<'d> {
    /// The next byte; None at the end.
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next two bytes as a number; 0 at the end.
    pub fn number(&mut self) -> usize {
        usize::from(self.byte().unwrap_or(0)) << 8 | usize::from(self.byte().unwrap_or(0))
    }

    /// The next bytes, as many as the first says and there are.
    pub fn bytes(&mut self) -> &'d [u8] {
        let count = usize::from(self.byte().unwrap_or(0));
        self.take(count)
    }

    /// The next bytes, at most this many.
    pub fn take(&mut self, count: usize) -> &'d [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
