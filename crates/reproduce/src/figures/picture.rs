//! Draws figures as SVG. No two series of a panel have the same colour, mark and dashes, so lines
//! can be distinguished even without colour. Bars are in the order of the legend, and printed
//! numbers have hollow bars. The background is transparent, and the ink follows the light or dark
//! page of the reader.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::plan::{Panel, Shape};
use super::point::Point;

const WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 360;
const LEGEND_LINE: i32 = 18;
/// The approximate width of a digit above a bar, in pixels.
const DIGIT_WIDTH: i32 = 6;
const DIGIT_HEIGHT: i32 = 10;

const INK: RGBColor = RGBColor(28, 32, 38);
const GRID: RGBColor = RGBColor(214, 219, 226);

/// The style that makes ink light on a dark page.
const STYLE: &str = "<style>@media (prefers-color-scheme: dark) {\
    [fill=\"#1C2026\"] { fill: #E6E9EE } [stroke=\"#1C2026\"] { stroke: #E6E9EE }\
    [stroke=\"#D6DBE2\"] { stroke: #3A414C } }</style>";

/// Colours that colour-blind readers can distinguish (Okabe and Ito), darkened for contrast with
/// white. An engine has the same colour in all figures.
const COLORS: &[(&str, RGBColor)] = &[
    ("mercury", RGBColor(213, 94, 0)),
    ("hotring-r", RGBColor(204, 121, 167)),
    ("hotring-s", RGBColor(160, 60, 120)),
    ("memc3", RGBColor(0, 114, 178)),
    ("pipeline", RGBColor(0, 158, 115)),
    ("chaining", RGBColor(120, 120, 120)),
    ("global-lock", RGBColor(150, 110, 60)),
    ("lru-cuckoo", RGBColor(86, 180, 233)),
    ("amalgam", RGBColor(0, 114, 178)),
    ("memcached", RGBColor(120, 120, 120)),
    ("redis", RGBColor(200, 150, 0)),
    ("cassandra", RGBColor(204, 121, 167)),
    ("DXRAM", RGBColor(0, 158, 115)),
    ("Cassandra", RGBColor(204, 121, 167)),
    ("MongoDB", RGBColor(150, 110, 60)),
];

/// The colours of series that are not in [`COLORS`], in order.
const OTHERS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(200, 150, 0),
    RGBColor(170, 60, 60),
    RGBColor(90, 70, 160),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The colour, mark and dashes of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Look {
    color: RGBColor,
    mark: usize,
    dash: usize,
    /// Whether bars are hollow: the numbers are the paper's.
    is_hollow: bool,
}

/// The suffixes of series that the model computes from a measured one. Each has its own dashes;
/// measured series have solid lines.
const KINDS: [&str; 3] = [", predicted", ", at least", ", at most"];
/// The suffix of a series whose numbers the paper prints.
const PRINTED: &str = ", printed";

/// Draws a figure's panels, one below the other.
///
/// # Errors
///
/// If the picture cannot be built.
pub fn draw(panels: &[(&Panel, &[Point])]) -> anyhow::Result<String> {
    let mut text = String::new();
    let legends: Vec<u32> = panels.iter().map(|(_, points)| legend_height(points)).collect();
    let height = legends.iter().map(|legend| PANEL_HEIGHT + legend).sum::<u32>().max(1);
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        let mut rest = root.clone();
        for ((panel, points), legend) in panels.iter().zip(&legends) {
            let (area, below) = rest.split_vertically(PANEL_HEIGHT + legend);
            draw_panel(&area, panel, points, *legend as i32)?;
            rest = below;
        }
        root.present()?;
    }
    let end = text.find('>').map_or(0, |place| place + 1);
    text.insert_str(end, STYLE);
    Ok(text)
}

/// The names of the series of a panel, in the order of their first points.
fn series(points: &[Point]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for point in points {
        if !names.contains(&point.series.as_str()) {
            names.push(&point.series);
        }
    }
    names
}

