//! Draws rates by key length: above, the rate of the wire and the rate of replies; below, the
//! utilisation of the memory's port.

use std::fmt::Write;

use amalgam_rtl::line_rate::{Load, Rate};

use crate::line_rate::MIXES;

const WIDTH: f64 = 900.0;
const PANEL: f64 = 230.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 150.0;
/// The lengths of the shortest and of the longest key in bytes.
const KEYS: (f64, f64) = (6.0, 168.0);
/// The colours of the lines, which colour-blind readers can distinguish, and their dashes for
/// readers without colour.
const LOOKS: [(&str, &str); 3] = [("#0072b2", ""), ("#d55e00", "8 4"), ("#009e73", "2 4")];

/// The picture of the rates of values of one byte without memcached's header.
pub fn svg(measured: &[(Load, Rate)]) -> String {
    let rates: Vec<_> =
        measured.iter().filter(|(load, _)| load.value_bytes == 1 && !load.has_header).collect();
    let most = rates.iter().map(|(_, rate)| rate.line).fold(1.0, f64::max);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" \
         font-family=\"sans-serif\" font-size=\"12\"><style>text {{ fill: #1c2026 }} .grid {{ \
         stroke: #8888; }} .wire {{ fill: #8884; stroke: none }} @media (prefers-color-scheme: \
         dark) {{ text {{ fill: #e6e9ee }} }}</style>\n",
        2.0 * PANEL + 60.0
    );
    let line: Vec<_> = points(&rates, 0, |rate| rate.line);
    let top = Panel { y: 20.0, most: most * 1.1, title: "million requests a second", unit: 1.0 };
    top.frame(&mut text);
    let wire = line.iter().map(|&(key, rate)| top.place(key, rate)).collect::<Vec<_>>().join(" ");
    let (begin, end) = (top.place(KEYS.0, 0.0), top.place(KEYS.1, 0.0));
    add(&mut text, &format!("<polygon class=\"wire\" points=\"{begin} {wire} {end}\"/>"));
    let below = Panel { y: PANEL + 50.0, most: 1.0, title: "of the memory's port", unit: 100.0 };
    below.frame(&mut text);
    for (number, (sets, look)) in MIXES.into_iter().zip(LOOKS).enumerate() {
        top.series(&mut text, &points(&rates, sets, |rate| rate.answered), look);
        below.series(&mut text, &points(&rates, sets, |rate| rate.utilisation), look);
        let (x, y) = (WIDTH - RIGHT + 12.0, 40.0 + 20.0 * number as f64);
        let ends = [(x, y), (x + 28.0, y)];
        path(&mut text, &ends.map(|(x, y)| format!("{x:.1},{y:.1}")).join(" "), look);
        add(&mut text, &format!("<text x=\"{}\" y=\"{}\">{sets} % SETs</text>", x + 34.0, y + 4.0));
    }
    let (x, y) = (WIDTH - RIGHT + 12.0, 95.0);
    add(
        &mut text,
        &format!("<rect class=\"wire\" x=\"{x}\" y=\"{y}\" width=\"28\" height=\"10\"/>"),
    );
    add(&mut text, &format!("<text x=\"{}\" y=\"{}\">the wire</text>", x + 34.0, y + 9.0));
    let (x, y) = ((LEFT + WIDTH - RIGHT) / 2.0, 2.0 * PANEL + 56.0);
    add(&mut text, &format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">key bytes</text>"));
    text + "</svg>\n"
}

fn points(rates: &[&(Load, Rate)], sets: usize, of: impl Fn(&Rate) -> f64) -> Vec<(f64, f64)> {
    let of_mix = rates.iter().filter(|(load, _)| load.sets_percent == sets);
    of_mix.map(|(load, rate)| (load.key_bytes as f64, of(rate))).collect()
}

fn add(text: &mut String, element: &str) {
    writeln!(text, "{element}").expect("a string takes it");
}

fn path(text: &mut String, places: &str, (color, dashes): (&str, &str)) {
    let style = format!("fill=\"none\" stroke=\"{color}\" stroke-width=\"1.8\"");
    add(text, &format!("<polyline points=\"{places}\" {style} stroke-dasharray=\"{dashes}\"/>"));
}

/// One pair of axes.
struct Panel {
    y: f64,
    most: f64,
    title: &'static str,
    /// The factor of the numbers at the axis.
    unit: f64,
}

impl Panel {
    fn place(&self, key: f64, value: f64) -> String {
        let x = LEFT + (key - KEYS.0) / (KEYS.1 - KEYS.0) * (WIDTH - LEFT - RIGHT);
        let y = self.y + (PANEL - 20.0) * (1.0 - value / self.most);
        format!("{x:.1},{y:.1}")
    }

    fn series(&self, text: &mut String, points: &[(f64, f64)], look: (&str, &str)) {
        let places: Vec<_> = points.iter().map(|&(key, value)| self.place(key, value)).collect();
        path(text, &places.join(" "), look);
    }

    fn frame(&self, text: &mut String) {
        let title = self.y - 6.0;
        add(text, &format!("<text x=\"{LEFT}\" y=\"{title}\">{}</text>", self.title));
        for step in 0..=4 {
            let value = self.most * f64::from(step) / 4.0;
            let place = self.place(KEYS.0, value);
            let (x, y) = place.split_once(',').expect("two numbers");
            let end = WIDTH - RIGHT;
            add(text, &format!("<path class=\"grid\" d=\"M{x} {y}H{end}\"/>"));
            let label = value * self.unit;
            let digits = usize::from(label < 10.0 && label > 0.0);
            let x = LEFT - 8.0;
            add(
                text,
                &format!(
                    "<text x=\"{x}\" y=\"{y}\" dy=\"4\" text-anchor=\"end\">{label:.digits$}</text>"
                ),
            );
        }
        for key in [6, 24, 48, 72, 96, 120, 144, 168] {
            let place = self.place(f64::from(key), 0.0);
            let (x, y) = place.split_once(',').expect("two numbers");
            add(
                text,
                &format!("<text x=\"{x}\" y=\"{y}\" dy=\"15\" text-anchor=\"middle\">{key}</text>"),
            );
        }
    }
}
