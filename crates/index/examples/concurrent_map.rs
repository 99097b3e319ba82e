//! A map that threads share: counts the words of some lines, a thread to each part.

use amalgam_index::{Map, MapBuilder};

const LINES: [&str; 4] = [
    "one fish two fish",
    "red fish blue fish",
    "one reads what another wrote",
    "the fish that the other counted",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let map: Map = MapBuilder::new().memory_bytes(16 << 20).open()?;
    std::thread::scope(|scope| {
        for (number, line) in LINES.iter().enumerate() {
            let map = &map;
            scope.spawn(move || {
                // One handle for all that the thread does.
                let mut handle = map.handle();
                for (place, word) in line.split(' ').enumerate() {
                    let key = format!("{word} {number} {place}");
                    handle.insert(key.as_bytes(), word.as_bytes()).expect("there is memory");
                }
            });
        }
    });
    let mut handle = map.handle();
    assert_eq!(map.len(), 19);
    assert_eq!(handle.get(b"fish 0 1").as_deref(), Some(&b"fish"[..]));
    // Many threads try; one of them is the first.
    let firsts: usize = std::thread::scope(|scope| {
        let claim = || map.handle().insert_if_absent(b"leader", b"taken");
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(claim)).collect();
        threads.into_iter().map(|thread| matches!(thread.join(), Ok(Ok(true))) as usize).sum()
    });
    assert_eq!(firsts, 1);
    println!("{} items, {firsts} leader", map.len());
    Ok(())
}