/// The look of each series of a panel. "memc3, predicted" has the colour and mark of memc3.
fn looks(names: &[&str]) -> Vec<Look> {
    let engine = |name: &str| name.split(", ").next().unwrap_or(name).to_owned();
    let own = |name: &str| {
        let engine = engine(name);
        COLORS.iter().find(|(own, _)| *own == engine).map(|(_, color)| *color)
    };
    let taken: Vec<RGBColor> = names.iter().filter_map(|name| own(name)).collect();
    let mut others = OTHERS.iter().filter(|color| !taken.contains(color)).cycle();
    let kind = |name: &str| KINDS.iter().position(|kind| name.ends_with(kind));
    let is_model = names.iter().any(|name| kind(name).is_some());
    let mut engines: Vec<String> = Vec::new();
    let mut looks = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let engine = engine(name);
        let of_engine = engines.iter().position(|one| *one == engine).unwrap_or(engines.len());
        if of_engine == engines.len() {
            engines.push(engine);
        }
        let color = own(name).or_else(|| others.next().copied()).unwrap_or(INK);
        let (mark, dash) = match kind(name) {
            Some(kind) => (of_engine % 4, kind + 1),
            None if is_model => (of_engine % 4, 0),
            // Four marks and four kinds of dashes make sixteen pairs.
            None => (index % 4, (index + index / 4) % 4),
        };
        looks.push(Look { color, mark, dash, is_hollow: name.ends_with(PRINTED) });
    }
    looks
}

/// The height of a legend that has three names per line.
fn legend_height(points: &[Point]) -> u32 {
    (series(points).len().div_ceil(3) as i32 * LEGEND_LINE + 12) as u32
}

fn draw_panel(area: &Area<'_>, panel: &Panel, points: &[Point], legend: i32) -> anyhow::Result<()> {
    let (plot, names) = area.split_vertically(PANEL_HEIGHT as i32);
    debug_assert!(legend >= 0);
    write(&plot, &panel.title, (16, 16), 15.0, HPos::Left)?;
    let below = plot.margin(28, 4, 8, 36);
    if points.is_empty() {
        return write(&plot, "not measured", (WIDTH as i32 / 2, 180), 14.0, HPos::Center);
    }
    match panel.shape {
        Shape::Bars => draw_bars(&below, panel, points)?,
        Shape::Lines => draw_lines(&below, panel, points)?,
        Shape::LogLines => draw_log_lines(&below, panel, points)?,
    }
    let shown = series(points);
    for (index, (name, look)) in shown.iter().zip(looks(&shown)).enumerate() {
        let (column, line) = ((index % 3) as i32, (index / 3) as i32);
        let at = (64 + column * 270, 8 + line * LEGEND_LINE);
        if panel.shape == Shape::Bars {
            let corners = [(at.0, at.1 - 5), (at.0 + 24, at.1 + 5)];
            names.draw(&Rectangle::new(corners, filling(look)))?;
        } else {
            let ends = [(at.0, at.1), (at.0 + 24, at.1)];
            draw_dashed(&names, &ends, look)?;
            names.draw(&mark(look, (at.0 + 12, at.1)))?;
        }
        write(&names, name, (at.0 + 32, at.1), 13.0, HPos::Left)?;
    }
    Ok(())
}

/// The range of the vertical axis: from zero, or a little below the lowest point, to a little above
/// the highest. A share of a difference is below zero where noise is larger than the difference.
fn heights(points: &[Point]) -> Range<f64> {
    let values = || points.iter().map(|point| point.value);
    let (least, most) = (values().fold(0.0, f64::min), values().fold(0.0, f64::max));
    if least == 0.0 && most == 0.0 {
        return 0.0..1.0;
    }
    let room = (most - least) * 0.12;
    let below = if least < 0.0 { room } else { 0.0 };
    least - below..most + room
}

fn places(points: &[Point]) -> Range<f64> {
    let numbers = points.iter().map(|point| point.place.number);
    let least = numbers.clone().fold(f64::INFINITY, f64::min);
    let most = numbers.fold(f64::NEG_INFINITY, f64::max);
    // A single place gets enough width for the labels.
    let margin = if most > least { (most - least) * 0.03 } else { (least.abs() * 0.5).max(1.0) };
    least - margin..most + margin
}

