//! Byte scripts of every protocol, run at once, byte by byte, and cut at every place.

mod common;
mod script;

use amalgam_protocol::Limits;
use common::Connection;
use script::{Action, Names, matches, parse, substitute};

/// How sent bytes are cut into reads.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Nowhere,
    Everywhere,
    After(usize),
}

impl Cut {
    fn pieces(self, bytes: &[u8]) -> Vec<&[u8]> {
        match self {
            Self::Nowhere => vec![bytes],
            Self::Everywhere => bytes.chunks(1).collect(),
            Self::After(count) => {
                let (first, second) = bytes.split_at(count.min(bytes.len()));
                vec![first, second]
            }
        }
    }
}

/// Runs a script on a fresh connection. Returns the length of the longest exchange.
fn run(name: &str, actions: &[Action], cut: Cut) -> usize {
    let mut connection = Connection::new(Limits::default());
    let mut names = Names::new();
    let mut longest = 0;
    for action in actions {
        match action {
            Action::Wait { seconds } => connection.now.seconds += seconds,
            Action::Closed => assert!(connection.is_closed, "{name}: still open, {cut:?}"),
            Action::Exchange { sent, expected, line } => {
                if connection.is_closed {
                    connection = Connection::new(Limits::default());
                }
                let sent = substitute(sent, &names);
                longest = longest.max(sent.len());
                let answer: Vec<u8> =
                    cut.pieces(&sent).iter().flat_map(|piece| connection.feed(piece)).collect();
                assert!(
                    matches(&answer, expected, &mut names),
                    "{name}:{line}: cut {cut:?}\nexpected {}\nanswered {}",
                    expected.escape_ascii(),
                    answer.escape_ascii()
                );
            }
        }
    }
    longest
}

/// All exchanges of a script in one read, up to where time passes.
fn run_pipelined(name: &str, actions: &[Action]) {
    let mut connection = Connection::new(Limits::default());
    let mut sent_before = Vec::new();
    let mut expected_before = Vec::new();
    for action in actions {
        if let Action::Exchange { sent, expected, .. } = action {
            if sent.contains(&b'{') {
                return;
            }
            sent_before.extend_from_slice(sent);
            expected_before.extend_from_slice(expected);
        }
        if let Action::Wait { .. } | Action::Closed = action {
            break;
        }
    }
    let answer = connection.feed(&sent_before);
    assert!(
        matches(&answer, &expected_before, &mut Names::new()),
        "{name}: pipelined\nexpected {}\nanswered {}",
        expected_before.escape_ascii(),
        answer.escape_ascii()
    );
}

fn run_every_way(name: &str, text: &str) {
    let actions = parse(text);
    assert!(!actions.is_empty());
    let longest = run(name, &actions, Cut::Nowhere);
    run_pipelined(name, &actions);
    // Long exchanges are there for their length, not for their structure.
    if longest > 4096 {
        return;
    }
    run(name, &actions, Cut::Everywhere);
    for count in 1..longest {
        run(name, &actions, Cut::After(count));
    }
}

macro_rules! scripts {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            run_every_way(
                stringify!($name),
                include_str!(concat!("scripts/", stringify!($name), ".txt")),
            );
        })*
    };
}

scripts! {
    text_store
    text_get
    text_number
    text_touch
    text_errors
    text_commands
    text_noreply
    text_large
    meta_get
    meta_key
    meta_set
    meta_delete
    meta_arithmetic
    meta_recache
    meta_order
    binary_items
    binary_numbers
    binary_commands
    binary_close
}
