//! Stores all keys before the first round.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::client::arguments::{Protocol, ServerArguments};
use crate::client::script::Writer;

/// Bytes of sets that are sent before their answers are read.
const BATCH_BYTES: usize = 64 << 10;

/// The longest wait for the server's next reply.
const PATIENCE: Duration = Duration::from_secs(30);

/// Stores all keys over one connection, in the text protocol; returns how many were refused.
///
/// # Errors
///
/// If the connection fails, or a reply is neither `STORED` nor an out-of-memory error.
pub fn load(arguments: &ServerArguments, address: SocketAddr) -> anyhow::Result<u64> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut writer = Writer::new(Protocol::Text, arguments.key_bytes, arguments.value_bytes)?;
    let (mut bytes, mut pending, mut refused) = (Vec::new(), 0, 0);
    for id in 0..arguments.keys {
        writer.set(0, id as u32, &mut bytes);
        pending += 1;
        if bytes.len() >= BATCH_BYTES || id + 1 == arguments.keys {
            stream.write_all(&bytes)?;
            refused += read_answers(&mut stream, pending)?;
            bytes.clear();
            pending = 0;
        }
    }
    Ok(refused)
}

fn read_answers(stream: &mut TcpStream, mut pending: u64) -> anyhow::Result<u64> {
    let mut buffer = [0; 16 << 10];
    let (mut line, mut refused) = (Vec::new(), 0);
    while pending > 0 {
        let received = stream.read(&mut buffer).context("while the keys were stored")?;
        ensure!(received > 0, "the server closed the connection while the keys were stored");
        for byte in &buffer[..received] {
            line.push(*byte);
            ensure!(line.len() < 4096, "the server answered a set with an endless line");
            if *byte == b'\n' {
                let text = String::from_utf8_lossy(&line);
                let is_refused = text.starts_with("SERVER_ERROR");
                ensure!(is_refused || text == "STORED\r\n", "a set was answered '{text}'");
                refused += u64::from(is_refused);
                line.clear();
                pending = pending.checked_sub(1).context("more answers than sets")?;
            }
        }
    }
    Ok(refused)
}
