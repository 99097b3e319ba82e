//! How full MemC3's table gets before an insert fails, and what an insert displaces on the way
//! (MemC3, table 2 and figure 6): `occupancy [slots a bucket] [log2 of slots] [runs]`.

use amalgam_index::PathSearch;
use amalgam_index::memc3::occupancy::{Filling, MAX_DISPLACEMENTS, fill};

fn run(slots_per_bucket: usize, slots: usize, search: PathSearch, seed: u64) -> Filling {
    let filling = match slots_per_bucket {
        4 => fill::<4>(slots, search, MAX_DISPLACEMENTS, seed),
        _ => fill::<8>(slots, search, MAX_DISPLACEMENTS, seed),
    };
    filling.expect("memory for the table")
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let number = |place: usize, default| numbers.get(place).copied().unwrap_or(default);
    let (slots_per_bucket, log2, runs) = (number(0, 4), number(1, 24), number(2, 1));
    let walks = (1..=4).map(|walks| (format!("{walks} walks"), PathSearch::Walks(walks)));
    let searches = walks.chain([("breadth-first".to_owned(), PathSearch::BreadthFirst)]);
    println!("search, % full, bytes an item, displacements an insert below 80 % full / in all");
    for (name, search) in searches {
        let (mut load, mut bytes, mut below, mut all) = (0.0, 0.0, 0.0, 0.0);
        for seed in 1..=runs as u64 {
            let filling = run(slots_per_bucket, 1 << log2, search, seed);
            load += filling.load_factor() / runs as f64;
            bytes += filling.bytes_per_item() / runs as f64;
            below += filling.displacements.iter().take(80).sum::<f64>() / 80.0 / runs as f64;
            all += filling.total_displacements as f64 / filling.items as f64 / runs as f64;
        }
        println!("{name}, {:.2}, {bytes:.2}, {below:.3} / {all:.3}", 100.0 * load);
    }
}
