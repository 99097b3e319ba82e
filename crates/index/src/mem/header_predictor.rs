//! A worker's prediction of the header of the next item that it reads.

use super::header::Header;
use super::header_template::HeaderTemplate;

/// Predicts that the next item has the header of the last ones: caches hold many items of the same
/// lengths and flags.
pub struct HeaderPredictor {
    template: HeaderTemplate,
    /// The header of the last item that did not match the template.
    other_header: Option<Header>,
    reach_bytes: usize,
}

impl HeaderPredictor {
    /// The predictor of a worker that has read nothing yet.
    pub const UNTRAINED: Self =
        Self { template: HeaderTemplate::NONE, other_header: None, reach_bytes: 0 };

    /// The predicted header. A read compares it with the item's and, if they are equal, need not
    /// work out where the item's fields lie.
    #[inline]
    pub fn template(&self) -> &HeaderTemplate {
        &self.template
    }

    /// Distance in bytes from the start of the last item's header to the item's last byte: a guess
    /// at the next item's last cache line.
    #[inline]
    pub fn reach_bytes(&self) -> usize {
        self.reach_bytes
    }

    /// Learns the length of an item that was found.
    #[inline]
    pub(crate) fn learn_length(&mut self, header: Header) {
        self.reach_bytes = header.bytes() - 1;
    }

    /// Learns a header that did not match the template. It becomes the template when two items in
    /// a row have it. A sealed header is not learnt: its item is about to be replaced.
    #[inline]
    pub(crate) fn learn_header(&mut self, header: Header) {
        let other = self.other_header.replace(header);
        if !header.is_sealed() && other.is_some_and(|other| other.looks_like(header)) {
            self.template = HeaderTemplate::of_read(header);
        }
    }
}
