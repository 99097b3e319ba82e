//! The live page, drawn as widgets.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Gauge, Paragraph, Row, Sparkline, Table};
use serde_json::Value;

use super::text::{
    bytes, column, duration, engine_facts, latest, number, percent, shares, short, tame,
};

/// The contents of the screen.
pub struct Screen {
    /// The last status that the server sent.
    pub status: Value,
    /// Why the last update failed; `None` if it succeeded.
    pub problem: Option<String>,
    /// Whether the user has paused updates.
    pub is_paused: bool,
}

/// A chart with the latest value and the history of a number.
struct Chart {
    name: &'static str,
    title: &'static str,
    tell: fn(Option<f64>) -> String,
    color: Color,
}

const CHARTS: [Chart; 4] = [
    Chart {
        name: "commands_per_second",
        title: "requests/s",
        tell: |value| value.map_or_else(|| "–".into(), short),
        color: Color::Cyan,
    },
    Chart { name: "hit_ratio", title: "hit ratio", tell: percent, color: Color::Green },
    Chart { name: "p50_us", title: "median", tell: duration, color: Color::Blue },
    Chart { name: "p99_us", title: "99 %", tell: duration, color: Color::Magenta },
];

/// The factor by which values are scaled, because sparklines take whole numbers only.
const SCALE: f64 = 10_000.0;

/// The number of rows of a chart, and of the engine's facts including their frame.
const CHART_ROWS: u16 = 5;
const FACT_ROWS: u16 = 6;

/// Below this width, groups are drawn below each other.
const WIDE_COLUMNS: u16 = 90;

/// Draws the whole screen into a frame of any size.
pub fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let status = &screen.status;
    let charts = 2 * CHART_ROWS;
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(charts),
        Constraint::Fill(1),
        Constraint::Length(1),
    ]);
    let [head, memory, charts, below, foot] = areas.areas(frame.area());
    draw_head(frame, head, status);
    draw_memory(frame, memory, status);
    for (row, pair) in Layout::vertical([Constraint::Fill(1); 2])
        .areas::<2>(charts)
        .into_iter()
        .zip(CHARTS.chunks(2))
    {
        let halves = Layout::horizontal([Constraint::Fill(1); 2]).areas::<2>(row);
        halves
            .into_iter()
            .zip(pair)
            .for_each(|(area, chart)| draw_chart(frame, area, status, chart));
    }
    let [keys, engine] = if below.width >= WIDE_COLUMNS {
        Layout::horizontal([Constraint::Fill(3), Constraint::Fill(2)]).areas(below)
    } else {
        Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).areas(below)
    };
    draw_keys(frame, keys, status);
    draw_engine(frame, engine, status);
    draw_foot(frame, foot, screen);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, status: &Value) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let about = format!(
        "  {}   version {}   up {} s   {} of {} connections   {} threads",
        tame(&status["engine"]),
        tame(&status["version"]),
        number(status, "/uptime_seconds"),
        short(number(status, "/connections/open")),
        short(number(status, "/connections/limit")),
        number(status, "/threads")
    );
    frame.render_widget(Line::from(vec![Span::styled("Amalgam", bold), about.into()]), area);
}

fn draw_memory(frame: &mut Frame<'_>, area: Rect, status: &Value) {
    let (used, limit) = (number(status, "/memory/used"), number(status, "/memory/limit"));
    let items = short(number(status, "/index/items"));
    let label = format!("memory {} of {}, {items} items", bytes(used), bytes(limit));
    let share = if limit > 0.0 { (used / limit).clamp(0.0, 1.0) } else { 0.0 };
    let style = Style::new().fg(Color::Cyan).bg(Color::DarkGray);
    frame.render_widget(Gauge::default().gauge_style(style).label(label).ratio(share), area);
}

