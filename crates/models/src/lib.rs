//! Protocols as small state machines, checked exhaustively by stateright. They are a crate of their
//! own: stateright's libraries turn on features of serde and others, and in one build with them all
//! crates would be compiled once more.

#![forbid(unsafe_code)]

#[cfg(test)]
mod ring;
