//! `amalgam top`: the live page in a terminal.
//!
//! Invariants of this module:
//! 1. Text from the server cannot control the terminal: it is sanitized before it is shown.
//! 2. The terminal is restored to its former state, also after a panic or an error.

mod draw;
mod hosts;
mod nodes;
mod text;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use amalgam_tls::ClientTls;
use anyhow::{Error, Result, ensure};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::style::force_color_output;

use crate::color::{Color, Palette};
use draw::Screen;
use hosts::{Credentials, Host};

/// Arguments of `amalgam top`.
#[derive(clap::Args)]
pub struct Top {
    /// The admin addresses of one or more servers, which their option --admin opens; https:// in
    /// front of those with --admin-tls
    #[arg(value_name = "HOST:PORT", default_value = "127.0.0.1:9150")]
    addresses: Vec<String>,
    /// A file whose first line is the user:password that the servers ask for
    #[arg(long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// For addresses with https://: the CA certificates that signed the servers' certificates, or
    /// these certificates themselves (PEM)
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=60))]
    every: u64,
    /// Print the status once and exit, as is done when the output is not a terminal
    #[arg(long)]
    once: bool,
    /// Print the status once, as the JSON of /api/status: an object for each server that answers;
    /// at a node of a cluster with that of /api/cluster as its member `cluster`
    #[arg(long, conflicts_with = "once")]
    json: bool,
    /// When to colour the output: auto is on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    color: Color,
}

/// Shows the status of servers until the user quits.
///
/// # Errors
///
/// If an address or a file is wrong, or a server does not answer the first request. When the screen
/// is updated, and for the others of several servers, failures are shown next to the server.
pub fn run(top: &Top) -> Result<()> {
    let authorization = top.auth_file.as_deref().map(hosts::authorization).transpose()?;
    let tls = top.tls_ca.as_deref().map(ClientTls::open).transpose().map_err(Error::msg)?;
    let credentials = Credentials { authorization, tls };
    let find = |name: &String| Host::find(name, credentials.clone());
    let mut hosts = top.addresses.iter().map(find).collect::<Result<Vec<_>>>()?;
    hosts::fetch_all(&mut hosts);
    let mut output = std::io::stdout();
    let palette = Palette { is_on: top.color.colors(&output) };
    let is_screen = !top.json && !top.once && output.is_terminal();
    if !is_screen || hosts.iter().all(|host| host.problem.is_some()) {
        if top.json {
            for host in hosts.iter_mut().filter(|host| host.problem.is_none()) {
                host.await_cluster();
                if !host.cluster.is_null() {
                    host.status["cluster"] = host.cluster.take();
                }
                writeln!(output, "{}", host.status)?;
            }
        } else if let [host] = &mut hosts[..] {
            if host.problem.is_none() {
                output.write_all(text::screen(&host.status, palette).as_bytes())?;
                if host.await_cluster() {
                    let table = nodes::table(&host.cluster, host.cluster_age(), palette);
                    output.write_all(table.as_bytes())?;
                } else {
                    writeln!(output, "\nThe other nodes' answers are not here yet; ask again.")?;
                }
            }
        } else {
            output.write_all(text::table(&hosts, palette).as_bytes())?;
        }
        let problems: Vec<_> = hosts.iter().filter_map(|host| host.problem.clone()).collect();
        ensure!(problems.is_empty(), "{}", problems.join("\n"));
        return Ok(());
    }
    force_color_output(palette.is_on);
    hosts[0].fetch_cluster();
    let screen = Screen { hosts, selected: 0, is_paused: false };
    ratatui::run(|terminal| show(terminal, screen, Duration::from_secs(top.every)))
}

/// Draws the screen and updates it until the user quits.
fn show(terminal: &mut DefaultTerminal, mut screen: Screen, every: Duration) -> Result<()> {
    let mut next_look = Instant::now() + every;
    loop {
        terminal.draw(|frame| draw::draw(frame, &screen))?;
        if event::poll(next_look.saturating_duration_since(Instant::now()))? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers == KeyModifiers::CONTROL => return Ok(()),
                    KeyCode::Char(' ' | 'p') => screen.is_paused = !screen.is_paused,
                    KeyCode::Up | KeyCode::Char('k') => screen.select(-1),
                    KeyCode::Down | KeyCode::Char('j') => screen.select(1),
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
            hosts::fetch_all(&mut screen.hosts);
            screen.hosts[screen.selected].fetch_cluster();
        }
    }
}
