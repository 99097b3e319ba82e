//! `amalgam-rtl serve [HOST:PORT]`: the simulated hardware behind a UDP and a TCP port, for
//! memcached clients. As printed: keys up to 168 bytes, values up to 1024.

#![forbid(unsafe_code)]

use std::sync::atomic::AtomicBool;

use amalgam_rtl::PAPER;
use amalgam_rtl::serve::Service;

const DEFAULT_ADDRESS: &str = "127.0.0.1:11311";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let address = match arguments[..] {
        ["serve"] => DEFAULT_ADDRESS,
        ["serve", address] => address,
        _ => return Err(format!("usage: amalgam-rtl serve [{DEFAULT_ADDRESS}]").into()),
    };
    let mut service = Service::bind(address.parse()?, PAPER)?;
    println!("listening on {} (UDP and TCP)", service.address()?);
    service.run(&AtomicBool::new(false))?;
    Ok(())
}
