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
    SUMMARY_COLUMNS, SUMMARY_HEAD, bytes, column, duration, engine_facts, hot_key, latest,
    long_duration, number, percent, shares, short, summary, sums, tame, value_size,
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

/// The width of a column of the tables of servers and nodes, apart from that of their names, and
/// with the gap in front of it.
const CELL_WIDTH: u16 = 10;
const CELL_STEP: u16 = CELL_WIDTH + 1;

/// The columns of [`summary`] and of [`nodes::Row::cells`], the most important ones first: the last
/// ones are left out where the screen is narrow.
const SUMMARY_IMPORTANCE: [usize; SUMMARY_COLUMNS] = [1, 2, 6, 3, 4, 7, 8, 5, 0];
const NODE_IMPORTANCE: [usize; nodes::COLUMNS] = [0, 1, 4, 5, 6, 7, 2, 3];

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
    draw_nodes(frame, cluster, nodes, &nodes::age(screen.hosts[screen.selected].cluster_age()));
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

/// The columns of a table that fit into `width`, in the table's order. `importance` lists all of
/// them, the most important ones first.
fn fitting(width: u16, importance: &[usize]) -> Vec<usize> {
    let count = usize::from(width / CELL_STEP).min(importance.len());
    let mut columns = importance[..count].to_vec();
    columns.sort_unstable();
    columns
}

/// The width of a column of names: that of the longest, and at most half of the table.
fn name_width<'n>(names: impl Iterator<Item = &'n str>, head: &'n str, area: Rect) -> u16 {
    let longest = names.chain([head]).map(|name| name.chars().count()).max().unwrap_or(0);
    longest.min(usize::from(area.width / 2)) as u16
}

/// The widths of a table: the name's, which also takes what is left over, and its cells'.
fn widths(name: u16, cells: usize) -> Vec<Constraint> {
    let cells = std::iter::repeat_n(Constraint::Length(CELL_WIDTH), cells);
    std::iter::once(Constraint::Min(name)).chain(cells).collect()
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
    let name = name_width(screen.hosts.iter().map(|host| &host.name[..]), "server", area);
    let columns = fitting(area.width - name, &SUMMARY_IMPORTANCE);
    let row = |host: &Host| {
        let (cells, style) = match &host.problem {
            None => {
                let cells = summary(&host.status);
                (columns.iter().map(|column| cells[*column].clone()).collect(), Style::new())
            }
            Some(_) => (vec!["no answer".to_owned()], Style::new().fg(Color::Red)),
        };
        Row::new(std::iter::once(host.name.clone()).chain(cells)).style(style)
    };
    let head = std::iter::once("server").chain(columns.iter().map(|column| SUMMARY_HEAD[*column]));
    let list = Table::new(screen.hosts.iter().map(row), widths(name, columns.len()))
        .header(Row::new(head).style(faint))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(screen.selected);
    frame.render_stateful_widget(list, table, &mut state);
    let room = usize::from(table.height.saturating_sub(1));
    let more = match screen.hosts.len().saturating_sub(room) {
        0 => String::new(),
        more => format!("and {more} more (↑ ↓)   "),
    };
    frame.render_widget(Line::styled(more + &sums(&screen.hosts), faint), below);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, status: &Value) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let about = format!(
        "  {}   version {}   up {}   {} of {} connections   {} threads",
        tame(&status["engine"]),
        tame(&status["version"]),
        long_duration(number(status, "/uptime_seconds")),
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

/// The nodes of the cluster, one a row, those that need attention first where there is no room for
/// all. `age` says how long ago they answered.
fn draw_nodes(frame: &mut Frame<'_>, area: Rect, mut nodes: Vec<nodes::Row>, age: &str) {
    if area.height < 2 {
        return;
    }
    let faint = Style::new().fg(Color::DarkGray);
    let first = format!("node{age}");
    let name = name_width(nodes.iter().map(|node| &node.name[..]), &first, area);
    // The state is always shown.
    let columns = fitting((area.width - name).saturating_sub(CELL_STEP), &NODE_IMPORTANCE);
    let row = |node: nodes::Row| {
        let color = match node.ink {
            None => Style::new(),
            Some(Ink::Red) => Style::new().fg(Color::Red),
            Some(_) => Style::new().fg(Color::Yellow),
        };
        let mut texts = vec![node.name, node.state.to_owned()];
        if let Some(mut cells) = node.cells {
            texts.extend(columns.iter().map(|column| std::mem::take(&mut cells[*column])));
        }
        Row::new(texts).style(color)
    };
    let room = usize::from(area.height - 1);
    let more = match nodes.len() > room {
        false => None,
        true => {
            nodes.sort_by_key(|node| node.ink.is_none());
            let left_out = nodes.split_off(room - 1);
            Some(Row::new([format!("and {} more", left_out.len())]).style(faint))
        }
    };
    let head = [&first[..], "state"].into_iter();
    let head = head.chain(columns.iter().map(|column| nodes::HEAD[*column]));
    let list = Table::new(nodes.into_iter().map(row).chain(more), widths(name, 1 + columns.len()))
        .header(Row::new(head).style(faint));
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
        let (rate, size) = (format!("{rate:>10}"), format!("{:>9}", value_size(hot)));
        Row::new([hot_key(hot), share, error, rate, size])
    };
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(9),
    ];
    let head = Row::new(["key", "   share", "error", "requests/s", "    value"])
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
    fn a_narrow_screen_leaves_out_columns_and_says_what_rows_it_leaves_out() {
        let mut host = Host::answered("one", json!({ "engine": "cluster" }));
        host.cluster = nodes::tests::cluster();
        let screen = Screen { hosts: vec![host], selected: 0, is_paused: false };
        let text = drawn_screen(&screen, 60, 40);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2], ["node", "state", "keys", "memory", "copies"]);
        assert_eq!(lines[3].join(" "), "0 one?[2J:1 serves 75.0 % 75.0 % whole");
        // Three rows for the head and three nodes: the two that need attention come first.
        let text = drawn_screen(&screen, 60, 9);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert!(lines[3].starts_with("1 two:2") && lines[4] == "and 2 more", "{text}");

        let history = json!({ "commands_per_second": [4321.0], "hit_ratio": [0.5] });
        let name = "a.server.with.a.long.name.example.org:9150";
        let hosts = (0..9).map(|_| Host::answered(name, json!({ "history": history }))).collect();
        let text = drawn_screen(&Screen { hosts, selected: 8, is_paused: false }, 60, 18);
        assert!(text.contains("requests/s hit ratio") && text.contains(" 4321 "), "{text}");
        assert!(text.contains("and 6 more (↑ ↓)   9 of 9 servers"), "{text}");
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
