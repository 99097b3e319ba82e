//! `amalgam-rtl [HOST:PORT]`: the simulated hardware behind a UDP and a TCP port, for memcached
//! clients. As printed: keys up to 168 bytes, values up to 1024.

use std::sync::atomic::AtomicBool;

use amalgam_rtl::PRINTED;
use amalgam_rtl::serve::Service;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:11311".to_owned());
    let mut service = Service::bind(address.parse()?, PRINTED)?;
    println!("listening on {} (UDP and TCP)", service.address()?);
    service.run(&AtomicBool::new(false))?;
    Ok(())
}
