//! memcached's slab classes: the number that it would give to the class of an item.

/// The bytes of memcached's item header, which every class's size includes.
const HEADER_BYTES: usize = 48;

/// memcached's largest chunk in bytes; longer items are made of several.
const LARGEST_CHUNK_BYTES: usize = 512 << 10;

/// memcached's class numbers are below this.
pub const CLASSES: u32 = 64;

/// The chunk sizes of memcached's classes, ascending; the first is class 1.
pub struct SlabClasses(Vec<usize>);

impl SlabClasses {
    /// For memcached's options `-n` and `-f`.
    pub fn new(least_bytes: u32, growth: f64) -> Self {
        let mut sizes = Vec::new();
        let mut bytes = (least_bytes as usize + HEADER_BYTES) as f64;
        while sizes.len() + 2 < CLASSES as usize && bytes < LARGEST_CHUNK_BYTES as f64 / growth {
            let aligned = (bytes as usize).next_multiple_of(8);
            sizes.push(aligned);
            bytes = aligned as f64 * growth;
        }
        sizes.push(LARGEST_CHUNK_BYTES);
        Self(sizes)
    }

    /// The class of an item that memcached counts as `bytes`; at least 1.
    pub fn class(&self, bytes: usize) -> u32 {
        (self.0.partition_point(|size| *size < bytes).min(self.0.len() - 1) + 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_memcached() {
        let slab_classes = SlabClasses::new(48, 1.25);
        assert_eq!(&slab_classes.0[..6], [96, 120, 152, 192, 240, 304]);
        assert_eq!(slab_classes.0.len(), 39);
        for (bytes, class) in
            [(1, 1), (96, 1), (97, 2), (120, 2), (121, 3), (66_619, 31), (1 << 30, 39)]
        {
            assert_eq!(slab_classes.class(bytes), class, "{bytes}");
        }
        assert!(SlabClasses::new(48, 1.01).0.len() < CLASSES as usize);
    }
}