fn draw_bars(area: &Area<'_>, panel: &Panel, points: &[Point]) -> anyhow::Result<()> {
    let mut labels: Vec<(f64, &str)> = Vec::new();
    for point in points {
        if labels.iter().all(|(number, _)| *number != point.place.number) {
            labels.push((point.place.number, &point.place.label));
        }
    }
    labels.sort_by(|one, other| one.0.total_cmp(&other.0));
    let names = series(points);
    let looks = looks(&names);
    let groups = 0.0..labels.len() as f64;
    let up = heights(points);
    let foot = up.start;
    let mut chart = ChartBuilder::on(area)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(groups, up)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .y_desc(panel.y)
        .y_label_formatter(&|value| number(*value))
        .label_style(("sans-serif", 12).into_font().color(&INK))
        .draw()?;
    let width = 0.84 / names.len() as f64;
    let mut written: Vec<(i32, i32, i32)> = Vec::new();
    for point in points {
        let is_it = |(number, _): &(f64, &str)| *number == point.place.number;
        let group = labels.iter().position(is_it).unwrap_or(0) as f64;
        let index = names.iter().position(|name| *name == point.series).unwrap_or(0);
        let left = group + 0.08 + index as f64 * width;
        let corners = [(left, 0.0), (left + width * 0.9, point.value)];
        chart.draw_series([Rectangle::new(corners, filling(looks[index]))])?;
        let top = chart.backend_coord(&(left + width * 0.45, point.value.max(0.0)));
        let own = area.get_base_pixel();
        let text = number(point.value);
        let (x, half) = (top.0 - own.0, text.len() as i32 * DIGIT_WIDTH / 2);
        let mut y = top.1 - own.1 - 7;
        // A number wider than its bar moves above the number of an equally high neighbour.
        let covers = |y: i32, other: &(i32, i32, i32)| {
            (x - other.0).abs() < half + other.2 && (y - other.1).abs() < DIGIT_HEIGHT
        };
        while written.iter().any(|other| covers(y, other)) {
            y -= 1;
        }
        written.push((x, y, half));
        write(area, &text, (x, y), 10.0, HPos::Center)?;
    }
    for (index, (_, label)) in labels.iter().enumerate() {
        let foot = chart.backend_coord(&(index as f64 + 0.5, foot));
        let own = area.get_base_pixel();
        write(area, label, (foot.0 - own.0, foot.1 - own.1 + 12), 12.0, HPos::Center)?;
    }
    let (width, height) = area.dim_in_pixel();
    write(area, panel.x, (width as i32 / 2 + 32, height as i32 - 8), 12.0, HPos::Center)
}

fn draw_lines(area: &Area<'_>, panel: &Panel, points: &[Point]) -> anyhow::Result<()> {
    draw_chart(area, panel, points, places(points), heights(points))
}

fn draw_log_lines(area: &Area<'_>, panel: &Panel, points: &[Point]) -> anyhow::Result<()> {
    let positive: Vec<Point> = points
        .iter()
        .filter(|point| point.value > 0.0 && point.place.number > 0.0)
        .cloned()
        .collect();
    let least = positive.iter().map(|point| point.value).fold(f64::INFINITY, f64::min);
    let last = positive.iter().map(|point| point.place.number).fold(0.0, f64::max);
    let first = positive.iter().map(|point| point.place.number).fold(f64::INFINITY, f64::min);
    let across = with_tens(first * 0.9..last * 1.08).log_scale();
    let up = with_tens(least * 0.7..heights(&positive).end * 1.3).log_scale();
    draw_chart(area, panel, &positive, across, up)
}

/// Widens the range of a logarithmic axis so that it includes at least two powers of ten, because
/// only those are labelled.
fn with_tens(range: Range<f64>) -> Range<f64> {
    let (first, last) = (range.start.log10(), range.end.log10());
    if last.floor() - first.ceil() >= 1.0 {
        return range;
    }
    10f64.powf(first.floor())..10f64.powf(last.ceil())
}

