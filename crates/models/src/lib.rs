//! Protocols as models of words, checked exhaustively by stateright. They are a crate of their own
//! since stateright's libraries turn on features of serde and others, with which every other crate
//! would be compiled once more.

#[cfg(test)]
mod ring;
