//! The comparison of engines as an SVG picture.

use std::fmt::Write;

use super::{Advice, Row};

const WIDTH: i32 = 960;
const HEAD: i32 = 64;
const PANEL_HEAD: i32 = 56;
const BAR: i32 = 30;
/// Where the bars of a panel begin and end, in pixels: names stand to their left, numbers to their
/// right.
const FROM: i32 = 104;
const TO: i32 = 376;
const BAR_THICKNESS: i32 = 18;

const INK: &str = "#1c2026";
const FAINT: &str = "#606874";
const OTHER: &str = "#a0acbe";
const CHOSEN: &str = "#146ebe";

/// One diagram of the picture: a bar for each engine.
struct Panel {
    title: &'static str,
    hint: &'static str,
    value: fn(&Row) -> Option<f64>,
    tell: fn(f64) -> String,
}

const PANELS: [Panel; 4] = [
    Panel {
        title: "Throughput",
        hint: "million requests a second; more is better",
        value: |row| row.requests_per_second.map(|rate| rate / 1e6),
        tell: |value| format!("{value:.2}"),
    },
    Panel {
        title: "Hit ratio",
        hint: "reads that hit; more is better",
        value: |row| row.hit_ratio.map(|ratio| 100.0 * ratio),
        tell: |value| format!("{value:.2} %"),
    },
    Panel {
        title: "Memory",
        hint: "bytes an item, all uses; less is better",
        value: |row| row.bytes_per_item,
        tell: |value| format!("{value:.0}"),
    },
    Panel {
        title: "Tail",
        hint: "microseconds for 99 % of the batches; less is better",
        value: |row| row.p99_ns.map(|time| time as f64 / 1e3),
        tell: |value| format!("{value:.1}"),
    },
];

/// Draws the rows as SVG.
pub fn draw(rows: &[Row], advice: &Advice) -> String {
    let panel_height = PANEL_HEAD + BAR * rows.len() as i32 + 16;
    let height = HEAD + 2 * panel_height;
    let mut picture = Picture(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\">\n"
    ));
    picture.rectangle((0, 0), (WIDTH, height), "#ffffff");
    picture.text(&format!("Choose {}", advice.engine), (24, 24), 24, INK);
    if let Some(row) = rows.first() {
        let about = format!(
            "{} requests for {} keys, {:.0} % reads; {:.0} MiB, {} threads, {} at once",
            row.trace.requests,
            row.trace.keys,
            100.0 * row.trace.read_share,
            row.memory_bytes as f64 / f64::from(1 << 20),
            row.threads,
            row.batch
        );
        picture.text(&about, (24, 50), 14, FAINT);
    }
    for (number, panel) in PANELS.iter().enumerate() {
        let (column, line) = (number as i32 % 2, number as i32 / 2);
        picture.panel(panel, rows, (column * WIDTH / 2, HEAD + line * panel_height));
    }
    picture.0 + "</svg>\n"
}

/// The text of the SVG, while it is written.
struct Picture(String);

impl Picture {
    /// Draws a panel whose upper left corner is at `left` and `top`.
    fn panel(&mut self, panel: &Panel, rows: &[Row], (left, top): (i32, i32)) {
        self.text(panel.title, (left + 24, top + 22), 16, INK);
        self.text(panel.hint, (left + 24, top + 40), 12, FAINT);
        let most = rows.iter().filter_map(panel.value).fold(0.0, f64::max);
        for (number, row) in rows.iter().enumerate() {
            let top = top + PANEL_HEAD + BAR * number as i32;
            let middle = top + BAR_THICKNESS / 2;
            self.text(row.engine, (left + 24, middle), 13, INK);
            let Some(value) = (panel.value)(row) else {
                self.text("–", (left + FROM, middle), 13, FAINT);
                continue;
            };
            let share = if most > 0.0 { value / most } else { 0.0 };
            let width = (f64::from(TO - FROM) * share).round() as i32;
            let color = if row.recommended { CHOSEN } else { OTHER };
            self.rectangle((left + FROM, top), (width, BAR_THICKNESS), color);
            self.text(&(panel.tell)(value), (left + FROM + width + 6, middle), 13, INK);
        }
    }

    fn rectangle(&mut self, (x, y): (i32, i32), (width, height): (i32, i32), color: &str) {
        self.line(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{color}\"/>"
        ));
    }

    /// Writes `text`, the middle of whose left edge is at `x` and `y`. Requires: `text` holds no
    /// `<` or `&`; every caller passes a constant or a number.
    fn text(&mut self, text: &str, (x, y): (i32, i32), size: i32, color: &str) {
        self.line(format_args!(
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{color}\" \
             dominant-baseline=\"central\">{text}</text>"
        ));
    }

    fn line(&mut self, element: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{element}").expect("a string takes any text");
    }
}