fn draw_chart<X, Y>(
    area: &Area<'_>,
    panel: &Panel,
    points: &[Point],
    across: X,
    up: Y,
) -> anyhow::Result<()>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d(across, up)?;
    let is_whole = |point: &Point| point.place.number.fract() == 0.0;
    let are_whole = points.iter().all(is_whole);
    let label = |value: &f64| {
        // Counts have no labels between whole numbers.
        if are_whole && value.fract().abs() > 1e-9 { String::new() } else { number(*value) }
    };
    // With more labels, the library draws lines between powers of ten, and each power twice.
    let most_labels = if panel.shape == Shape::LogLines { 8 } else { 11 };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(most_labels)
        .y_labels(most_labels)
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .x_desc(panel.x)
        .y_desc(panel.y)
        .x_label_formatter(&label)
        .y_label_formatter(&|value| number(*value))
        .label_style(("sans-serif", 12).into_font().color(&INK))
        .draw()?;
    let own = area.get_base_pixel();
    let names = series(points);
    for (name, look) in names.iter().zip(looks(&names)) {
        let mut line: Vec<&Point> = points.iter().filter(|point| point.series == *name).collect();
        line.sort_by(|one, other| one.place.number.total_cmp(&other.place.number));
        let at: Vec<(i32, i32)> = line
            .iter()
            .map(|point| chart.backend_coord(&(point.place.number, point.value)))
            .map(|(x, y)| (x - own.0, y - own.1))
            .collect();
        draw_dashed(area, &at, look)?;
        // Marks on many points would hide the line.
        let step = at.len().div_ceil(24).max(1);
        for at in at.iter().step_by(step) {
            area.draw(&mark(look, *at))?;
        }
    }
    Ok(())
}

/// The style of a series' bars.
fn filling(look: Look) -> ShapeStyle {
    if look.is_hollow { look.color.stroke_width(2) } else { look.color.filled() }
}

/// Draws a line with the dashes of its series.
fn draw_dashed(area: &Area<'_>, line: &[(i32, i32)], look: Look) -> anyhow::Result<()> {
    let style = look.color.stroke_width(2);
    match look.dash {
        0 => area.draw(&PathElement::new(line, style))?,
        kind => {
            let dash = [8, 4, 2][kind - 1];
            area.draw(&DashedPathElement::new(line.iter().copied(), dash, 4, style))?;
        }
    }
    Ok(())
}

/// The mark of a series.
fn mark<'a>(look: Look, at: (i32, i32)) -> DynElement<'static, SVGBackend<'a>, (i32, i32)> {
    match look.mark {
        0 => Circle::new(at, 4, look.color.filled()).into_dyn(),
        1 => TriangleMarker::new(at, 5, look.color.filled()).into_dyn(),
        2 => Rectangle::new([(at.0 - 4, at.1 - 4), (at.0 + 4, at.1 + 4)], look.color.filled())
            .into_dyn(),
        _ => Cross::new(at, 4, look.color.stroke_width(2)).into_dyn(),
    }
}

