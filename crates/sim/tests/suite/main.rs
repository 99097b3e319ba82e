//! Whole clusters in the simulator, from seeds, and what it must notice. One binary, since each
//! would compile the simulated cluster anew.

mod bounded_memory;
mod digests;
mod fresh_reads;
mod items;
mod locks;
mod nothing_lost;
mod one_owner;
mod one_way;
mod published;
mod scale;
