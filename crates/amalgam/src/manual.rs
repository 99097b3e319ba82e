//! Shell completions and manual pages, made from the command line's own definition.

use std::io::Write;

use amalgam_bench::Usage;
use amalgam_index::ENGINES;
use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;

/// Prints a completion script.
///
/// # Errors
///
/// If it cannot be written.
pub fn completions(command: Command, shell: Shell) -> Result<()> {
    let script = script(command, shell)?;
    Ok(std::io::stdout().write_all(script.as_bytes())?)
}

fn script(command: Command, shell: Shell) -> Result<String> {
    let mut command = with_values(command);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "amalgam", &mut script);
    let script = String::from_utf8(script).context("a script that is no text")?;
    Ok(if shell == Shell::Bash { with_hosts(&script, &command) } else { script })
}

/// Lists the values of options whose values are checked later, with errors that say more.
fn with_values(command: Command) -> Command {
    let of_arg = |arg: Arg| {
        let name = arg.get_value_names().and_then(|names| names.first());
        let values = match name.map(|name| name.as_str()) {
            Some("ENGINE" | "ENGINES") => ENGINES.iter().map(|engine| engine.name).collect(),
            Some("PROTOCOL") if arg.get_possible_values().is_empty() => {
                vec!["ascii", "auto", "binary"]
            }
            _ => return arg,
        };
        // What stands for a missing value is not among the values.
        arg.default_missing_values([""; 0]).value_parser(PossibleValuesParser::new(values))
    };
    command.mut_args(of_arg).mut_subcommands(with_values)
}

/// Completes hosts and users in a script for bash, for which clap's generator offers files.
fn with_hosts(script: &str, command: &Command) -> String {
    const FILES: &str = "$(compgen -f \"${cur}\")";
    const WORDS: &str = "$(compgen -W \"${opts}\" -- \"${cur}\")";
    let mut hinted = Vec::new();
    collect_hints(command, "amalgam", &mut hinted);
    let mut text = String::with_capacity(script.len());
    let (mut of_command, mut of_option) = ("", None);
    for line in script.lines() {
        let label = line.trim().strip_suffix(')').unwrap_or_default();
        if label.starts_with("amalgam") {
            (of_command, of_option) = (label, None);
        } else if label.starts_with('-') {
            of_option = find_hint(&hinted, of_command, label);
        }
        let kind = |hint| if hint == ValueHint::Username { "user" } else { "hostname" };
        let line = match (of_option, find_hint(&hinted, of_command, "")) {
            (Some(hint), _) if line.contains(FILES) => {
                line.replace(FILES, &format!("$(compgen -A {} -- \"${{cur}}\")", kind(hint)))
            }
            (_, Some(hint)) if line.contains(WORDS) => line.replace(
                WORDS,
                &format!("$(compgen -W \"${{opts}}\" -A {} -- \"${{cur}}\")", kind(hint)),
            ),
            _ => line.to_owned(),
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// An argument whose values are hosts or users: the label of its command in the script, its own
/// label (an option with its dashes; empty for a positional argument), and what its values are.
type Hinted = (String, String, ValueHint);

fn find_hint(hinted: &[Hinted], command: &str, label: &str) -> Option<ValueHint> {
    let found = hinted.iter().find(|(of, own, _)| of == command && own == label);
    found.map(|(_, _, hint)| *hint)
}

fn collect_hints(command: &Command, label: &str, hinted: &mut Vec<Hinted>) {
    let is_hinted =
        |arg: &&Arg| matches!(arg.get_value_hint(), ValueHint::Hostname | ValueHint::Username);
    for arg in command.get_arguments().filter(is_hinted) {
        let short = arg.get_short().map(|short| format!("-{short}"));
        let long = arg.get_long().map(|long| format!("--{long}"));
        let positional = arg.is_positional().then(String::new);
        let labels = [short, long, positional].into_iter().flatten();
        hinted.extend(labels.map(|own| (label.to_owned(), own, arg.get_value_hint())));
    }
    for below in command.get_subcommands() {
        // As clap's generator writes paths.
        let label = format!("{label}__subcmd__{}", below.get_name().replace('-', "__"));
        collect_hints(below, &label, hinted);
    }
}

/// Prints the manual page of the program, or of one of its commands.
///
/// # Errors
///
/// If there is no such command or the page cannot be written.
pub fn page(mut command: Command, name: Option<&str>) -> Result<()> {
    command.build();
    if let Some(name) = name {
        let found = command.find_subcommand(name).cloned();
        command = found.with_context(|| format!("there is no command '{name}'")).usage()?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(std::io::stdout().write_all(&page)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        crate::command(crate::help::EXIT_CODES)
    }

    /// The lines that complete the values of an option of a command, in a script for bash.
    fn values_of(script: &str, command: &str, option: &str) -> String {
        let (_, behind) = script
            .split_once(&format!("        {command})\n            opts="))
            .unwrap_or_else(|| panic!("{command} in {script}"));
        let (_, behind) = behind
            .split_once(&format!("                {option})\n"))
            .unwrap_or_else(|| panic!("{command} has no {option}"));
        let (values, _) = behind.split_once(";;").expect("an end");
        values.to_owned()
    }

    #[test]
    fn shells_complete_engines_files_hosts_and_users() {
        let script = script(command(), Shell::Bash).expect("a script");
        for (command, option, expected) in [
            ("serve", "--engine", "compgen -W \"mercury memc3 hotring-r hotring-s pipeline\""),
            ("serve", "--config", "compgen -f"),
            ("serve", "-l", "compgen -A hostname"),
            ("serve", "--user", "compgen -A user"),
            ("serve", "-B", "compgen -W \"ascii auto binary\""),
            ("serve", "--log-level", "compgen -W \"error warn info debug\""),
            ("serve", "--threads", "compopt -o nospace"),
            ("advise", "--engine", "compgen -W \"mercury"),
            ("advise", "--server", "compgen -A hostname"),
            ("bench__subcmd__server", "--target", "compgen -A hostname"),
            ("cluster__subcmd__node", "--backup-dir", "compopt -o plusdirs"),
            ("cluster__subcmd__status", "--node", "compgen -A hostname"),
            ("cluster__subcmd__status", "--color", "compgen -W \"auto always never\""),
            ("load", "--from", "compgen -A hostname"),
            ("load", "--keys", "compgen -f"),
        ] {
            let command = format!("amalgam__subcmd__{command}");
            let values = values_of(&script, &command, option);
            assert!(values.contains(expected), "{command} {option}: {values}");
        }
        let (_, top) = script.split_once("amalgam__subcmd__top)\n            opts=").expect("top");
        let (top, _) = top.split_once("esac").expect("its end");
        assert!(top.contains("-W \"${opts}\" -A hostname"), "{top}");
        for shell in [Shell::Zsh, Shell::Fish] {
            let script = super::script(command(), shell).expect("a script");
            assert!(script.contains("hotring-r"), "{shell}");
        }
    }
}
