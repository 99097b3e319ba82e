//! The live page, drawn as widgets.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Gauge, Paragraph, Row, Sparkline, Table, TableState};
use serde_json::Value;

use super::hosts::Host;
use super::nodes;
use super::text::{
    SUMMARY_COLUMNS, SUMMARY_HEAD, bytes, column, duration, engine_facts, latest, number, percent,
    shares, short, summary, sums, tame,
};
use crate::color::Ink;

/// The contents of the screen.
pub struct Screen {
    /// The servers, at least one. If they are several, a table of all stands above the picture of
    /// the selected one.
    pub hosts: Vec<Host>,
    /// The place of the selected server in `hosts`.
    pub selected: usize,
    /// Whether the user has paused updates.
    pub is_paused: bool,
}

impl Screen {
    /// Selects the server that stands `steps` below the selected one.
    pub fn select(&mut self, steps: isize) {
        self.selected = self.selected.saturating_add_signed(steps).min(self.hosts.len() - 1);
    }
}

/// A chart with the latest value and the history of a number.
struct Chart {
    name: &'static str,
    title: &'static str,
    tell: fn(Option<f64>) -> String,
    color: Color,
}

const CHARTS: [Chart; 6] = [
    Chart {
        name: "commands_per_second",
        title: "requests/s",
        tell: |value| value.map_or_else(|| "–".into(), short),
        color: Color::Cyan,
    },
    Chart { name: "hit_ratio", title: "hit ratio", tell: percent, color: Color::Green },
    Chart {
        name: "evictions_per_second",
        title: "evicted/s",
        tell: |value| value.map_or_else(|| "–".into(), short),
        color: Color::Red,
    },
    Chart {
        name: "cpu_cores",
        title: "cores",
        tell: |value| value.map_or_else(|| "–".into(), |cores| format!("{cores:.2}")),
        color: Color::Yellow,
    },
    Chart { name: "p50_us", title: "median", tell: duration, color: Color::Blue },
    Chart { name: "p99_us", title: "99 %", tell: duration, color: Color::Magenta },
];

/// The factor by which values are scaled, because sparklines take whole numbers only.
const SCALE: f64 = 10_000.0;

/// Charts in a row.
const CHARTS_PER_ROW: usize = 2;

/// The largest part of the screen that the table of servers takes.
const TABLE_SHARE: u16 = 3;

/// Columns of the name of a node, and of a number about it.
const NODE_COLUMNS: u16 = 24;
const NODE_NUMBER_COLUMNS: u16 = 10;

/// The number of rows of a chart, and of the engine's facts including their frame.
const CHART_ROWS: u16 = 4;
const FACT_ROWS: u16 = 6;

/// Below this width, groups are drawn below each other.
const WIDE_COLUMNS: u16 = 90;

