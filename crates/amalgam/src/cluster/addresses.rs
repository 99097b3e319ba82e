//! The addresses of a node: where it listens, where other nodes reach it, where its clients do.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use amalgam_node::NodeConfiguration;
use amalgam_server::{ALL_ADDRESSES, ListenAddress};
use anyhow::{Context, ensure};

/// The address that the HOST:PORT of an option names.
pub fn address(text: &str, option: &str) -> anyhow::Result<SocketAddr> {
    let mut found = amalgam_bench::resolve(text).with_context(|| format!("{option} {text}"))?;
    found.next().with_context(|| format!("{option} {text}: the name has no address"))
}

/// The address of --advertise: HOST:PORT, or an IP address alone, which gets the port of --listen.
/// An orchestrator knows its containers' IP addresses, and not whether they need brackets.
pub fn advertised(text: &str, listen: SocketAddr) -> anyhow::Result<SocketAddr> {
    match text.parse::<IpAddr>() {
        Ok(ip) => Ok(SocketAddr::new(ip, listen.port())),
        Err(_) => address(text, "--advertise"),
    }
}

/// Refuses an advertised address at which other nodes would find no node, or themselves.
pub fn check_advertised(configuration: &NodeConfiguration) -> anyhow::Result<()> {
    let Some(advertised) = &configuration.advertise else {
        let listen = configuration.listen;
        ensure!(
            !listen.ip().is_unspecified(),
            "others cannot reach a node at {listen}: name the address at which they can with \
             --advertise HOST:PORT"
        );
        return Ok(());
    };
    let advertised = address(advertised, "--advertise")?;
    ensure!(
        !advertised.ip().is_unspecified() && advertised.port() != 0,
        "--advertise {advertised}: others need an address of this machine, and a port"
    );
    Ok(())
}

/// Where memcached's clients are served: `[::]` stands for all addresses of both families, as it
/// does for the other addresses of a node.
pub fn of_clients(address: SocketAddr) -> Vec<ListenAddress> {
    let is_all = address.is_ipv6() && address.ip().is_unspecified();
    match is_all {
        true => ALL_ADDRESSES.map(|ip| SocketAddr::new(ip, address.port()).into()).into(),
        false => vec![address.into()],
    }
}

/// Where a node of `cluster dev` serves memcached's clients: at this machine's loopback addresses,
/// of both families since `localhost` may be either.
pub fn local(port: u16) -> Vec<ListenAddress> {
    let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    loopback.map(|ip| SocketAddr::new(ip, port).into()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertised_ip_address_alone_has_the_port_of_the_node() {
        let listen = "[::]:7911".parse().unwrap();
        for (text, address) in [
            ("10.0.0.7", "10.0.0.7:7911"),
            ("fd00::7", "[fd00::7]:7911"),
            ("10.0.0.7:80", "10.0.0.7:80"),
            ("[fd00::7]:80", "[fd00::7]:80"),
        ] {
            assert_eq!(advertised(text, listen).unwrap().to_string(), address);
        }
        assert!(advertised("nowhere", listen).is_err());
    }

    #[test]
    fn all_addresses_for_clients_are_those_of_both_families() {
        let listening = |text: &str| {
            let all = of_clients(text.parse().unwrap());
            all.into_iter().map(|listen| listen.address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(listening("[::]:11211"), ["0.0.0.0:11211", "[::]:11211"]);
        assert_eq!(listening("0.0.0.0:11211"), ["0.0.0.0:11211"]);
        assert_eq!(listening("[::1]:11211"), ["[::1]:11211"]);
        let local = local(11211).into_iter().map(|listen| listen.address.to_string());
        assert_eq!(local.collect::<Vec<_>>(), ["127.0.0.1:11211", "[::1]:11211"]);
    }
}
