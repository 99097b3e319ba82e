//! `amalgam top`: the live page in a terminal.
//!
//! Invariants of this module:
//! 1. Text from the server cannot control the terminal: it is sanitized before it is shown.
//! 2. The terminal is restored to its former state, also after a panic or an error.

mod draw;
mod text;

use std::io::{IsTerminal, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use amalgam_bench::Usage;
use anyhow::{Context, Result, ensure};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::style::force_color_output;
use serde_json::Value;

use crate::color::{Color, Palette};
use draw::Screen;

/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest answer that is read, in bytes.
const ANSWER_BYTES: u64 = 4 << 20;

/// Arguments of `amalgam top`.
#[derive(clap::Args)]
pub struct Top {
    /// The server's admin address, which its option --admin opens
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:9150")]
    address: String,
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=60))]
    every: u64,
    /// Print the status once and exit, as is done when the output is not a terminal
    #[arg(long)]
    once: bool,
    /// Print the status once, as the JSON of /api/status
    #[arg(long, conflicts_with = "once")]
    json: bool,
    /// When to colour the output: auto is on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    color: Color,
}

/// Shows the status of a server until the user quits.
///
/// # Errors
///
/// If the server does not answer the first request; later failures are shown on the screen.
pub fn run(top: &Top) -> Result<()> {
    let found = amalgam_bench::resolve(&top.address);
    let mut found = found.with_context(|| top.address.clone()).usage()?;
    let address = found.next().with_context(|| format!("{}: no such address", top.address))?;
    let status = fetch(address).with_context(|| {
        format!("no answer from {address}: is the server running with --admin {address}?")
    })?;
    let mut output = std::io::stdout();
    if top.json {
        return Ok(writeln!(output, "{status}")?);
    }
    let palette = Palette { is_on: top.color.colors(&output) };
    if top.once || !output.is_terminal() {
        return Ok(output.write_all(text::screen(&status, palette).as_bytes())?);
    }
    force_color_output(palette.is_on);
    let screen = Screen { status, problem: None, is_paused: false };
    ratatui::run(|terminal| show(terminal, screen, address, Duration::from_secs(top.every)))
}

/// Draws the screen and updates it until the user quits.
fn show(
    terminal: &mut DefaultTerminal,
    mut screen: Screen,
    address: SocketAddr,
    every: Duration,
) -> Result<()> {
    let mut next_look = Instant::now() + every;
    loop {
        terminal.draw(|frame| draw::draw(frame, &screen))?;
        if event::poll(next_look.saturating_duration_since(Instant::now()))? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers == KeyModifiers::CONTROL => return Ok(()),
                    KeyCode::Char(' ' | 'p') => screen.is_paused = !screen.is_paused,
                    _ => {}
                },
                _ => {}
            }
        }
        if Instant::now() < next_look {
            continue;
        }
        next_look = Instant::now() + every;
        if !screen.is_paused {
            match fetch(address) {
                Ok(status) => screen = Screen { status, problem: None, ..screen },
                Err(error) => screen.problem = Some(format!("no answer from {address}: {error:#}")),
            }
        }
    }
}

/// Fetches the status of the server.
fn fetch(address: SocketAddr) -> Result<Value> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!("GET /api/status HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.context("the answer is not HTTP")? + 4);
    ensure!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(body).trim());
    serde_json::from_slice(body).context("the answer is not that of an Amalgam server")
}
