//! Doubly linked lists of items, for policies in which an item is in at most one list at a time.

/// No item.
const NONE: u32 = u32::MAX;

/// The links of all lists, by item.
pub struct Links {
    newer: Vec<u32>,
    older: Vec<u32>,
}

impl Links {
    /// For this number of items.
    pub fn new(items: usize) -> Self {
        Self { newer: vec![NONE; items], older: vec![NONE; items] }
    }

    /// The item that was added to the same list after `item`.
    pub fn newer(&self, item: u32) -> Option<u32> {
        some(self.newer[item as usize])
    }
}

/// A list, from the newest item to the oldest, and the sum of their bytes.
pub struct List {
    newest: u32,
    oldest: u32,
    /// Bytes of all items of the list.
    pub bytes: u64,
}

impl List {
    /// A list of nothing.
    pub fn new() -> Self {
        Self { newest: NONE, oldest: NONE, bytes: 0 }
    }

    /// The item at the end.
    pub fn oldest(&self) -> Option<u32> {
        some(self.oldest)
    }

    /// Adds an item that is in no list.
    pub fn add(&mut self, links: &mut Links, item: u32, bytes: u64) {
        links.newer[item as usize] = NONE;
        links.older[item as usize] = self.newest;
        match some(self.newest) {
            Some(newest) => links.newer[newest as usize] = item,
            None => self.oldest = item,
        }
        self.newest = item;
        self.bytes += bytes;
    }

    /// Removes an item of this list.
    pub fn remove(&mut self, links: &mut Links, item: u32, bytes: u64) {
        let (newer, older) = (links.newer[item as usize], links.older[item as usize]);
        match some(newer) {
            Some(newer) => links.older[newer as usize] = older,
            None => self.newest = older,
        }
        match some(older) {
            Some(older) => links.newer[older as usize] = newer,
            None => self.oldest = newer,
        }
        self.bytes -= bytes;
    }
}

fn some(item: u32) -> Option<u32> {
    (item != NONE).then_some(item)
}