/// A number for people, with three significant digits at most.
pub fn number(value: f64) -> String {
    let size = value.abs();
    let text = match size {
        _ if size < 5e-5 => return "0".to_owned(),
        _ if size >= 1e6 => {
            let text = format!("{value:.2e}");
            let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
            let digits = digits.trim_end_matches('0').trim_end_matches('.');
            return format!("{digits}e{power}");
        }
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn write(area: &Area<'_>, text: &str, at: (i32, i32), size: f64, side: HPos) -> anyhow::Result<()> {
    let style = ("sans-serif", size).into_font().color(&INK).pos(Pos::new(side, VPos::Center));
    Ok(area.draw_text(text, &style, at)?)
}

#[cfg(test)]
mod tests {
    use super::super::point::AxisPosition;
    use super::*;

    #[test]
    fn every_shape_is_drawn_with_all_its_names() {
        let points: Vec<Point> = ["mercury", "memc3", "a fifth <thing>"]
            .iter()
            .flat_map(|name| {
                (1..4).map(|x| Point::new(*name, AxisPosition::number(f64::from(x)), 7.5))
            })
            .collect();
        for shape in [Shape::Bars, Shape::Lines, Shape::LogLines] {
            let panel = Panel { y: "M/s", x: "threads", shape, ..Panel::default() };
            let text = draw(&[(&panel, &points), (&panel, &[])]).unwrap();
            assert!(text.contains("prefers-color-scheme") && text.contains("not measured"));
            assert!(text.contains("a fifth &lt;thing&gt;"), "{text}");
            assert_eq!(series(&points).len(), 3);
        }
    }

    #[test]
    fn no_two_series_of_a_panel_look_alike() {
        let panels: [&[&str]; 5] = [
            &["hotring-r-1", "hotring-r-2", "hotring-r", "hotring-r-10", "hotring-r-50"],
            &["1 slot", "2 slots", "4 slots", "8 slots", "16 slots"],
            &["Cassandra, printed", "DXRAM, printed", "amalgam", "cassandra"],
            &["memc3", "memc3, printed"],
            &[
                "mercury",
                "global-lock",
                "mercury, predicted",
                "mercury, at least",
                "mercury, at most",
                "global-lock, predicted",
                "global-lock, at least",
                "global-lock, at most",
            ],
        ];
        for names in panels {
            let looks = looks(names);
            for (index, look) in looks.iter().enumerate() {
                assert!(!looks[..index].contains(look), "{}: {looks:?}", names[index]);
            }
        }
        let of_r = looks(panels[0]);
        let colors: Vec<_> = of_r.iter().map(|look| look.color).collect();
        assert!((1..5).all(|index| !colors[..index].contains(&colors[index])), "{colors:?}");
        let of_model = looks(panels[4]);
        let line = |look: &Look| (look.mark, look.dash);
        let lines: Vec<_> = of_model.iter().map(line).collect();
        assert!((1..8).all(|index| !lines[..index].contains(&lines[index])), "{lines:?}");
    }

    #[test]
    fn what_is_below_zero_has_room() {
        let heights = |values: &[f64]| {
            let point = |value: &f64| Point::new("mercury", AxisPosition::number(1.0), *value);
            heights(&values.iter().map(point).collect::<Vec<_>>())
        };
        assert_eq!(heights(&[50.0, 100.0]), 0.0..112.0);
        assert_eq!(heights(&[-50.0, 50.0]), -62.0..62.0);
        assert_eq!(heights(&[-50.0]), -56.0..6.0);
        assert_eq!(heights(&[0.0]), 0.0..1.0);
    }

    #[test]
    fn one_place_alone_has_room() {
        let points = [Point::new("memc3", AxisPosition::number(64.0), 1.0)];
        assert_eq!(places(&points), 32.0..96.0);
        let points = [0.0, 100.0].map(|x| Point::new("memc3", AxisPosition::number(x), 1.0));
        assert_eq!(places(&points), -3.0..103.0);
    }

    #[test]
    fn a_logarithmic_axis_has_two_powers_of_ten() {
        assert_eq!(with_tens(5.0..5000.0), 5.0..5000.0);
        for range in [200.0..900.0, 0.5..7.0, 9.0..11.0, 90.0..900.0] {
            let wide = with_tens(range.clone());
            assert!(wide.start <= range.start && wide.end >= range.end);
            let is_in = |ten: &f64| *ten >= wide.start * 0.999 && *ten <= wide.end * 1.001;
            assert!((-3..9).map(|power| 10f64.powi(power)).filter(is_in).count() >= 2, "{wide:?}");
        }
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1234.5, "1234"),
            (12.34, "12.3"),
            (2.5, "2.5"),
            (0.012, "0.012"),
            (1e6, "1e6"),
            (1_234_567.0, "1.23e6"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
