//! The `amalgam` binary: command line, configuration file, start-up.

fn main() {}
