//! A server in this process, as its clients see it. One binary, since each would compile the server
//! anew.

mod admin;
mod admin_tls;
mod altered;
mod authentication;
mod bounds;
mod datagrams;
mod ends;
mod large_values;
mod memory_waits;
mod restart;
mod scripts;
mod slow_readers;
mod statistics;
mod support;
mod texts;
mod tls;
mod unanswered;
mod watchers;
