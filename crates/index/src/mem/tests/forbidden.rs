//! What AddressSanitizer would report (`make sanitize`).

use super::*;

/// An item's bytes may be used, and neither what its slot is longer by nor anything of the slot but
/// the header once the item's grace period is over.
#[test]
fn what_no_item_uses_is_forbidden() {
    let toy = Toy::new(4 << 20, 1 << 20, true, 1);
    let (mut pool, helper) = (Pool::new(&toy.memory), Pool::new(&toy.memory));
    // Two passes: slots that were never used, and slots that come from a magazine.
    for length in [1, 8, 100, 1001, 5000, 300_001].repeat(2) {
        assert!(toy.set(&mut pool, &helper, 0, length));
        let place = |item: Item<'_>| (item.reference().to_bits(), item.bytes_held() as u64);
        let (header, bytes) = toy.with(&pool, 0, place).expect("it was written");
        let is_forbidden = |offset: u64| toy.memory.arena.is_forbidden(header + offset);
        assert!((0..bytes).all(|offset| !is_forbidden(offset)), "{length}");
        assert!(!toy.memory.arena.is_forbidden(header - 8), "its link word");
        assert!(bytes % 8 == 0 || is_forbidden(bytes), "{length}");
        assert!(toy.delete(&mut pool, 0));
        assert!((0..bytes).all(|offset| !is_forbidden(offset)), "readers may hold it");
        pool.flush();
        assert!((8..bytes).all(is_forbidden), "{length}");
        assert!(toy.memory.arena.is_forbidden(header - 8), "its link word");
        assert!(!is_forbidden(0), "walks read the header");
    }
}
