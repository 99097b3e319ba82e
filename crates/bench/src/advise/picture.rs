//! The comparison as a picture.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Advice, Row};

const WIDTH: i32 = 960;
const HEAD: i32 = 64;
const PANEL_HEAD: i32 = 56;
const BAR: i32 = 30;
/// Where the bars of a panel begin and end: left of them are names, right of them numbers.
const FROM: i32 = 104;
const TO: i32 = 376;
const BAR_THICKNESS: i32 = 18;

const INK: RGBColor = RGBColor(28, 32, 38);
const FAINT: RGBColor = RGBColor(96, 104, 116);
const OTHER: RGBColor = RGBColor(160, 172, 190);
const CHOSEN: RGBColor = RGBColor(20, 110, 190);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What a panel shows.
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
///
/// # Errors
///
/// If the picture cannot be built.
pub fn draw(rows: &[Row], advice: &Advice) -> anyhow::Result<String> {
    let mut text = String::new();
    let panel_height = PANEL_HEAD + BAR * rows.len() as i32 + 16;
    let height = HEAD + 2 * panel_height;
    {
        let backend = SVGBackend::with_string(&mut text, (WIDTH as u32, height as u32));
        let root = backend.into_drawing_area();
        root.fill(&WHITE)?;
        write(&root, &format!("Choose {}", advice.engine), (24, 24), 24.0, &INK, HPos::Left)?;
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
            write(&root, &about, (24, 50), 14.0, &FAINT, HPos::Left)?;
        }
        let (_, below) = root.split_vertically(HEAD);
        for (area, panel) in below.split_evenly((2, 2)).iter().zip(&PANELS) {
            draw_panel(area, panel, rows)?;
        }
        root.present()?;
    }
    Ok(text)
}

fn draw_panel(area: &Area<'_>, panel: &Panel, rows: &[Row]) -> anyhow::Result<()> {
    write(area, panel.title, (24, 22), 16.0, &INK, HPos::Left)?;
    write(area, panel.hint, (24, 40), 12.0, &FAINT, HPos::Left)?;
    let most = rows.iter().filter_map(panel.value).fold(0.0, f64::max);
    for (number, row) in rows.iter().enumerate() {
        let top = PANEL_HEAD + BAR * number as i32;
        let middle = top + BAR_THICKNESS / 2;
        let color = if row.recommended { CHOSEN } else { OTHER };
        write(area, row.engine, (24, middle), 13.0, &INK, HPos::Left)?;
        let Some(value) = (panel.value)(row) else {
            write(area, "–", (FROM, middle), 13.0, &FAINT, HPos::Left)?;
            continue;
        };
        let share = if most > 0.0 { value / most } else { 0.0 };
        let end = FROM + (f64::from(TO - FROM) * share).round() as i32;
        area.draw(&Rectangle::new([(FROM, top), (end, top + BAR_THICKNESS)], color.filled()))?;
        write(area, &(panel.tell)(value), (end + 6, middle), 13.0, &INK, HPos::Left)?;
    }
    Ok(())
}

fn write(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: f64,
    color: &RGBColor,
    side: HPos,
) -> anyhow::Result<()> {
    let style = ("sans-serif", size).into_font().color(color).pos(Pos::new(side, VPos::Center));
    Ok(area.draw_text(text, &style, at)?)
}
