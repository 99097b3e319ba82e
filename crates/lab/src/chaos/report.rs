//! The report: the cells where rivals win, then all cells.

use std::fmt::Write;

use serde_json::Value;

/// What lower numbers are better in, in the order of the columns.
const COLUMNS: [(&str, &str); 5] = [
    ("stale", "stale reads"),
    ("worst_seconds", "worst key, s"),
    ("median_seconds", "median key, s"),
    ("healthy_errors", "errors of others"),
    ("healthy_p99_seconds", "p99 of others, s"),
];

/// The report of these cells, in Markdown.
pub fn write(cells: &[Value]) -> String {
    let mut text = "# Systems under the same faults\n\n".to_owned();
    text += "`amalgam-lab chaos` wrote this page ([what it does](../laboratory.md#faults)).\n\n";
    let wins = wins(cells);
    if !wins.is_empty() {
        text += "## Where others are better\n\n| schedule | column | ours | other |\n";
        text += "| --- | --- | --- | --- |\n";
        text += &wins;
        text += "\n";
    }
    text +=
        "## All cells\n\n| schedule | system | acknowledged | lost keys | unreadable | misses |";
    COLUMNS.iter().for_each(|(_, title)| text += &format!(" {title} |"));
    text += " load | commit |\n|";
    text += &" --- |".repeat(8 + COLUMNS.len());
    text += "\n";
    for cell in cells {
        let count = |name: &str| cell[name].as_array().map_or(0, Vec::len);
        let _ = write!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            word(&cell["schedule"]),
            word(&cell["system"]),
            cell["acknowledged"],
            count("lost"),
            count("unreadable"),
            cell["misses"],
        );
        COLUMNS.iter().for_each(|(name, _)| text += &format!(" {} |", word(&cell[*name])));
        let _ = writeln!(text, " {} | {} |", word(&cell["machine_load"]), word(&cell["commit"]));
    }
    text
}

/// A row for each number in which the best rival of a schedule is better than our best.
fn wins(cells: &[Value]) -> String {
    let mut rows = String::new();
    let mut schedules: Vec<&Value> = cells.iter().map(|cell| &cell["schedule"]).collect();
    schedules.dedup();
    for schedule in schedules {
        for (column, title) in COLUMNS {
            let best = |is_ours: bool| {
                let of = |cell: &&Value| {
                    let name = cell["system"].as_str().unwrap_or_default();
                    &cell["schedule"] == schedule && name.starts_with("amalgam") == is_ours
                };
                let numbers = cells.iter().filter(of).filter_map(|cell| cell[column].as_f64());
                numbers.min_by(f64::total_cmp)
            };
            if let (Some(ours), Some(other)) = (best(true), best(false))
                && other < ours
            {
                rows += &format!("| {} | {title} | {ours} | {other} |\n", word(schedule));
            }
        }
    }
    rows
}

/// A value as a word of a table.
fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_rivals_win_stands_first() {
        let cell = |system: &str, worst: f64| {
            json!({"schedule": "kill-one", "system": system, "worst_seconds": worst,
                "acknowledged": 7, "lost": [1, 2], "misses": 0, "stale": 0})
        };
        let text = write(&[cell("amalgam-store", 3.5), cell("redis-cluster", 2.5)]);
        let win = text.find("| kill-one | worst key, s | 3.5 | 2.5 |").expect("a win");
        assert!(win < text.find("## All cells").expect("all cells"), "{text}");
        assert!(text.contains("| kill-one | amalgam-store | 7 | 2 | 0 | 0 | 0 | 3.5 |"), "{text}");
        let text = write(&[cell("amalgam-store", 2.5), cell("redis-cluster", 3.5)]);
        assert!(!text.contains("Where others are better"), "{text}");
    }
}
