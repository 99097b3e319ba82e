//! Shell completions and manual pages, made from the command line's own definition.

use std::io::{ErrorKind, Write};
use std::path::Path;

use amalgam_bench::Usage;
use amalgam_index::ENGINES;
use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// The section of manual pages: commands of users.
const SECTION: &str = "1";

/// How the paragraph about exit codes begins, in the notes below each help.
const EXIT_CODES: &str = "Exit codes: ";

/// Prints a completion script.
///
/// # Errors
///
/// If it cannot be written.
pub fn completions(command: Command, shell: Shell) -> Result<()> {
    print(script(command, shell)?.as_bytes())
}

/// Prints what a reader may have had enough of before it ends.
fn print(text: &[u8]) -> Result<()> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text).and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => Ok(printed?),
    }
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

/// Prints the manual page of the program, or of the command whose path is `names`.
///
/// # Errors
///
/// If there is no such command or the page cannot be written.
pub fn page(command: Command, names: &[String]) -> Result<()> {
    let mut command = built(command);
    for name in names {
        let found = command.find_subcommand(name).cloned();
        command =
            found.with_context(|| format!("there is no command '{}'", names.join(" "))).usage()?;
    }
    print(&render(&command)?)
}

/// Writes the pages of the program and of all its commands into `folder`, one file each, such as
/// `amalgam-cluster-node.1`. Makes the folder if there is none.
///
/// # Errors
///
/// If a page cannot be written.
pub fn pages(command: Command, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    write_pages(&built(command), folder)
}

/// The definition with all that clap adds, apart from the command `help`, which has no page.
fn built(command: Command) -> Command {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    command
}

fn write_pages(command: &Command, folder: &Path) -> Result<()> {
    let path = folder.join(Man::new(command.clone()).get_filename());
    std::fs::write(&path, render(command)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    command.get_subcommands().try_for_each(|below| write_pages(below, folder))
}

/// The page of a command.
fn render(command: &Command) -> Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let version = env!("CARGO_PKG_VERSION");
    // Without a date. Clap's generator leaves an empty field out, so that the next one moves up.
    let mut page = format!(".TH \"{name}\" \"{SECTION}\" \"\" \"amalgam {version}\" \"Amalgam\"\n")
        .into_bytes();
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    notes(command).to_writer(&mut page)?;
    // The generator surrounds an empty line by breaks, of which formatters complain.
    Ok(String::from_utf8(page)?.replace("\n.br\n\n.br\n", "\n.sp\n").into_bytes())
}

/// The sections that are made of the notes below the help: their paragraphs, with the lines as they
/// are, and the exit codes.
fn notes(command: &Command) -> Roff {
    let mut roff = Roff::default();
    let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut separator = ("SH", Some("NOTES"));
    for paragraph in notes.split("\n\n") {
        if let Some(codes) = paragraph.strip_prefix(EXIT_CODES) {
            roff.control("SH", ["EXIT STATUS"]);
            roff.text([roman(codes)]);
        } else {
            roff.control(separator.0, separator.1);
            roff.control("nf", []);
            paragraph.lines().for_each(|line| {
                roff.text([roman(line)]);
            });
            roff.control("fi", []);
            separator = ("PP", None);
        }
    }
    if command.get_name() != "amalgam" {
        roff.control("SH", ["SEE ALSO"]);
        roff.text([roman(format!("amalgam({SECTION})"))]);
    }
    roff
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

    #[test]
    fn each_command_has_a_page_with_its_exit_status() {
        let folder = std::env::temp_dir().join(format!("amalgam-pages-{}", std::process::id()));
        pages(command(), &folder).expect("pages");
        let mut names = Vec::new();
        for file in std::fs::read_dir(&folder).expect("a folder") {
            let file = file.expect("a file");
            let text = std::fs::read_to_string(file.path()).expect("text");
            let head = format!(" \"1\" \"\" \"amalgam {}\" ", env!("CARGO_PKG_VERSION"));
            for part in [&head, ".SH NAME\n", ".SH SYNOPSIS\n", ".SH \"EXIT STATUS\"\n"] {
                assert!(text.contains(part), "{file:?} has no {part}: {text}");
            }
            assert!(!text.contains("amalgam\\-help"), "{text}");
            names.push(file.file_name().into_string().expect("text"));
        }
        std::fs::remove_dir_all(&folder).expect("it is ours");
        names.sort();
        let expected = [
            "amalgam-advise.1",
            "amalgam-bench-server.1",
            "amalgam-bench.1",
            "amalgam-cluster-check.1",
            "amalgam-cluster-dev.1",
            "amalgam-cluster-drain.1",
            "amalgam-cluster-node.1",
            "amalgam-cluster-restore.1",
            "amalgam-cluster-status.1",
            "amalgam-cluster-token.1",
            "amalgam-cluster.1",
            "amalgam-completions.1",
            "amalgam-load.1",
            "amalgam-man.1",
            "amalgam-serve.1",
            "amalgam-top.1",
            "amalgam.1",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn lines_of_notes_stay_lines() {
        let command = built(command());
        let serve = command.find_subcommand("serve").expect("a command");
        let page = String::from_utf8(render(serve).expect("a page")).expect("text");
        for part in ["\n.nf\n", "  hashpower=NUM ", "  memc3 "] {
            assert!(page.contains(part), "{part} is not in {page}");
        }
        assert_eq!(page.matches(".SH NOTES").count(), 1, "{page}");
    }
}