fn draw_chart(frame: &mut Frame<'_>, area: Rect, status: &Value, chart: &Chart) {
    let now = (chart.tell)(latest(status, chart.name));
    let block = Block::new().borders(Borders::TOP).title(format!(" {} {now} ", chart.title));
    let room = usize::from(area.width);
    let values = column(status, chart.name);
    let shown: Vec<Option<f64>> =
        values[values.len().saturating_sub(room)..].iter().map(Value::as_f64).collect();
    let most = shown.iter().flatten().copied().fold(0.0, f64::max);
    let bar = |value: &Option<f64>| value.map(|value| (value / most.max(1e-9) * SCALE) as u64);
    // The latest value is at the right end even if the history is short.
    let padding = std::iter::repeat_n(None, room.saturating_sub(shown.len()));
    let bars: Vec<Option<u64>> = padding.chain(shown.iter().map(bar)).collect();
    let line = Sparkline::default().block(block).data(bars).max(SCALE as u64).style(chart.color);
    frame.render_widget(line, area);
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, status: &Value) {
    let block = Block::new().borders(Borders::TOP).title(" hot keys ");
    let Some(keys) = status["hot_keys"].as_array() else {
        frame.render_widget(Paragraph::new("keys are not listed (-X)").block(block), area);
        return;
    };
    let row = |hot: &Value| {
        let (share, error) = (100.0 * number(hot, "/share"), 100.0 * number(hot, "/error"));
        Row::new([tame(&hot["key"]), format!("{share:>6.2} %"), format!("± {error:.2} %")])
    };
    let widths = [Constraint::Fill(1), Constraint::Length(8), Constraint::Length(9)];
    let head = Row::new(["key", "   share", "error"]).style(Style::new().fg(Color::DarkGray));
    let rows = keys.iter().take(usize::from(area.height)).map(row);
    frame.render_widget(Table::new(rows, widths).header(head).block(block), area);
}

fn draw_engine(frame: &mut Frame<'_>, area: Rect, status: &Value) {
    let block = Block::new().borders(Borders::TOP).title(" engine ");
    let [above, below] =
        Layout::vertical([Constraint::Max(FACT_ROWS), Constraint::Fill(1)]).areas(area);
    let lines: Vec<Line<'_>> = engine_facts(status).into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines).block(block), above);
    frame.render_widget(Paragraph::new(bars(status, below.width)), below);
}

/// The distribution of items over buckets, with a bar for each number of items.
fn bars(status: &Value, columns: u16) -> Vec<Line<'static>> {
    const LABEL: u16 = 26;
    let room = f64::from(columns.saturating_sub(LABEL));
    let line = |(length, share): (usize, f64)| {
        let bar = "█".repeat((share * room).round() as usize);
        let label = format!("{length:>3} in a bucket {:>8} ", percent(Some(share)));
        Line::from(vec![label.into(), Span::styled(bar, Color::Cyan)])
    };
    shares(status).map(line).collect()
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let faint = Style::new().fg(Color::DarkGray);
    let line = match &screen.problem {
        Some(problem) => Line::styled(problem.as_str(), Style::new().fg(Color::Red)),
        None if screen.is_paused => Line::styled("paused   space goes on   q ends", faint),
        None => Line::styled("space pauses   q ends", faint),
    };
    frame.render_widget(line, area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn drawn(status: Value, columns: u16, rows: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal");
        let screen = Screen { status, problem: None, is_paused: false };
        terminal.draw(|frame| draw(frame, &screen)).expect("draws");
        let buffer = terminal.backend().buffer();
        let rows = buffer.content.chunks(usize::from(columns.max(1)));
        rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>() + "\n").collect()
    }

    #[test]
    fn the_terminal_shows_what_the_server_said() {
        let status = json!({
            "engine": "mer\u{1b}[2Jcury",
            "history": { "commands_per_second": [5.0, 250_000.0], "hit_ratio": [null, 0.875] },
            "hot_keys": [{ "key": "k".repeat(300), "share": 0.25, "error": 0.01 }],
            "index": { "items": 42, "lengths": [3, 1, 0] },
            "memory": { "used": 3072, "limit": 4096 },
        });
        for columns in [80, 120] {
            let text = drawn(status.clone(), columns, 40);
            for words in
                ["mer?[2Jcury", "250.0 k", "87.5 %", "25.00 %", "± 1.00", "75.0 %", "3.0 KiB", "█"]
            {
                assert!(text.contains(words), "no {words} in\n{text}");
            }
        }
    }

    #[test]
    fn no_room_and_nonsense_are_survived() {
        for (columns, rows) in [(0, 0), (1, 1), (7, 3), (200, 4), (20, 100)] {
            for status in [json!(null), json!({ "history": 3, "index": { "lengths": [1e300] } })] {
                drawn(status, columns, rows);
            }
        }
    }
}