/// Draws the whole screen into a frame of any size.
pub fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let status = &screen.hosts[screen.selected].status;
    let rows = CHARTS.len().div_ceil(CHARTS_PER_ROW);
    let charts = CHART_ROWS * rows as u16;
    // The head of the table, its sums and a free row.
    let table_rows = match screen.hosts.len() {
        1 => 0,
        hosts => (hosts as u16).saturating_add(3).min(frame.area().height / TABLE_SHARE),
    };
    let nodes = nodes::rows(&screen.hosts[screen.selected].cluster);
    // The head of the table.
    let node_rows = match nodes.len() {
        0 => 0,
        nodes => (nodes as u16).saturating_add(1).min(frame.area().height / TABLE_SHARE),
    };
    let areas = Layout::vertical([
        Constraint::Length(table_rows),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(node_rows),
        Constraint::Length(charts),
        Constraint::Fill(1),
        Constraint::Length(1),
    ]);
    let [table, head, memory, cluster, charts, below, foot] = areas.areas(frame.area());
    draw_table(frame, table, screen);
    draw_head(frame, head, status);
    draw_memory(frame, memory, status);
    draw_nodes(frame, cluster, nodes);
    let chart_rows = Layout::vertical(vec![Constraint::Fill(1); rows]).split(charts);
    for (row, some) in chart_rows.iter().zip(CHARTS.chunks(CHARTS_PER_ROW)) {
        let parts =
            Layout::horizontal([Constraint::Fill(1); CHARTS_PER_ROW]).areas::<CHARTS_PER_ROW>(*row);
        for (area, chart) in parts.into_iter().zip(some) {
            draw_chart(frame, area, status, chart);
        }
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

/// All servers, one a row, and their sums; nothing if there is one server.
fn draw_table(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    if area.height < 2 {
        return;
    }
    let [table, below, _] =
        Layout::vertical([Constraint::Fill(1), Constraint::Length(1), Constraint::Length(1)])
            .areas(area);
    let faint = Style::new().fg(Color::DarkGray);
    let row = |host: &Host| {
        let cells = match &host.problem {
            None => summary(&host.status).to_vec(),
            Some(_) => vec!["no answer".to_owned()],
        };
        let style = match host.problem {
            None => Style::new(),
            Some(_) => Style::new().fg(Color::Red),
        };
        Row::new(std::iter::once(host.name.clone()).chain(cells)).style(style)
    };
    let head = std::iter::once("server").chain(SUMMARY_HEAD);
    let mut widths = vec![Constraint::Fill(1)];
    widths.extend([Constraint::Length(10); SUMMARY_COLUMNS]);
    let rows = screen.hosts.iter().map(row);
    let list = Table::new(rows, widths)
        .header(Row::new(head).style(faint))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(screen.selected);
    frame.render_stateful_widget(list, table, &mut state);
    frame.render_widget(Line::styled(sums(&screen.hosts), faint), below);
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

/// The nodes of the cluster, one a row.
fn draw_nodes(frame: &mut Frame<'_>, area: Rect, nodes: Vec<nodes::Row>) {
    let row = |node: nodes::Row| {
        let color = match node.ink {
            None => Style::new(),
            Some(Ink::Red) => Style::new().fg(Color::Red),
            Some(_) => Style::new().fg(Color::Yellow),
        };
        let texts = [node.name, node.state.to_owned()].into_iter();
        Row::new(texts.chain(node.cells.into_iter().flatten())).style(color)
    };
    let head = ["node", "state"].into_iter().chain(nodes::HEAD);
    let mut widths = vec![Constraint::Min(NODE_COLUMNS)];
    widths.extend([Constraint::Length(NODE_NUMBER_COLUMNS); 1 + nodes::COLUMNS]);
    let list = Table::new(nodes.into_iter().map(row), widths)
        .header(Row::new(head).style(Style::new().fg(Color::DarkGray)));
    frame.render_widget(list, area);
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
        let rate = hot["requests_per_second"].as_f64().map_or_else(|| "–".into(), short);
        let (share, error) = (format!("{share:>6.2} %"), format!("± {error:.2} %"));
        Row::new([tame(&hot["key"]), share, error, format!("{rate:>10}")])
    };
    let widths =
        [Constraint::Fill(1), Constraint::Length(8), Constraint::Length(9), Constraint::Length(10)];
    let head = Row::new(["key", "   share", "error", "requests/s"])
        .style(Style::new().fg(Color::DarkGray));
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
    let select = if screen.hosts.len() > 1 { "↑ ↓ select a server   " } else { "" };
    let line = match &screen.hosts[screen.selected].problem {
        Some(problem) => Line::styled(problem.as_str(), Style::new().fg(Color::Red)),
        None if screen.is_paused => Line::styled("paused   space goes on   q ends", faint),
        None => Line::styled(format!("{select}space pauses   q ends"), faint),
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
        let hosts = vec![Host::answered("one", status)];
        drawn_screen(&Screen { hosts, selected: 0, is_paused: false }, columns, rows)
    }

    fn drawn_screen(screen: &Screen, columns: u16, rows: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal");
        terminal.draw(|frame| draw(frame, screen)).expect("draws");
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
    fn of_several_servers_the_selected_one_is_drawn_below_a_table() {
        let hosts = ["one", "two", "three"].map(|name| {
            let version = format!("version of {name}");
            let history = json!({ "commands_per_second": [4321.0] });
            Host::answered(name, json!({ "version": version, "history": history }))
        });
        let mut screen = Screen { hosts: hosts.into(), selected: 0, is_paused: false };
        screen.hosts[1].problem = Some("no answer from two: refused".into());
        let text = drawn_screen(&screen, 120, 40);
        for words in ["one ", "two ", "three ", "no answer", "2 of 3 servers", "version of one"] {
            assert!(text.contains(words), "no {words} in\n{text}");
        }
        screen.select(-1);
        assert_eq!(screen.selected, 0);
        screen.select(1);
        assert!(drawn_screen(&screen, 120, 40).contains("no answer from two: refused"));
        screen.select(7);
        assert!(drawn_screen(&screen, 120, 40).contains("version of three"));
        for (columns, rows) in [(0, 0), (1, 1), (7, 3), (200, 4), (20, 100)] {
            drawn_screen(&screen, columns, rows);
        }
    }

    #[test]
    fn a_node_of_a_cluster_shows_all_nodes() {
        let mut host = Host::answered("one", json!({ "engine": "cluster" }));
        host.cluster = nodes::tests::cluster();
        let screen = Screen { hosts: vec![host], selected: 0, is_paused: false };
        let text = drawn_screen(&screen, 130, 40);
        for words in ["0 one?[2J:1", "75.0 %", "whole", "2.5 s", "12.3 k", "180 µs", "no answer"] {
            assert!(text.contains(words), "no {words} in\n{text}");
        }
        for (columns, rows) in [(0, 0), (1, 1), (7, 3), (200, 4), (20, 100)] {
            drawn_screen(&screen, columns, rows);
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
