//! Names and addresses of this machine.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};

/// Name of this machine, or `?`.
pub fn host_name() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "?".to_owned())
}

/// Network interfaces that are up, each with its address, those of other machines' networks before loopback.
pub fn interfaces() -> Vec<(String, IpAddr)> {
    let Ok(all) = getifaddrs() else { return Vec::new() };
    let mut found: Vec<(String, IpAddr)> = all
        .filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP))
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            // A link-local address means nothing without its interface, which differs from machine to machine.
            let v6 = address.as_sockaddr_in6().map(|address| address.ip()).filter(|ip| !ip.is_unicast_link_local());
            Some((interface.interface_name, v4.or(v6.map(IpAddr::V6))?))
        })
        .collect();
    found.sort_by_key(|(_, address)| address.is_loopback());
    found
}

/// Name of the interface with this address.
pub fn interface_of(address: IpAddr) -> Option<String> {
    interfaces().into_iter().find(|(_, of)| *of == address).map(|(name, _)| name)
}

/// Name of the interface by which a host is reached, of this machine that which has its address; `None` for loopback, and where the host
/// is not known. Nothing is sent.
pub fn interface_towards(host: &str, port: u16) -> Option<String> {
    let to = (host, port).to_socket_addrs().ok()?.next()?;
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(to).ok()?;
    let own = socket.local_addr().ok()?.ip();
    if own.is_loopback() { None } else { interface_of(own) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_have_their_interfaces() {
        assert_eq!(interface_towards("127.0.0.1", 9), None);
        for (name, address) in interfaces().into_iter().filter(|(_, address)| !address.is_loopback()) {
            assert_eq!(interface_towards(&address.to_string(), 9), Some(name), "{address}");
        }
        assert_eq!(interface_towards("no host has a space", 9), None);
    }

    #[test]
    fn other_machines_are_reached_by_an_interface_that_there_is() {
        // A documentation address (RFC 5737): where there is a route, it leads out of this machine.
        let names: Vec<String> = interfaces().into_iter().map(|(name, _)| name).collect();
        assert!(interface_towards("192.0.2.1", 9).is_none_or(|name| names.contains(&name)));
    }
}
