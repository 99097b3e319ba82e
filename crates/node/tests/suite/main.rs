//! Nodes in this process, and membership in etcd.

mod etcd;
mod gateway;
mod nodes;
mod pipelined;
#[path = "../../../amalgam/tests/support/etcd.rs"]
mod process;
mod slow_readers;
#[path = "../../../server/tests/suite/support.rs"]
mod support;
#[path = "../../../server/tests/suite/texts.rs"]
mod texts;
