//! How full MemC3's table gets before an insert fails, and what an insert displaces on the way
//! (MemC3, table 2 and figure 6): `occupancy [slots a bucket] [log2 of slots] [runs] [step] [walks]`.
//! With a step, the displacements of an insert by how full the table is follow, in steps of so many
//! percent. With a number of walks only that search is measured.

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
    let wanted = numbers.get(4).map(|walks| PathSearch::Walks(*walks));
    let searches = searches.filter(|(_, search)| wanted.is_none_or(|wanted| wanted == *search));
    println!(
        "search, % full, bytes an item, displacements an insert below 80 % full / in all, \
         (% full of each run)"
    );
    let mut curves = Vec::new();
    for (name, search) in searches {
        let mut curve = vec![0.0; 101];
        let (mut load, mut bytes, mut below, mut all) = (0.0, 0.0, 0.0, 0.0);
        let mut loads = Vec::new();
        for seed in 1..=runs as u64 {
            let filling = run(slots_per_bucket, 1 << log2, search, seed);
            load += filling.load_factor() / runs as f64;
            loads.push(format!("{:.2}", 100.0 * filling.load_factor()));
            bytes += filling.bytes_per_item() / runs as f64;
            below += filling.displacements.iter().take(80).sum::<f64>() / 80.0 / runs as f64;
            // The last part is cut short and counts nowhere else than in the sum.
            for (mean, part) in curve.iter_mut().zip(&filling.displacements) {
                *mean += part / runs as f64;
            }
            all += filling.total_displacements as f64 / filling.items as f64 / runs as f64;
        }
        let loads = loads.join(" ");
        println!("{name}, {:.2}, {bytes:.2}, {below:.3} / {all:.3} ({loads})", 100.0 * load);
        curve.truncate((100.0 * load) as usize);
        curves.push((name, curve));
    }
    if let Some(step) = numbers.get(3).filter(|step| **step > 0) {
        print_curves(&curves, *step);
    }
}

/// One line for each `step` percent, with the mean over those; nothing beyond a search's end.
fn print_curves(curves: &[(String, Vec<f64>)], step: usize) {
    let names: Vec<_> = curves.iter().map(|(name, _)| name.as_str()).collect();
    println!("percent full,{}", names.join(","));
    for to in (step..=100).step_by(step) {
        let mean = |curve: &Vec<f64>| {
            curve.get(to - step..to).map_or(String::new(), |parts| {
                format!("{:.4}", parts.iter().sum::<f64>() / step as f64)
            })
        };
        let cells: Vec<_> = curves.iter().map(|(_, curve)| mean(curve)).collect();
        println!("{to},{}", cells.join(","));
    }
}
