//! The commands that moved from `amalgam` to `amalgam-lab`: each is answered with the command to
//! type instead.

use std::ffi::OsString;
use std::path::Path;

/// The program that the commands moved to.
const LABORATORY: &str = "amalgam-lab";

/// The subcommands of `bench` that moved. The set is closed: commands that the laboratory gains
/// later never were in `amalgam`.
const BENCHES: [&str; 12] = [
    "index",
    "caches",
    "occupancy",
    "null-server",
    "ids",
    "lookup-cache",
    "cluster-requests",
    "migrate",
    "recovery",
    "scale",
    "bg",
    "trace",
];

/// One line that names the command to type instead of one that moved; `None` for other commands.
///
/// The first of `arguments` is the path of this program.
pub fn advice(arguments: &[OsString]) -> Option<String> {
    let words: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    let (program, words) = words.split_first()?;
    let command = match words {
        [first, ..] if first == "reproduce" || first == "rtl" => first.to_string(),
        [first, second, ..] if first == "bench" && BENCHES.contains(&second.as_ref()) => {
            format!("bench {second}")
        }
        _ => return None,
    };
    let beside = Path::new(program.as_ref()).with_file_name(LABORATORY);
    let typed: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    Some(format!(
        "'{command}' is a command of {LABORATORY} now (cargo build --release --bin {LABORATORY}); \
         run: {} {}",
        quoted(&beside.to_string_lossy()),
        typed.join(" ")
    ))
}

/// A word quoted for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "-_=.,:/@%+".contains(sign);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Option<String> {
        advice(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_command_that_moved_is_answered_with_the_one_to_type() {
        for (words, command) in [
            (
                &["target/release/amalgam", "bench", "index", "--engine", "mercury,memc3"][..],
                "target/release/amalgam-lab bench index --engine mercury,memc3",
            ),
            (
                &["amalgam", "reproduce", "--quick", "--out", "a folder"],
                "amalgam-lab reproduce --quick --out 'a folder'",
            ),
            (&["amalgam", "rtl", "serve"], "amalgam-lab rtl serve"),
        ] {
            let advice = of(words).unwrap();
            assert!(advice.ends_with(&format!("run: {command}")), "{advice}");
            assert!(!advice.contains('\n'));
        }
    }

    #[test]
    fn commands_that_stayed_are_not_answered() {
        for words in [
            &["amalgam", "bench", "server"][..],
            &["amalgam", "bench"],
            &["amalgam"],
            &["amalgam", "serve"],
        ] {
            assert_eq!(of(words), None);
        }
    }
}
