//! Memory that the index gives back to the system stays there.

#![cfg(target_os = "linux")]

use amalgam_conformance::harness::{Session, configuration, open};
use amalgam_index::mercury::Mercury;
use amalgam_index::{Configuration, Store};

/// The number of this process's mappings with advice for huge pages (`hg`), and of those with
/// advice against them (`nh`).
fn advised_mappings() -> [usize; 2] {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("the system tells");
    let count = |advice: &str| {
        let flags = maps.lines().filter_map(|line| line.strip_prefix("VmFlags:"));
        flags.filter(|flags| flags.split(' ').any(|flag| flag == advice)).count()
    };
    ["hg", "nh"].map(count)
}

/// The system would fill what is discarded of a huge page with memory again, and the process would
/// exceed its limit.
#[test]
fn what_is_discarded_is_in_no_huge_page() {
    const LIMIT: usize = 32 << 20;
    let index: Mercury = open(&Configuration { memory_bytes: LIMIT, ..configuration() });
    if advised_mappings()[0] == 0 {
        return; // a system without huge pages
    }
    let mut session = Session::new(&index);
    // The program's own mappings have such advice too.
    let before = advised_mappings()[1];
    let mut fill = |limit: usize| {
        index.set_memory_limit(limit);
        for number in 0..2 * LIMIT / 500 {
            session.set(format!("key {number}").as_bytes(), &[b'v'; 450]);
            if number % 32 == 0 {
                session.worker_turn();
            }
        }
        session.settle();
        advised_mappings()[1]
    };
    fill(LIMIT);
    let (lowered, raised) = (fill(LIMIT / 2), fill(LIMIT));
    assert!(lowered > before, "what was discarded may become a huge page");
    assert!(raised < lowered, "what is in use again may become a huge page again");
}
